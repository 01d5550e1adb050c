"""Calibrates models whose right answer is known, and says whether it was found.

    python benchmarks/planted.py --budget 90s

An exit that equals the full model must be found and pay; a skip set that changes nothing must be found; a model that no
draft can guess must be answered with "do not speculate".
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from selfspec_calibrate.pipeline import calibrate
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.model_spec import ModelSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import planted_folders

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfspec_runtime.calibration import Calibration, MemoryStep


#: Acceptance of a skip set that changes nothing: the texts are chaotic, so that even float32 rounding shows at times.
NEARLY_ALL = 0.98


@dataclass(frozen=True)
class Case:
    """One planted model.

    Attributes:
        build: Makes it.
        holds: Whether the zero step's result is the known answer.
        expected: The answer in words.
        dtype: A chaotic text in bf16 depends on how many rows a kernel sees at once, so that where whole blocks are
            scored against single steps only float32 has a known answer.
    """

    build: Callable[[], PreTrainedModel]
    holds: Callable[[MemoryStep], bool]
    expected: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


def _exit_pays(step: MemoryStep) -> bool:
    result = step.overall
    assert result is not None
    return step.enabled and result.acceptance_rate == 1.0 and (result.speedup.low or 0.0) > 1.3


def _skips_found(step: MemoryStep) -> bool:
    result, source = step.overall, step.plan.source
    if result is None or not isinstance(source, LayerSkipSpec):
        return False
    planted = planted_folders.SKIPPED
    inside = source.skip.attention <= set(planted["attention"]) and source.skip.mlp <= set(planted["mlp"])
    return inside and step.enabled and (result.acceptance_rate or 0.0) > NEARLY_ALL


CASES = {
    "exit": Case(planted_folders.planted_exit, _exit_pays, "acceptance 1, speedup above 1.3 by its lower end"),
    "skip": Case(planted_folders.planted_skips, _skips_found, "only planted sub-layers, enabled", "float32"),
    "hopeless": Case(planted_folders.hopeless_model, lambda step: not step.enabled, "not enabled"),
}


def run(case: Case, folder: Path, budget_s: float) -> Calibration:
    """Saves the model and calibrates it."""
    planted_folders.save(case.build(), folder, dtype=getattr(torch, case.dtype))
    settings = CalibrationSettings(
        model=ModelSpec(model=str(folder), dtype=case.dtype),
        prompts=folder / "prompts.jsonl",
        output=folder / "best.json",
        budget_s=budget_s,
    )
    return calibrate(settings)


def main() -> int:
    """Prints a Markdown table; the exit code tells whether every answer is the known one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--only", choices=sorted(CASES))
    arguments = parser.parse_args()
    budget_s = float(arguments.budget.removesuffix("s"))
    print("| planted | expected | found, at no extra memory | acceptance | speedup | right |")
    print("|---|---|---|---:|---:|---|")
    wrong = 0
    for name, case in CASES.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            step = run(case, Path(folder), budget_s).steps[0]
        wrong += not case.holds(step)
        print(_row(name, case, step), flush=True)
    return int(wrong > 0)


def _row(name: str, case: Case, step: MemoryStep) -> str:
    result = step.overall
    acceptance = "" if result is None or result.acceptance_rate is None else f"{result.acceptance_rate:.3f}"
    speedup = ""
    if result is not None:
        low, high = result.speedup.low or float("nan"), result.speedup.high or float("nan")
        speedup = f"{result.speedup.value:.2f} [{low:.2f}, {high:.2f}]"
    found = step.plan.describe() + ("" if step.enabled else " (not enabled)")
    return f"| {name}, {case.dtype} | {case.expected} | {found} | {acceptance} | {speedup} | {case.holds(step)} |"


if __name__ == "__main__":
    sys.exit(main())
