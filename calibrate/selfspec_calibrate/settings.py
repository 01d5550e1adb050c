"""What the user asked calibrate for; a recipe is a YAML file of these fields."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.sampling import SMALLEST_TEMPERATURE

Family = Literal[
    "early_exit",
    "layer_skip",
    "quantized",
    "ngram",
    "ngram_first",
    "swift",
    "clasp",
    "conf_layers",
    "fewer_experts",
    "suffix",
    "reduced_head",
    "tree",
    "adaptive_threshold",
    "accepted_length",
    "thompson",
    "fallback",
    "saguaro",
]
FAMILIES: tuple[Family, ...] = get_args(Family)

_OPTIONS = {
    "budget_s": "budget",
    "max_trials": "trials",
    "held_out_fraction": "held-out",
    "also_temperatures": "also-temperature",
    "template_kwargs": "chat-template-kwargs",
}


def option_of(field: str) -> str:
    """What the command line calls a setting, such as ``--held-out``."""
    return "--" + _OPTIONS.get(field, field).replace("_", "-")


def _usable(temperature: float) -> float:
    if temperature == 0 or SMALLEST_TEMPERATURE <= temperature < math.inf:
        return temperature
    kind, message = "temperature", f"use 0 (greedy) or {SMALLEST_TEMPERATURE:g} and more"
    raise PydanticCustomError(kind, message)


def _some(families: tuple[Family, ...]) -> tuple[Family, ...]:
    if families:
        return families
    kind, message = "families", "name at least one kind of draft, or leave it out for all"
    raise PydanticCustomError(kind, message)


def _without_repeats(temperatures: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(temperatures))


Temperature = Annotated[float, AfterValidator(_usable)]


class CalibrationSettings(BaseModel):
    """Settings of one calibration.

    Attributes:
        model: What to load and how.
        prompts: The prompt file.
        output: The calibration file to write.
        budget_s: Seconds that the whole calibration may take, model loading apart.
        max_trials: Most plans to time, or None for what the budget allows.
        max_new_tokens: Tokens per measured generation, or None for what the budget allows (32 to 256).
        held_out_fraction: Share of each kind kept for the verdict.
        limit: Most prompts to use, or None.
        temperature: 0 is greedy; None for the model's own default.
        top_k: None for the model's own default, 0 for all tokens (only when sampling).
        top_p: None for the model's own default.
        min_p: None for the model's own default.
        also_temperatures: Further temperatures to measure the chosen plan at.
        seed: Seed of splits, samplers and sampling.
        families: Kinds of draft to search.
        max_draft_tokens: Longest draft to consider.
        max_extra_memory: Bytes ("500MB"), per cent of the weights ("30%"), or None for the zero step.
        require_speedup: Exit with 3 unless the verdict reaches this.
        storage: SQLAlchemy URL of the Optuna studies, or None for SQLite beside the output.
        restart: Forget an interrupted calibration.
        system: System prompt put before every conversation.
        prompt_field: Field that holds the prompt, where it is not recognised.
        skip_bad_lines: Count broken rows instead of stopping at them.
        template_kwargs: Extra arguments of the chat template.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSpec
    prompts: Path
    output: Path = Path("selfspec.json")
    budget_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    max_trials: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=8)
    held_out_fraction: float = Field(default=0.5, gt=0, lt=1)
    limit: int | None = Field(default=None, ge=2)
    temperature: Temperature | None = None
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, lt=1)
    also_temperatures: Annotated[tuple[Temperature, ...], AfterValidator(_without_repeats)] = ()
    seed: int = Field(default=0, ge=0, lt=2**64)
    families: Annotated[tuple[Family, ...], AfterValidator(_some)] = FAMILIES
    max_draft_tokens: int = Field(default=8, ge=1, le=16)
    max_extra_memory: str | None = None
    require_speedup: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    storage: str | None = None
    restart: bool = False
    system: str | None = None
    prompt_field: str | None = None
    skip_bad_lines: bool = False
    template_kwargs: dict[str, object] = Field(default_factory=dict)
