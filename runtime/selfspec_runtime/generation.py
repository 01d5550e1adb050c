"""How to generate, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling import SamplingSettings

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds
    from selfspec_runtime.stopping import Criterion, FinishReason

GREEDY = SamplingSettings()


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to generate.

    Attributes:
        max_new_tokens: Most tokens to generate.
        sampling: Temperature, filters, seed; greedy by default.
        eos_token_ids: Ids that end a generation.
        stop: Strings that end it.
        criteria: Functions of all token ids that end it.
        processors: Configuration whose history-dependent processors apply, or None for none.
        skip_special_tokens: Whether markers such as ``<|im_end|>`` are left out of the text.
        synthetic_acceptance: Probability with which each draft token stands, whatever the model says, to cost a shape
            without its weights; the text is then not the model's, and only its length ends it. None is decoding.
    """

    max_new_tokens: int = 256
    sampling: SamplingSettings = GREEDY
    eos_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    processors: GenerationConfig | None = None
    skip_special_tokens: bool = True
    synthetic_acceptance: float | None = None

    def __post_init__(self) -> None:
        """Validates.

        Raises:
            UsageError: ``max_new_tokens`` is not positive, a stop string is empty, or the synthetic acceptance is no
                probability or does not go with drawn tokens.
        """
        if self.max_new_tokens < 1:
            message = f"max_new_tokens is {self.max_new_tokens}; ask for at least 1."
            raise UsageError(message)
        if any(not stop for stop in self.stop):
            message = "A stop string is empty, which would end every text at once. Leave it out."
            raise UsageError(message)
        if self.synthetic_acceptance is not None:
            _check_synthetic(self.synthetic_acceptance, self.sampling)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A finished generation.

    Attributes:
        token_ids: Generated ids, an ending token included.
        text: Their text.
        finish_reason: What ended it.
        stats: Counts over all rounds after the first token.
        seconds: Where the time went.
        notices: What the user should know, in sentences.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stats: AcceptanceStats
    seconds: PhaseSeconds
    notices: tuple[str, ...] = ()


def _check_synthetic(acceptance: float, sampling: SamplingSettings) -> None:
    if not 0 <= acceptance <= 1:
        message = f"The synthetic acceptance is {acceptance}, and it is a probability: give a number from 0 to 1."
        raise UsageError(message)
    if not sampling.greedy:
        message = "A synthetic acceptance goes with greedy decoding only. Set the temperature to 0."
        raise UsageError(message)
