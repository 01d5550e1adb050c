"""What the runtime does on one GPU, in under four minutes and without downloads.

    python benchmarks/gpu_check.py

runs the tests marked ``gpu``, then decodes with random-weight models of 1B and 8B shape whose upper half contributes
nothing (so that drafts of the lower half are always right), eagerly and captured, plain and with drafts, and times
the kernels that draw and decide, and those that attend, against torch. ``--dry-run`` walks through everything on a CPU
with tiny shapes; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from attention_timing import HEADER, Attention, attention_lines
from transformers import AutoModelForCausalLM, LlamaConfig

from selfspec_runtime.attention import register_attention
from selfspec_runtime.engine import Engine
from selfspec_runtime.executors.cuda_graph import GraphExecutor
from selfspec_runtime.executors.device_rules import device_rule
from selfspec_runtime.executors.kernel_rules import kernel_rule
from selfspec_runtime.executors.recorder import NoRecorder
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

ROOT = Path(__file__).parents[1]
NUM_DRAFTS = 4
REPEATS = 3
COMMON = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096}
SHAPES: dict[str, dict[str, int]] = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "head_dim": 16, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was run.
        tokens_per_s: Decoding speed, without the prompt.
        gigabytes_per_s: Weights that had to be read, over time.
        reads_per_round: Waits of the host for the device; None where they are not counted.
        acceptance: Accepted over drafted tokens; None without drafts.
    """

    what: str
    tokens_per_s: float
    gigabytes_per_s: float
    reads_per_round: float | None
    acceptance: float | None

    def line(self, bandwidth: float) -> str:
        """The line in Markdown.

        Args:
            bandwidth: Measured copy bandwidth in GB/s.
        """
        reads = "" if self.reads_per_round is None else f"{self.reads_per_round:.2f}"
        accepted = "" if self.acceptance is None else f"{self.acceptance:.3f}"
        speed, share = f"{self.tokens_per_s:.1f}", f"{self.gigabytes_per_s / bandwidth:.0%}"
        return f"| {self.what} | {speed} | {self.gigabytes_per_s:.0f} | {share} | {reads} | {accepted} |"


