"""When drafting ahead pays (Speculative Speculative Decoding, 2603.03251, theorem 7)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AheadTimes:
    """What rounds take, each in units of a verification beside which nothing runs.

    Attributes:
        hit_rate: Share of the verifications whose outcome had been prepared for.
        prepare: From the start of the verification until its outcome's draft is prepared, where it is.
        backup: Drafting after a miss.
        draft: Drafting where nothing is prepared.
        verify: A verification with the preparation beside it; above 1 where the two hinder each other.
    """

    hit_rate: float
    prepare: float
    backup: float
    draft: float
    verify: float = 1.0

    @property
    def mean_round(self) -> float:
        """Mean length of a round that drafts ahead."""
        hit = max(self.verify, self.prepare)
        return self.hit_rate * hit + (1.0 - self.hit_rate) * (self.verify + self.backup)

    @property
    def gain(self) -> float:
        """Speed of drafting ahead over drafting and verifying in turn, where both draft the same tokens."""
        return (1.0 + self.draft) / self.mean_round

    def speedup(self, *, tokens_hit: float, tokens_miss: float) -> float:
        """Speed over plain decoding, by theorem 7.

        Args:
            tokens_hit: Mean tokens of a round whose draft was prepared.
            tokens_miss: Mean tokens of a round with a backup draft.
        """
        tokens = self.hit_rate * tokens_hit + (1.0 - self.hit_rate) * tokens_miss
        return tokens / self.mean_round
