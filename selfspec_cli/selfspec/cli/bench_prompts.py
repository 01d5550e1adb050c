"""The prompts of ``selfspec bench``: those that the plan was not chosen on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec.cli.row_options import row_notices

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec.cli.options import TemplateOptions
    from selfspec.cli.row_options import RowOptions
    from selfspec.model import SpeculativeModel
    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_calibrate.prompts.reader import PromptFile
    from selfspec_runtime.calibration import PromptData


@dataclass(frozen=True, kw_only=True)
class BenchPrompts:
    """Rendered prompts.

    Attributes:
        measured: What may be decoded.
        pool: What long contexts may be made of: all prompts of the file.
        notices: What is to be known about the choice, one sentence each.
    """

    measured: tuple[MeasuredPrompt, ...]
    pool: tuple[MeasuredPrompt, ...]
    notices: tuple[str, ...] = ()


def bench_prompts(
    opened: SpeculativeModel, path: Path | None, template: TemplateOptions, rows: RowOptions
) -> BenchPrompts:
    """Reads and renders prompts, and leaves those out that the plan was chosen on, if a calibration chose it.

    Args:
        opened: The model, with the calibration that its plan comes from, if there is one.
        path: The prompt file, or None for the demo's.
        template: How to render.
        rows: How the file's rows are read.

    Raises:
        SelfspecError: The file or a prompt cannot be used.
    """
    from selfspec.recipe import recipe_folder
    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_calibrate.prompts.template import render

    file = rows.read(path or recipe_folder() / "demo" / "prompts.jsonl")
    pool = tuple(
        MeasuredPrompt(prompt.id, prompt.kind, render(prompt, opened.tokenizer, **template.given()).token_ids)
        for prompt in file.prompts
    )
    fresh = BenchPrompts(measured=pool, pool=pool)
    calibration = opened.calibration
    if calibration is not None and any(step.enabled and step.plan == opened.plan for step in calibration.steps):
        fresh = unsearched(pool, file, calibration.data)
    return replace(fresh, notices=(*row_notices(file), *fresh.notices))


def unsearched(pool: tuple[MeasuredPrompt, ...], file: PromptFile, data: PromptData) -> BenchPrompts:
    """The prompts on which a calibration did not choose its plan; all of them, with a notice, if none is left."""
    seen = frozenset(data.search_ids)
    fresh = tuple(prompt for prompt in pool if prompt.prompt_id not in seen)
    if not fresh:
        return BenchPrompts(measured=pool, pool=pool, notices=(_flattered("all of these prompts"),))
    if not seen and file.sha256 == data.sha256:
        return BenchPrompts(measured=pool, pool=pool, notices=(_flattered("a part of these prompts"),))
    left_out = len(pool) - len(fresh)
    notice = f"{left_out} of {len(pool)} prompts, on which the plan was chosen, are left out."
    return BenchPrompts(measured=fresh, pool=pool, notices=(notice,) if left_out else ())


def _flattered(which: str) -> str:
    return f"The plan was chosen on {which}: expect less of it on others."
