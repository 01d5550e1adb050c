"""Lookup of the longest end of the text, in the text itself and in the calibration's texts.

After SAM-Decoding (Hu et al. 2411.10666) and SuffixDecoding (Oliaro et al. 2411.04975): no limit to the match's
length, drafts as long as the match deserves, and the continuation that was seen most often.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selfspec_runtime.drafts.corpus import MAX_MATCH, PLACES_NAME, TOKENS_NAME, CorpusTable
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.source import DraftSource, RoundContext, SourceSpec
from selfspec_runtime.drafts.suffix_automaton import SuffixAutomaton

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target


class SuffixLookup:
    """What follows the longest end of a growing text.

    A function of the text alone: what was taken in before is kept only where the next text goes on from it.

    Args:
        spec: What to look up.
        corpus: The calibration's texts, or None.
    """

    def __init__(self, spec: SuffixSpec, corpus: CorpusTable | None) -> None:
        self._spec, self._corpus = spec, corpus
        self._automaton = SuffixAutomaton()
        self._ids: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Memory of the corpus, and of what was taken in of the text."""
        return self._automaton.num_bytes + (0 if self._corpus is None else self._corpus.num_bytes)

    def extend_to(self, ids: list[int]) -> None:
        """Takes the text in, as far as it is new."""
        if not self._automaton.holds_beginning_of(ids):
            self._automaton = SuffixAutomaton()
        self._automaton.extend_to(ids)
        self._ids = ids

    def let_go(self) -> None:
        """The next text may be another one."""
        self._automaton.let_go()

    def continuation(self, max_tokens: int) -> list[int]:
        """What followed the longest match; a match in the text itself is preferred to an equal one elsewhere."""
        spec, length = self._spec, self._automaton.match_length
        found = None if self._corpus is None else self._corpus.match(self._ids)
        if self._corpus is not None and found is not None and found.length > length:
            limit = self._limit(found.length, max_tokens)
            return self._corpus.continuation(found, limit, min_probability=spec.min_probability)
        return self._automaton.continuation(self._limit(length, max_tokens), min_probability=spec.min_probability)

    def continuation_after(self, extra: list[int], max_tokens: int) -> list[int]:
        """What :meth:`continuation` would return if these ids followed the text, but for what they add to it."""
        spec, (state, length) = self._spec, self._automaton.match_after(extra)
        ids = [*self._ids[-MAX_MATCH:], *extra]
        found = None if self._corpus is None else self._corpus.match(ids)
        if self._corpus is not None and found is not None and found.length > length:
            limit = self._limit(found.length, max_tokens)
            return self._corpus.continuation(found, limit, min_probability=spec.min_probability)
        limit = self._limit(length, max_tokens)
        return self._automaton.continuation_after(state, limit, min_probability=spec.min_probability)

    def _limit(self, length: int, max_tokens: int) -> int:
        if length < self._spec.min_match:
            return 0
        return min(max_tokens, math.ceil(self._spec.tokens_per_match * length))


class SuffixSource(DraftSource):
    """Drafts by lookup; costs no pass.

    Args:
        spec: What to look up, and how much to draft.
        corpus: The calibration's texts, or None.
    """

    origin = "suffix"

    def __init__(self, spec: SuffixSpec, corpus: CorpusTable | None = None) -> None:
        self._spec, self._corpus = spec, corpus
        self.num_draft_tokens = spec.num_draft_tokens
        self._lookup = self.lookahead()

    def lookahead(self) -> SuffixLookup:
        """A new, empty lookup with the same settings; the calibration's texts are shared."""
        return SuffixLookup(self._spec, self._corpus)

    def propose(self, context: RoundContext) -> Draft:
        """Looks the end of the committed text up; what was drafted and rejected is never taken in."""
        self._lookup.extend_to(context.sequence.ids)
        own = self._spec.num_draft_tokens
        ids = self._lookup.continuation(context.budget if own is None else min(context.room, own))
        return Draft(token_ids=ids, probs=[None] * len(ids), origin="suffix")

    def reset(self) -> None:
        """Keeps what it knows of the text for one that goes on from it, as a chat's next turn does, and only then."""
        self._lookup.let_go()

    @property
    def extra_bytes(self) -> int:
        """Bytes of the corpus and, once it decodes, of the automaton."""
        return self._lookup.num_bytes


class SuffixSpec(SourceSpec):
    """Plan entry for the lookup of the longest match.

    Attributes:
        min_match: Shortest match to draft from.
        tokens_per_match: Most draft tokens per matched token.
        min_probability: A draft ends where the share of its continuation among those seen falls below it.
        num_draft_tokens: Own limit, or None for the controller's.
        corpus: Whether the calibration's texts are looked up too.
    """

    kind: Literal["suffix"] = "suffix"
    min_match: int = Field(default=1, ge=1, le=16)
    tokens_per_match: float = Field(default=2.0, gt=0, le=16)
    min_probability: float = Field(default=0.1, ge=0, le=1)
    num_draft_tokens: int | None = Field(default=None, ge=1, le=64)
    corpus: bool = False

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> SuffixSource:
        """Makes the source."""
        del target
        return SuffixSource(self, self.corpus_of(arrays))

    def corpus_of(self, arrays: Mapping[str, Tensor]) -> CorpusTable | None:
        """The texts that are looked up beside the running one.

        Raises:
            PlanError: The arrays hold none, and the plan wants them.
        """
        return CorpusTable.of(arrays) if self.corpus else None

    def validate_for(self, num_layers: int) -> None:
        """Any model will do."""

    def describe(self) -> str:
        """For example ``longest suffix from 2 while sure of 0.30, corpus, 16 drafts``; defaults go unsaid."""
        unusual = self.model_dump(exclude_defaults=True)
        sure = f" while sure of {self.min_probability:.2f}" if "min_probability" in unusual else ""
        reach = f", {self.tokens_per_match:g} per match" if "tokens_per_match" in unusual else ""
        corpus = ", corpus" if self.corpus else ""
        limit = f", {self.num_draft_tokens} drafts" if self.num_draft_tokens else ""
        return f"longest suffix from {self.min_match}{sure}{reach}{corpus}{limit}"

    def array_names(self) -> tuple[str, ...]:
        """The corpus, if it is looked up."""
        return (TOKENS_NAME, PLACES_NAME) if self.corpus else ()
