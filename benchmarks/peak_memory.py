"""Peak resident memory of plans, each in a process of its own.

    python benchmarks/peak_memory.py --model models/SmolLM2-135M-Instruct

prints a Markdown table: a layer or n-gram plan holds what plain decoding holds, a quantised copy holds its weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.memory import peak_bytes

PLANS: dict[str, dict[str, object]] = {
    "plain": {},
    "n-gram": {"source": {"kind": "ngram"}},
    "early exit": {"source": {"kind": "early_exit", "exit_layer": 24}},
    "skip set": {"source": {"kind": "layer_skip", "skip": {"attention": [7, 12], "mlp": [17]}}},
    "NF4 copy": {"source": {"kind": "quantized"}},
}
PROMPT = "Write a short story about a lighthouse keeper who finds a message in a bottle."


@dataclass(frozen=True)
class Peak:
    """What one process held.

    Attributes:
        name: The plan.
        peak_bytes: Peak resident set.
        extra_bytes: What the plan says that it holds beyond the model.
    """

    name: str
    peak_bytes: int
    extra_bytes: int


def measure(model: str, name: str, *, max_new_tokens: int = 64) -> Peak:
    """Runs one plan in a fresh process."""
    command = [sys.executable, __file__, "--model", model, "--child", name, "--max-new-tokens", str(max_new_tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Peak(name, **json.loads(done.stdout.splitlines()[-1]))


def run_child(model: str, name: str, max_new_tokens: int) -> None:
    """Generates with one plan and prints the process's peak as JSON."""
    import selfspec

    plan = selfspec.DraftPlan.model_validate(PLANS[name])
    loaded = selfspec.load(model, plan=plan)
    loaded.generate(PROMPT, max_new_tokens=max_new_tokens)
    # Not getrusage: what a process says there begins with what its parent held.
    print(json.dumps({"peak_bytes": peak_bytes(), "extra_bytes": loaded.engine.extra_bytes}))


def main() -> None:
    """Prints the table, or runs one child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--child", choices=sorted(PLANS))
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.model, arguments.child, arguments.max_new_tokens)
        return
    peaks = [measure(arguments.model, name, max_new_tokens=arguments.max_new_tokens) for name in PLANS]
    plain = peaks[0].peak_bytes
    print("| plan | peak resident memory | against plain | own weights |")
    print("|---|---:|---:|---:|")
    for peak in peaks:
        megabytes, share = peak.peak_bytes / 2**20, peak.peak_bytes / plain
        print(f"| {peak.name} | {megabytes:.0f} MiB | {share:.3f} | {peak.extra_bytes / 2**20:.0f} MiB |")


if __name__ == "__main__":
    main()
