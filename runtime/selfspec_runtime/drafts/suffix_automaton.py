"""A suffix automaton of a growing text (Blumer et al. 1985; for drafting: Hu et al., SAM-Decoding, 2411.10666)."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Contexts of a token that are counted, from the longest on. Only text that repeats itself over and over has more.
MAX_CONTEXTS = 64

#: Memory of one state, as CPython 3.11 holds it: the object, a dictionary of mostly one entry, a token in the text.
STATE_BYTES = 360


@dataclass(slots=True, eq=False)
class State:
    """All suffixes of some beginning of the text that end at the same places.

    Attributes:
        length: Length of the longest of them.
        link: The state of the longest suffix that ends at more places; None for the empty text's state.
        next: For each token the state of what it makes of these suffixes.
        likeliest: The token that most often followed, the latest of equals; None if none has followed yet.
        total: How often a token followed.
        counts: How often each token followed; None while it was always the same.
    """

    length: int
    link: State | None = None
    next: dict[int, State] = field(default_factory=dict)
    likeliest: int | None = None
    total: int = 0
    counts: dict[int, int] | None = None

    def followed_by(self, token: int) -> None:
        """Counts a token that follows."""
        self.total += 1
        if self.counts is None:
            if self.likeliest is None or self.likeliest == token:
                self.likeliest = token
                return
            self.counts = {self.likeliest: self.total - 1}
        count = self.counts[token] = self.counts.get(token, 0) + 1
        if self.likeliest is None or count >= self.counts[self.likeliest]:
            self.likeliest = token

    @property
    def share(self) -> float:
        """Share of the likeliest token among those that followed."""
        if self.counts is None or self.likeliest is None:
            return 1.0
        return self.counts[self.likeliest] / self.total

    def copied(self, length: int) -> State:
        """The same places, for shorter suffixes."""
        counts = None if self.counts is None else dict(self.counts)
        return State(length, self.link, dict(self.next), self.likeliest, self.total, counts)


class SuffixAutomaton:
    """Knows every part of a text; takes a token in in constant time on average.

    Attributes:
        num_states: At most two per token.
    """

    def __init__(self) -> None:
        self._root = State(0)
        self._last = self._root
        self._ids: list[int] = []
        self._followed: list[int] | None = None
        self.num_states = 1

    @property
    def num_bytes(self) -> int:
        """Memory held, about."""
        return STATE_BYTES * self.num_states

    @property
    def match_length(self) -> int:
        """Length of the longest end of the text that occurs earlier in it, too."""
        return 0 if self._last.link is None else self._last.link.length

    def holds_beginning_of(self, ids: list[int]) -> bool:
        """Whether these ids go on from what was taken in."""
        known = len(self._ids)
        if ids is self._followed and len(ids) >= known:  # the same list, which only grows
            return True
        return ids[:known] == self._ids

    def extend_to(self, ids: list[int]) -> None:
        """Takes in what ids hold beyond the text.

        Args:
            ids: The text so far and more; it may grow afterwards, and otherwise may not change.
        """
        for token in ids[len(self._ids) :]:
            self.append(token)
        self._followed = ids

    def let_go(self) -> None:
        """Takes nothing for granted of the list that was followed; the next one is compared."""
        self._followed = None

    def append(self, token: int) -> None:
        """Takes a token in."""
        self._count(token)
        self._extend(token)
        self._ids.append(token)

    def continuation(self, max_tokens: int, *, min_probability: float = 0.0) -> list[int]:
        """What most often followed the longest match, token after token.

        Args:
            max_tokens: Most tokens wanted.
            min_probability: Ends where the product of the tokens' shares falls below it.

        Returns:
            Token ids; none if nothing matches. Where the walk reaches the text's own end, the text repeats itself,
            and the walk goes on as it began.
        """
        return self._walk(self._last.link, max_tokens, min_probability)

    def match_after(self, extra: list[int]) -> tuple[State, int]:
        """The longest end of the text with these tokens after it that occurs in the text itself.

        Returns:
            Its state and its length; the root and 0 if there is none.
        """
        state, length = self._last, self._last.length
        for token in extra:
            while token not in state.next and state.link is not None:
                state = state.link
                length = state.length
            known = state.next.get(token)
            state, length = (self._root, 0) if known is None else (known, length + 1)
        return state, length

    def continuation_after(self, state: State, max_tokens: int, *, min_probability: float = 0.0) -> list[int]:
        """What most often followed a match that :meth:`match_after` found, as :meth:`continuation` tells it."""
        return self._walk(self._last.link if state is self._last else state, max_tokens, min_probability)

    def _walk(self, state: State | None, max_tokens: int, min_probability: float) -> list[int]:
        found: list[int] = []
        probability = 1.0
        while state is not None and state.likeliest is not None and state is not self._root:
            probability *= state.share
            if probability < min_probability or len(found) == max_tokens:
                break
            found.append(state.likeliest)
            state = state.next[state.likeliest]
            if state is self._last:
                state = self._last.link
        return found

    def _count(self, token: int) -> None:
        state: State | None = self._last
        for _ in range(MAX_CONTEXTS):
            if state is None or state is self._root:
                return
            state.followed_by(token)
            state = state.link

    def _extend(self, token: int) -> None:
        new = self._new(State(self._last.length + 1))
        state: State | None = self._last
        while state is not None and token not in state.next:
            state.next[token] = new
            state = state.link
        new.link = self._root if state is None else self._ending_with(token, state)
        self._last = new

    def _ending_with(self, token: int, before: State) -> State:
        """The state of exactly what ``before`` and a token make; split off from a longer one where need be."""
        found = before.next[token]
        if found.length == before.length + 1:
            return found
        split = self._new(found.copied(before.length + 1))
        found.link = split
        state: State | None = before
        while state is not None and state.next.get(token) is found:
            state.next[token] = split
            state = state.link
        return split

    def _new(self, state: State) -> State:
        self.num_states += 1
        return state
