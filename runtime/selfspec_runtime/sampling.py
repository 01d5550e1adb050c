"""How a token is chosen from the target's logits, as the user asked for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from selfspec_runtime.errors import UsageError

SMALLEST_TEMPERATURE = 1e-20
"""Below it, logits of an ordinary size overflow float32 when divided; use 0, greedy decoding."""


@dataclass(frozen=True)
class SamplingSettings:
    """The sampling law and its seed.

    Attributes:
        temperature: Divides the logits; 0 is greedy decoding.
        top_k: Keep the tokens that are not below the k-th largest logit; None keeps all.
        top_p: Keep the smallest set of likeliest tokens that holds this much probability; None keeps all.
        min_p: Keep tokens at least this likely relative to the likeliest one; None keeps all.
        seed: Key of the noise, 0..2**64 - 1: same seed, same text.
        mode: ``rejection`` (most drafts accepted) or ``match`` (the text that plain decoding with this seed
            gives, whatever is drafted).

    Raises:
        UsageError: A value is outside of its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    mode: Literal["rejection", "match"] = "rejection"

    def __post_init__(self) -> None:
        usable = self.temperature == 0 or SMALLEST_TEMPERATURE <= self.temperature < math.inf
        _require(usable, "temperature", self.temperature, f"use 0 (greedy) or {SMALLEST_TEMPERATURE} and more")
        _require(
            self.top_k is None or _is_int(self.top_k, 1),
            "top_k",
            self.top_k,
            "use an integer from 1 on, or 0 for all tokens",
        )
        _require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "use 0 < top_p <= 1")
        _require(self.min_p is None or 0 <= self.min_p < 1, "min_p", self.min_p, "use 0 <= min_p < 1")
        seed_fits = _is_int(self.seed, 0) and self.seed < 2**64
        _require(seed_fits, "seed", self.seed, "use an integer in 0..2**64 - 1")
        _require(self.mode in ("rejection", "match"), "mode", self.mode, "use 'rejection' or 'match'")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken and nothing is drawn."""
        return self.temperature == 0

    def describe(self) -> str:
        """Return the settings in one line, with only those that have an effect."""
        if self.greedy:
            return "greedy"
        named = (("top-k", self.top_k), ("top-p", self.top_p), ("min-p", self.min_p))
        filters = [f"{name} {value:g}" for name, value in named if value is not None]
        return ", ".join([f"temperature {self.temperature:g}", *filters, f"seed {self.seed}", self.mode])


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise UsageError(f"{name} is {value!r} in the sampling settings: {remedy}.")


def _is_int(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
