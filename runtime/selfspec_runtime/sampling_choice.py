"""Which sampling law a generation gets: what was asked for, and the model's own where nothing was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfspec_runtime.sampling import SamplingSettings


@dataclass(frozen=True, kw_only=True)
class SamplingChoice:
    """What somebody asked for; None leaves it to the model's generation config.

    Attributes:
        temperature: 0 is greedy; None with another filter given means 1 where the model is greedy by itself.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
        min_p: 0 keeps all tokens.
        seed: Same seed, same text.
        mode: ``rejection``, or ``match`` for the text that plain decoding with this seed gives.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    mode: Literal["rejection", "match"] = "rejection"

    def over(self, own: SamplingSettings) -> SamplingSettings:
        """The law, given the model's own.

        Raises:
            UsageError: A value is outside of its range.
        """
        filtered = any(value is not None for value in (self.top_k, self.top_p, self.min_p))
        implied = 1.0 if own.greedy and filtered else own.temperature
        return SamplingSettings(
            temperature=implied if self.temperature is None else self.temperature,
            top_k=own.top_k if self.top_k is None else self.top_k or None,
            top_p=own.top_p if self.top_p is None else self.top_p,
            min_p=own.min_p if self.min_p is None else self.min_p,
            seed=self.seed,
            mode=self.mode,
        )
