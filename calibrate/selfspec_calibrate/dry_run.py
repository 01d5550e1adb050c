"""Says what a calibration would do, without loading weights or writing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate.prompt_set import load_prompt_set
from selfspec_calibrate.session import RESERVED_POSITIONS
from selfspec_calibrate.study_storage import check_storage
from selfspec_runtime.memory import parse_memory
from selfspec_runtime.preflight import preflight

if TYPE_CHECKING:
    from selfspec_calibrate.prompt_set import PromptSet
    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.preflight import Preflight


@dataclass(frozen=True)
class DryRun:
    """What would be done.

    Attributes:
        lines: One statement each.
    """

    lines: tuple[str, ...]


def dry_run(settings: CalibrationSettings) -> DryRun:
    """Resolves model and prompts as a calibration would.

    Raises:
        SelfspecError: What a calibration would stop at before it loads weights.
    """
    parse_memory(settings.max_extra_memory)
    if settings.storage is not None:
        check_storage(settings.storage)
    ready = preflight(settings.model)
    prompts = load_prompt_set(
        settings,
        ready.tokenizer,
        max_positions=ready.context_tokens,
        reserve=settings.max_new_tokens or RESERVED_POSITIONS,
    )
    return DryRun((*_model_lines(ready), *_prompt_lines(prompts), *_search_lines(settings, ready)))


def _model_lines(ready: Preflight) -> tuple[str, ...]:
    held = "unknown size" if ready.weight_bytes is None else f"{ready.weight_bytes / 1e6:,.0f} MB of weights"
    template = "with" if ready.has_chat_template else "without"
    dtype = str(ready.dtype).removeprefix("torch.")
    return (
        f"Model: {ready.place.name} ({ready.architecture}, {ready.num_hidden_layers} layers, {held}), "
        f"{template} a chat template.",
        f"It would run in {dtype} on {ready.device}, quantisation: {ready.spec.quantization}.",
        *ready.notices,
    )


def _prompt_lines(prompts: PromptSet) -> tuple[str, ...]:
    record = prompts.record()
    kinds = ", ".join(f"{count} {kind}" for kind, count in record.kinds.items())
    skipped = ", ".join(f"{count} {reason}" for reason, count in record.skipped.items()) or "none"
    longest = max(len(prompt.token_ids) for prompt in (*prompts.search, *prompts.held_out))
    return (
        f"Prompts: {record.file}: {kinds}; {record.num_search} to search on, {record.num_held_out} held out.",
        f"The longest prompt has {longest} tokens. Rows left out: {skipped}.",
        *prompts.notices,
    )


def _search_lines(settings: CalibrationSettings, ready: Preflight) -> tuple[str, ...]:
    families = ", ".join(settings.families)
    trials = "as many plans as that affords" if settings.max_trials is None else f"at most {settings.max_trials} plans"
    return (
        f"Search: {families}; up to {settings.max_draft_tokens} draft tokens, exit 1 to {ready.num_hidden_layers - 1}.",
        f"Budget: {settings.budget_s:g} s, timing {trials}.",
        f"Output: {settings.output}, with the measurements beside it in {settings.output}.study.",
    )
