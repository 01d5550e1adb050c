"""When a generation ends, decided after every committed token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from selfspec_runtime.detokenizer import REPLACEMENT, decode_exactly
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from selfspec_runtime.sequence import Sequence

FinishReason = Literal["eos", "stop", "criterion", "length"]

#: A user's criterion: sees all token ids and says whether to stop after the last one.
Criterion = Callable[[list[int]], bool]

#: Tokens decoded together when looking for a stop string; longer than any token's reach back.
TAIL_SLACK = 4

#: Bytes of the longest character in UTF-8.
LONGEST_CHARACTER = 4


@dataclass(frozen=True, kw_only=True)
class StopConditions:
    """What ends a generation; the earliest one wins, and at one token the order below decides.

    Attributes:
        eos_token_ids: Any of these ends it ("eos").
        stop: The text so far contains one of these ("stop"); only generated text counts.
        criteria: A user's functions ("criterion").
        max_new_tokens: Number of generated tokens ("length").
        max_positions: Context length, prompt included ("length"); None for no limit.
    """

    eos_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    max_new_tokens: int = 256
    max_positions: int | None = None


class Stopper:
    """Checks the conditions for one generation.

    Args:
        conditions: What ends it.
        tokenizer: Needed for stop strings only.

    Raises:
        UsageError: There are stop strings, but no tokenizer.
    """

    def __init__(self, conditions: StopConditions, tokenizer: PreTrainedTokenizerBase | None) -> None:
        if conditions.stop and tokenizer is None:
            message = "Stop strings are found in text, and there is no tokenizer: pass one, or stop at token ids."
            raise UsageError(message)
        self.conditions = conditions
        self.tokenizer = tokenizer
        self._eos = frozenset(conditions.eos_token_ids)
        self._reach = max((len(s.encode()) for s in conditions.stop), default=0) + TAIL_SLACK

    def room(self, sequence: Sequence) -> int:
        """How many draft tokens still fit: the token that follows them must fit too."""
        conditions = self.conditions
        left = conditions.max_new_tokens - sequence.num_new
        if conditions.max_positions is not None:
            left = min(left, conditions.max_positions - len(sequence))
        return max(left - 1, 0)

    def check(self, sequence: Sequence) -> FinishReason | None:
        """The reason to end after the last token, or None."""
        conditions = self.conditions
        if sequence.ids[-1] in self._eos:
            return "eos"
        if conditions.stop and self._has_stop(sequence.new_ids):
            return "stop"
        if any(criterion(list(sequence.ids)) for criterion in conditions.criteria):
            return "criterion"
        full = conditions.max_positions is not None and len(sequence) >= conditions.max_positions
        return "length" if full or sequence.num_new >= conditions.max_new_tokens else None

    def _has_stop(self, new_ids: list[int]) -> bool:
        assert self.tokenizer is not None
        # A token is at least one byte of text, so a stop string that ends here starts within its own number
        # of bytes in tokens; the slack covers characters whose bytes are spread over several tokens.
        tail = self._tail(self.tokenizer, new_ids, 0)
        for more in range(1, LONGEST_CHARACTER):
            if not tail.startswith(REPLACEMENT):
                break
            # It began within a character; some tokenizers then show none of the bytes that follow.
            tail = self._tail(self.tokenizer, new_ids, more)
        return any(stop in tail for stop in self.conditions.stop)

    def _tail(self, tokenizer: PreTrainedTokenizerBase, new_ids: list[int], more: int) -> str:
        return decode_exactly(tokenizer, new_ids[-self._reach - more :], skip_special_tokens=False)
