"""Counts of a run. Rates are derived: counts add up over prompts, means of ratios do not."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class AcceptanceStats:
    """Counters under vLLM's names.

    Attributes:
        num_rounds: Verification passes, plain steps included.
        num_drafts: Rounds that drafted at least one token.
        num_draft_tokens: Draft tokens proposed, all nodes of a tree.
        num_accepted_tokens: Draft tokens that the target accepted, the accepted path of a tree.
        num_accepted_tokens_per_pos: For each place in a draft, which is the depth in a tree, how often a token of it
            was accepted.
        num_emitted_tokens: Tokens committed, bonus and corrected ones included.
        num_draft_passes: Passes of the draft.
    """

    num_rounds: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_emitted_tokens: int = 0
    num_draft_passes: int = 0

    def record(self, *, drafted: int, accepted: int, emitted: int, draft_passes: int, depth: int | None = None) -> None:
        """Adds a round.

        Args:
            drafted: Draft tokens, side branches included.
            accepted: Those that stand.
            emitted: Tokens committed.
            draft_passes: Passes of the draft.
            depth: Length of the longest path through the draft; all of it, a chain, by default.
        """
        self.num_rounds += 1
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.num_emitted_tokens += emitted
        self.num_draft_passes += draft_passes
        missing = (drafted if depth is None else depth) - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for place in range(accepted):
            self.num_accepted_tokens_per_pos[place] += 1

    def add(self, other: AcceptanceStats) -> None:
        """Adds another run's counts."""
        for name in ("num_rounds", "num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.num_emitted_tokens += other.num_emitted_tokens
        self.num_draft_passes += other.num_draft_passes
        longest = max(len(self.num_accepted_tokens_per_pos), len(other.num_accepted_tokens_per_pos))
        mine = self.num_accepted_tokens_per_pos + [0] * (longest - len(self.num_accepted_tokens_per_pos))
        theirs = other.num_accepted_tokens_per_pos + [0] * (longest - len(other.num_accepted_tokens_per_pos))
        self.num_accepted_tokens_per_pos = [a + b for a, b in zip(mine, theirs, strict=True)]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens emitted per round, the target's own included; None before the first round."""
        return self.num_emitted_tokens / self.num_rounds if self.num_rounds else None


@dataclass
class PhaseSeconds:
    """Where the time of a run went, in seconds.

    Attributes:
        prefill: The prompt's pass, up to the first token.
        draft: Drafting.
        verify: The target's passes after the prompt, plain steps included.
        host: Everything else between rounds: acceptance, stopping, bookkeeping.
    """

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    host: float = 0.0

    @property
    def decode(self) -> float:
        """Everything after the first token."""
        return self.draft + self.verify + self.host

    def add(self, other: PhaseSeconds) -> None:
        """Adds another run's seconds."""
        self.prefill += other.prefill
        self.draft += other.draft
        self.verify += other.verify
        self.host += other.host
