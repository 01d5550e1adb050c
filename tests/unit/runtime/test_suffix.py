"""Lookup of the longest end of a text, against a search through all of it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts import round_context
from tests.support.tiny_models import tiny_target

from selfspec_runtime.drafts.corpus import MAX_MATCH, PLACES_NAME, TOKENS_NAME, CorpusTable, corpus_arrays
from selfspec_runtime.drafts.suffix import SuffixSource, SuffixSpec
from selfspec_runtime.drafts.suffix_automaton import SuffixAutomaton
from selfspec_runtime.errors import PlanError
from selfspec_runtime.sequence import Sequence

#: Few different tokens, so that ends return.
TOKEN = st.integers(0, 2)
TEXT = st.lists(TOKEN, max_size=40)
TEXTS = st.lists(st.lists(TOKEN, min_size=1, max_size=20), max_size=5)


def places_after(text: list[int], part: list[int]) -> list[int]:
    """Places of the tokens that follow a part of a text."""
    width = len(part)
    return [end for end in range(width, len(text)) if text[end - width : end] == part]


def longest_end(text: list[int], ids: list[int]) -> list[int]:
    """The longest end of some ids that a token follows in a text."""
    return next((ids[start:] for start in range(len(ids)) if places_after(text, ids[start:])), [])


def searched(text: list[int], max_tokens: int) -> list[int]:
    """The most frequent continuation of the longest repeated end, the latest of equals, by looking everywhere."""
    first = part = longest_end(text, text)
    found: list[int] = []
    while first and len(found) < max_tokens:
        places = places_after(text, part)
        if not places:  # only the end of the text itself: it repeats itself
            part = first
            continue
        counts = Counter(text[place] for place in places)
        latest = {text[place]: place for place in places}
        found.append(max(counts, key=lambda token: (counts[token], latest[token])))
        part = [*part, found[-1]]
    return found


def automaton_of(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend_to(text)
    return automaton


@given(text=TEXT, max_tokens=st.integers(0, 9))
def test_the_automaton_finds_what_a_search_finds(text: list[int], max_tokens: int) -> None:
    automaton = automaton_of(text)
    assert automaton.match_length == len(longest_end(text, text))
    assert automaton.continuation(max_tokens) == searched(text, max_tokens)
    assert automaton.num_states <= max(2 * len(text), 1) + 1


@given(text=TEXT, cuts=st.lists(st.integers(0, 40), max_size=6).map(sorted))
def test_a_text_that_comes_in_pieces_is_found_alike(text: list[int], cuts: list[int]) -> None:
    automaton = SuffixAutomaton()
    for cut in [*cuts, len(text)]:
        assert automaton.holds_beginning_of(text[:cut])
        automaton.extend_to(text[:cut])
        assert automaton.continuation(4) == searched(text[:cut], 4)


@given(text=TEXT, probability=st.floats(0, 1))
def test_a_continuation_ends_where_it_gets_improbable(text: list[int], probability: float) -> None:
    found, whole = automaton_of(text).continuation(6, min_probability=probability), searched(text, 6)
    assert found == whole[: len(found)]
    part, likely = longest_end(text, text), 1.0
    for token in whole[: len(found) + 1]:
        places = places_after(text, part)
        if not places:
            return  # the text repeats itself; what its shares are is the first round's business
        likely *= sum(text[place] == token for place in places) / len(places)
        part = [*part, token]
        if len(part) - len(longest_end(text, text)) > len(found):
            assert likely < probability
        else:
            assert likely >= probability


@given(texts=TEXTS, ids=TEXT, max_tokens=st.integers(1, 6))
def test_the_table_finds_what_a_search_finds(texts: list[list[int]], ids: list[int], max_tokens: int) -> None:
    table = CorpusTable(*corpus_arrays(texts))
    found = table.match(ids)
    ends = [longest_end(text, ids[-MAX_MATCH:]) for text in texts]
    longest = max(ends, key=len, default=[])
    assert found.length == len(longest)
    part, expected = longest, []
    while longest and len(expected) < max_tokens:
        following = Counter(
            text[end] if end < len(text) else -1
            for text in texts
            for end in range(len(part), len(text) + (len(part) > len(longest)))
            if text[end - len(part) : end] == part
        )
        token = max(following, key=lambda token: (following[token], -token))
        if token == -1:
            break
        expected.append(token)
        part = [*part, token]
    assert table.continuation(found, max_tokens) == expected


def test_a_text_that_repeats_one_token_costs_a_bounded_count_per_token() -> None:
    automaton = automaton_of([7] * 2000)
    assert automaton.match_length == 1999
    assert automaton.continuation(5) == [7] * 5
    assert automaton.num_states == 2001


def test_the_bytes_are_about_those_that_are_held() -> None:
    generator = torch.Generator().manual_seed(0)
    automaton = automaton_of(torch.randint(0, 300, (3000,), generator=generator).tolist())
    states, waiting = set(), [automaton._root]
    while waiting:
        state = waiting.pop()
        if id(state) not in states:
            states.add(id(state))
            waiting += state.next.values()
    held = _held(automaton)
    assert len(states) == automaton.num_states
    assert 0.5 < automaton.num_bytes / held < 2


def _held(automaton: SuffixAutomaton) -> int:
    seen, waiting, held = set(), [automaton._root], 0
    while waiting:
        state = waiting.pop()
        if id(state) in seen:
            continue
        seen.add(id(state))
        waiting += state.next.values()
        held += sys.getsizeof(state) + sys.getsizeof(state.next) + 28
        held += 0 if state.counts is None else sys.getsizeof(state.counts)
    return held


def drafted(source: SuffixSource, ids: list[int], *, budget: int = 8) -> list[int]:
    context = replace(round_context(budget=budget), sequence=Sequence(ids, device=torch.device("cpu")))
    return source.propose(context).token_ids


@pytest.mark.parametrize(("per_match", "length"), [(0.4, 1), (1.0, 2), (1.6, 4), (16.0, 8)])
def test_a_longer_match_is_drafted_further(per_match: float, length: int) -> None:
    source = SuffixSource(SuffixSpec(tokens_per_match=per_match))
    ids = [1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2]
    assert drafted(source, ids) == ids[2 : 2 + length]


def test_a_match_that_is_too_short_drafts_nothing() -> None:
    assert drafted(SuffixSource(SuffixSpec(min_match=3)), [1, 2, 3, 1, 2]) == []
    assert drafted(SuffixSource(SuffixSpec(min_match=2)), [1, 2, 3, 1, 2]) == [3, 1, 2, 3]


def test_the_most_frequent_continuation_is_drafted_and_not_the_latest() -> None:
    assert drafted(SuffixSource(SuffixSpec(tokens_per_match=1)), [1, 5, 1, 5, 1, 6, 1]) == [5]
    assert drafted(SuffixSource(SuffixSpec(min_probability=0.7)), [1, 5, 1, 5, 1, 6, 1]) == []


def arrays_of(*texts: list[int]) -> dict[str, torch.Tensor]:
    tokens, places = corpus_arrays(texts)
    return {TOKENS_NAME: torch.from_numpy(tokens), PLACES_NAME: torch.from_numpy(places)}


def test_the_corpus_is_asked_where_it_matches_longer() -> None:
    spec = SuffixSpec(corpus=True, tokens_per_match=1)
    source = spec.build(tiny_target("llama"), arrays_of([4, 5, 6, 7, 8, 9], [3, 1, 2]))
    assert drafted(source, [40, 4, 5, 6]) == [7, 8, 9]
    assert drafted(source, [1, 9, 9, 3, 1]) == [2], "two tokens there against one here"
    assert drafted(source, [3, 1, 9, 9, 3, 1]) == [9, 9], "as long a match in the text itself comes first"


def test_the_corpus_is_counted_and_refused_where_it_is_missing() -> None:
    arrays = arrays_of(list(range(100)))
    source = SuffixSpec(corpus=True).build(tiny_target("llama"), arrays)
    alone = SuffixSpec().build(tiny_target("llama"), {})
    assert source.extra_bytes - alone.extra_bytes == 4 * (102 + 99)
    before = alone.extra_bytes
    drafted(alone, list(range(50)))
    assert alone.extra_bytes > before, "the automaton is counted too"
    with pytest.raises(PlanError, match="table of calibration texts is missing"):
        SuffixSpec(corpus=True).build(tiny_target("llama"), {})
    broken = {**arrays, PLACES_NAME: arrays[PLACES_NAME] + 50}
    with pytest.raises(PlanError, match="places that it has not"):
        SuffixSpec(corpus=True).build(tiny_target("llama"), broken)
    assert SuffixSpec(corpus=True).array_names() == tuple(arrays)
    assert SuffixSpec().array_names() == ()


def test_a_chats_next_turn_keeps_what_it_knows_and_another_text_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_in: list[int] = []
    append = SuffixAutomaton.append
    monkeypatch.setattr(SuffixAutomaton, "append", lambda self, token: (taken_in.append(token), append(self, token))[1])
    source = SuffixSource(SuffixSpec())
    drafted(source, [5, 6, 7, 5, 6])
    source.reset()
    assert drafted(source, [5, 6, 7, 5, 6, 8, 5]) == [6, 8]
    assert taken_in == [5, 6, 7, 5, 6, 8, 5]
    source.reset()
    assert drafted(source, [1, 5, 2, 1]) == [5, 2]
    assert drafted(source, [1, 5]) == []


def test_a_sequence_that_grows_is_followed_without_being_compared() -> None:
    source, sequence = SuffixSource(SuffixSpec(tokens_per_match=1)), Sequence([1, 2, 3], device=torch.device("cpu"))
    context = replace(round_context(budget=8), sequence=sequence)
    assert source.propose(context).token_ids == []
    for token in (1, 2):
        sequence.append(token)
    assert source.propose(context).token_ids == [3, 1]


def test_it_says_what_it_looks_up() -> None:
    assert SuffixSpec().describe() == "longest suffix from 1"
    spec = SuffixSpec(min_match=2, corpus=True, num_draft_tokens=7)
    assert spec.describe() == "longest suffix from 2, corpus, 7 drafts"
    unusual = SuffixSpec(min_probability=0.3, tokens_per_match=4)
    assert unusual.describe() == "longest suffix from 1 while sure of 0.30, 4 per match"