def build_model(shape: dict[str, int], device: str) -> PreTrainedModel:
    """A Llama of random weights in bfloat16 whose upper half writes nothing into the residual stream."""
    register_attention()
    config = LlamaConfig(**shape, tie_word_embeddings=False)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="selfspec")
    with torch.no_grad():
        for layer in model.model.layers[len(model.model.layers) // 2 :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model.eval().requires_grad_(False)


def decode(target: Target, plan: DraftPlan, executor: str, num_tokens: int) -> Row:
    """Decodes once to record and warm up, then a few times, of which the fastest counts."""
    engine = make_engine(target, plan, executor)
    settings, prompt = GenerationSettings(max_new_tokens=num_tokens), list(range(5, 37))
    engine.generate(prompt, settings)
    before = engine.decoder.executor.num_host_reads
    runs = [engine.generate(prompt, settings) for _ in range(REPEATS)]
    reads = engine.decoder.executor.num_host_reads - before
    best = min(runs, key=lambda run: run.seconds.decode)
    rounds = sum(run.stats.num_rounds for run in runs)
    notice = engine.decoder.executor.notice
    if notice is not None:
        print(notice)
    return Row(
        what=f"{plan.describe()}, {executor}",
        tokens_per_s=best.stats.num_emitted_tokens / best.seconds.decode,
        gigabytes_per_s=bytes_read(target, best.stats) / best.seconds.decode / 1e9,
        reads_per_round=reads / rounds if reads else None,
        acceptance=best.stats.acceptance_rate,
    )


def make_engine(target: Target, plan: DraftPlan, executor: str) -> Engine:
    """An engine; away from CUDA the captured steps run as they are."""
    if executor == "eager" or target.device.type == "cuda":
        return Engine(target, plan=plan, executor=executor)  # type: ignore[arg-type]
    engine = Engine(target, plan=plan)
    engine.decoder.executor = GraphExecutor(
        target, engine.source, engine.decoder.controller, recorder=NoRecorder(), max_drafts=plan.max_draft_tokens
    )
    return engine


def bytes_read(target: Target, stats: Any) -> float:
    """Weights that the run's passes had to read: all for a verification, half the layers and the head for a draft."""
    model = target.model
    layers = sum(p.numel() * p.element_size() for p in model.model.layers.parameters())
    head = sum(p.numel() * p.element_size() for p in model.lm_head.parameters())
    return float(stats.num_rounds * (layers + head) + stats.num_draft_passes * (layers / 2 + head))


def copy_bandwidth(device: str, num_bytes: int) -> float:
    """Bytes read and written per second by a copy, in GB/s."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    return 2 * num_bytes / seconds_of(lambda: goal.copy_(source), device) / 1e9


def seconds_of(run: Callable[[], Any], device: str, *, count: int = 20) -> float:
    """Seconds of one call, launched back to back."""
    for _ in range(3):
        run()
    wait(device)
    started = perf_counter()
    for _ in range(count):
        run()
    wait(device)
    return (perf_counter() - started) / count


def wait(device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def kernel_lines(device: str, vocab_size: int) -> list[str]:
    """The kernels that draw a token and decide a block, against the same in torch, in microseconds."""
    logits = torch.randn(NUM_DRAFTS + 1, vocab_size, device=device, dtype=torch.bfloat16)
    ids, position = torch.arange(NUM_DRAFTS, device=device), torch.tensor([9], device=device)
    key = torch.tensor([5, 0], device=device)
    sampled = SamplingSettings(temperature=0.8, top_p=0.9)
    asked = {"greedy": SamplingSettings(), "rejection": sampled, "match": replace(sampled, mode="match")}
    lines = []
    for name, settings in asked.items():
        rules = kernel_rule(settings, key), device_rule(settings, key)
        drawn = [
            1e6 * seconds_of(partial(rule.draw, logits[:1], position, round_start=position), device) for rule in rules
        ]
        decided = [1e6 * seconds_of(partial(rule.decide, ids, (), logits, position), device) for rule in rules]
        lines += [f"| draw, {name}, {vocab_size} tokens | {drawn[0]:.0f} | {drawn[1]:.0f} |"]
        lines += [f"| decide, {name}, {vocab_size} tokens | {decided[0]:.0f} | {decided[1]:.0f} |"]
    return lines


def run_tests() -> int:
    """Runs the tests marked ``gpu`` and prints their last line."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "tests/integration/test_gpu.py",
        "tests/unit/runtime/test_capture_sampling.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print("tests:", done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:])
    if done.returncode not in (0, 5):
        print(done.stdout[-4000:])
    return done.returncode


def check_shape(name: str, shape: dict[str, int], device: str, *, num_tokens: int, bandwidth: float) -> None:
    """Prints one model's lines."""
    target = Target(build_model(shape, device))
    exit_layer = target.num_layers // 2
    drafted = DraftPlan.model_validate(
        {
            "source": {"kind": "early_exit", "exit_layer": exit_layer},
            "controller": {"kind": "fixed", "num_draft_tokens": NUM_DRAFTS},
        }
    )
    for plan in (PLAIN, drafted):
        for executor in ("eager", "cuda_graph"):
            row = decode(target, plan, executor, num_tokens if executor == "cuda_graph" else num_tokens // 2)
            print(f"| {name} {row.line(bandwidth)[2:]}", flush=True)


def main() -> int:
    """Prints the tables; the exit code is that of the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="Tiny shapes on a CPU, no tests.")
    parser.add_argument("--only", choices=sorted(SHAPES))
    arguments = parser.parse_args()
    started = perf_counter()
    device, code = "cpu", 0
    shapes = {name: {**COMMON, **shape} for name, shape in SHAPES.items() if arguments.only in (None, name)}
    if arguments.dry_run:
        shapes = {"tiny": TINY}
    elif not torch.cuda.is_available():
        print("There is no CUDA device here; --dry-run walks through the script on a CPU.")
        return 2
    else:
        device, code = "cuda", run_tests()
    bandwidth = copy_bandwidth(device, 2**20 if arguments.dry_run else 2**30)
    print(f"torch {torch.__version__}, {device_name(device)}, copies at {bandwidth:.0f} GB/s\n")
    print("| what | tokens/s | weights GB/s | of copy | host reads a round | acceptance |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, shape in shapes.items():
        check_shape(name, shape, device, num_tokens=12 if arguments.dry_run else 128, bandwidth=bandwidth)
    print(f"\n| a draft token, a block of {NUM_DRAFTS} | kernels, us | torch, us |\n|---|---:|---:|")
    print("\n".join(kernel_lines(device, 256 if arguments.dry_run else COMMON["vocab_size"])))
    attention, lengths = (Attention(4, 2, 16), (20,)) if arguments.dry_run else (Attention(), (300, 3000, 30000))
    print("", HEADER, *attention_lines(seconds_of, device, lengths=lengths, shape=attention), sep="\n")
    print(f"\nin {perf_counter() - started:.0f} s")
    return code


def device_name(device: str) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU, dry run"


if __name__ == "__main__":
    sys.exit(main())
