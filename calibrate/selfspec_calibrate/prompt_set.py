"""The prompts of one calibration: rendered to token ids, filtered to what fits, split in two."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_calibrate.prompts.reader import PromptFile, read_prompts
from selfspec_calibrate.prompts.split import split_held_out
from selfspec_calibrate.prompts.template import render
from selfspec_runtime.calibration import PromptData
from selfspec_runtime.errors import PromptFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from selfspec_calibrate.prompts.prompt import Prompt
    from selfspec_calibrate.settings import CalibrationSettings

TOO_LONG = "too long for the model's context"
REFUSED = "refused by the chat template"


@dataclass(frozen=True)
class PromptSet:
    """Prompts to search on and prompts that only the verdict sees.

    Attributes:
        search: Rendered prompts for the search.
        held_out: Rendered prompts for the verdict.
        file: What the file held.
        skipped: Rows left out, by reason, the file's own counts included.
        notices: What the chat template needed, one line each.
    """

    search: tuple[MeasuredPrompt, ...]
    held_out: tuple[MeasuredPrompt, ...]
    file: PromptFile
    skipped: dict[str, int]
    notices: tuple[str, ...]

    def cut(self, *, num_search: int, num_held_out: int) -> PromptSet:
        """Keeps the first prompts of each part; kinds are interleaved, so that a beginning is a fair sample."""
        return replace(self, search=self.search[:num_search], held_out=self.held_out[:num_held_out])

    def record(self) -> PromptData:
        """What the calibration file says about the prompts."""
        used = Counter(prompt.kind for prompt in (*self.search, *self.held_out))
        return PromptData(
            file=self.file.path.name,
            sha256=self.file.sha256,
            num_search=len(self.search),
            num_held_out=len(self.held_out),
            kinds=dict(sorted(used.items())),
            skipped=self.skipped,
            search_ids=tuple(prompt.prompt_id for prompt in self.search),
        )


def load_prompt_set(
    settings: CalibrationSettings, tokenizer: PreTrainedTokenizerBase, *, max_positions: int | None, reserve: int
) -> PromptSet:
    """Reads, renders, filters and splits.

    Args:
        settings: Where the prompts are and how to read and split them.
        tokenizer: The model's tokenizer, with its chat template.
        max_positions: The model's context length, or None.
        reserve: Positions to leave for the generation.

    Raises:
        PromptFileError: The file is unreadable, or fewer than two usable prompts are left.
    """
    file = read_prompts(settings.prompts, prompt_field=settings.prompt_field, skip_bad_lines=settings.skip_bad_lines)
    rendered, notices = _rendered(file, tokenizer, settings)
    fitting = [p for p in file.prompts if p.id in rendered and _fits(rendered[p.id], max_positions, reserve)]
    left_out = {REFUSED: len(file.prompts) - len(rendered), TOO_LONG: len(rendered) - len(fitting)}
    skipped = {**file.skipped, **{reason: count for reason, count in left_out.items() if count}}
    _require_two(fitting, settings, skipped)
    search, held_out = split_held_out(
        _limited(fitting, settings), fraction=settings.held_out_fraction, seed=settings.seed
    )
    return PromptSet(
        search=tuple(rendered[p.id] for p in search),
        held_out=tuple(rendered[p.id] for p in held_out),
        file=file,
        skipped=skipped,
        notices=tuple(f"{text} ({count} prompts)" for text, count in notices.items()),
    )


def _rendered(
    file: PromptFile, tokenizer: PreTrainedTokenizerBase, settings: CalibrationSettings
) -> tuple[dict[str, MeasuredPrompt], Counter[str]]:
    rendered: dict[str, MeasuredPrompt] = {}
    notices: Counter[str] = Counter()
    for prompt in file.prompts:
        try:
            result = render(prompt, tokenizer, system=settings.system, template_kwargs=settings.template_kwargs)
        except UsageError as error:
            notices[str(error)] += 1
            continue
        notices.update(result.notices)
        rendered[prompt.id] = MeasuredPrompt(prompt.id, prompt.kind, result.token_ids)
    return rendered, notices


def _fits(prompt: MeasuredPrompt, max_positions: int | None, reserve: int) -> bool:
    return max_positions is None or len(prompt.token_ids) + reserve <= max_positions


def _require_two(fitting: Sequence[Prompt], settings: CalibrationSettings, skipped: dict[str, int]) -> None:
    if len(fitting) >= 2:
        return
    left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing was skipped"
    message = (
        f"{settings.prompts}: {len(fitting)} usable prompt{'s' * (len(fitting) != 1)} ({left_out}). "
        "Calibration needs at least 2, one to search on and one to measure on; 20 or more are better."
    )
    raise PromptFileError(message)


def _limited(prompts: Sequence[Prompt], settings: CalibrationSettings) -> Sequence[Prompt]:
    """The first ``limit`` prompts of a fair order: both halves of a split are interleaved by kind."""
    if settings.limit is None or settings.limit >= len(prompts):
        return prompts
    search, held_out = split_held_out(prompts, fraction=0.5, seed=settings.seed)
    paired = [p for pair in zip(search, held_out, strict=False) for p in pair]
    rest = [*search[len(held_out) :], *held_out[len(search) :]]
    return (paired + rest)[: settings.limit]
