"""Early exits of the tiny LayerSkip model and of its control, on held-out files of the standard library.

    python -m recipes.layerskip_tiny.train --output models/layerskip-tiny
    python -m recipes.layerskip_tiny.train --output models/layerskip-tiny-control --control
    python benchmarks/layerskip_tiny.py --trained models/layerskip-tiny --control models/layerskip-tiny-control

prints how often each exit agrees with the whole model, teacher-forced on held-out files, and the paired speedup of an
early exit with shared cache over this runtime's own plain decoding. The exit and its number of drafts are chosen on one
half of the held-out prompts and measured on the other half.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipes.layerskip_tiny.corpus import read_corpus, standard_library
from recipes.layerskip_tiny.model import agreement_by_exit
from recipes.layerskip_tiny.snippets import windows
from recipes.layerskip_tiny.tokens import encode

from selfspec_calibrate.interleave import run_block, shuffled
from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt, warm_up
from selfspec_calibrate.pair import PromptPair, speedup, speedup_interval
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.prompts.template import render
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.calibration import Interval
    from selfspec_runtime.loading import LoadedModel

#: Exits as shares of the layers, and draft lengths, that are tried.
EXIT_SHARES, LENGTHS = (0.1, 0.15, 0.2, 0.25, 0.3), (2, 3, 4, 6)
NUM_WINDOWS, WINDOW = 32, 256


@dataclass(frozen=True)
class Opened:
    """A trained model, ready to decode.

    Attributes:
        loaded: Model and tokenizer.
        target: The model as the runtime sees it.
        prompts: Pieces of held-out files.
    """

    loaded: LoadedModel
    target: Target
    prompts: list[MeasuredPrompt]

    def arm(self, plan: DraftPlan, settings: GenerationSettings) -> EngineArm:
        """An engine for a plan, warmed up."""
        engine = Engine(self.target, self.loaded.tokenizer, plan)
        warm_up(engine, self.prompts[0], settings)
        return EngineArm(plan.model_dump_json(), engine)


def open_model(folder: Path, dtype: str) -> Opened:
    """Loads a folder that the recipe wrote, with its prompts."""
    loaded = load_model(ModelSpec.model_validate({"model": str(folder), "dtype": dtype}))
    rendered = [(p, render(p, loaded.tokenizer)) for p in read_prompts(folder / "prompts.jsonl").prompts]
    return Opened(loaded, Target(loaded.model), [MeasuredPrompt(p.id, p.kind, r.token_ids) for p, r in rendered])


def curve(folder: Path, seed: int) -> tuple[float, ...]:
    """Agreement by exit layer on held-out files that this Python has."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    held_out = read_corpus(standard_library(), seed=seed).held_out
    tokens = encode(tokenizer, [source.text for source in held_out])
    rows = windows(tokens, number=NUM_WINDOWS, length=WINDOW, generator=torch.Generator().manual_seed(seed))
    return agreement_by_exit(model, rows)


def measured(
    opened: Opened, plans: Sequence[DraftPlan], prompts: Sequence[MeasuredPrompt], length: int
) -> list[list[PromptPair]]:
    """Plans beside plain decoding in mirrored blocks, by plan and prompt."""
    settings = GenerationSettings(max_new_tokens=length)
    arms = [opened.arm(plan, settings) for plan in (PLAIN, *plans)]
    pairs: list[list[PromptPair]] = [[] for _ in plans]
    for prompt in shuffled(prompts, seed=0):
        block = run_block(arms, prompt, settings)
        for found, arm in zip(pairs, arms[1:], strict=True):
            found.append(PromptPair.of(block.runs[arms[0].name], block.runs[arm.name]))
    return pairs


def candidates(num_layers: int) -> list[DraftPlan]:
    """Exits of the first layers with a few draft lengths."""
    exits = dict.fromkeys(max(round(share * num_layers), 1) for share in EXIT_SHARES)
    return [
        DraftPlan.model_validate(
            {"source": EarlyExitSpec(exit_layer=layer), "controller": {"kind": "fixed", "num_draft_tokens": length}}
        )
        for layer in exits
        for length in LENGTHS
    ]


def best_exit(opened: Opened, *, search: int, length: int) -> tuple[DraftPlan, Interval]:
    """Chooses on half of the prompts, first on a few of them, and measures on the other half."""
    chosen_on, held_out = opened.prompts[0::2], opened.prompts[1::2]
    plans = candidates(opened.target.num_layers)
    for number, kept in ((search, 3), (len(chosen_on), 1)):
        pairs = measured(opened, plans, chosen_on[:number], length)
        order = sorted(zip(pairs, plans, strict=True), key=lambda each: speedup(each[0]) or 0.0, reverse=True)
        plans = [plan for _, plan in order[:kept]]
    interval = speedup_interval(measured(opened, plans, held_out, length)[0])
    assert interval is not None, "no prompt was answered with more than one token"
    return plans[0], interval


def main() -> int:
    """Prints Markdown; the exit code tells whether the lower end is above 1.1 and the curve above the control's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--search-prompts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="the training's")
    given = parser.parse_args()
    curves = {
        name: curve(folder, given.seed) for name, folder in (("LayerSkip", given.trained), ("control", given.control))
    }
    print(_curve_table(curves))
    print("\n| model | early exit with shared cache | speedup over own plain decoding |")
    print("|---|---|---:|")
    lows = []
    for name, folder in (("LayerSkip", given.trained), ("control", given.control)):
        plan, interval = best_exit(
            open_model(folder, given.dtype), search=given.search_prompts, length=given.max_new_tokens
        )
        lows.append(interval.low or 0.0)
        print(
            f"| {name} | {plan.describe()} | {interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}] |",
            flush=True,
        )
    early = range(len(curves["control"]) // 2)
    is_above = all(curves["LayerSkip"][layer] > curves["control"][layer] for layer in early)
    return int(lows[0] <= 1.1 or not is_above)


def _curve_table(curves: dict[str, tuple[float, ...]]) -> str:
    exits = range(1, len(next(iter(curves.values()))) + 1)
    lines = ["| exit after layer | " + " | ".join(map(str, exits)) + " |", "|---|" + "---:|" * len(exits)]
    lines += [f"| {name} | " + " | ".join(f"{share:.2f}" for share in values) + " |" for name, values in curves.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
