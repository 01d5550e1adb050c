"""The index of n-grams against a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selfspec_runtime.drafts.ngram import NgramIndex, NgramSpec

#: Few different tokens, so that n-grams return.
TEXT = st.lists(st.integers(0, 2), max_size=40)
LENGTHS = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted)


def searched(ids: list[int], min_match: int, max_match: int, max_tokens: int) -> list[int]:
    """The latest earlier occurrence of the longest n-gram at the end, by looking everywhere."""
    for length in range(max_match, min_match - 1, -1):
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start : start + length] == ids[len(ids) - length :]:
                return ids[start + length : start + length + max_tokens]
    return []


@given(text=TEXT, lengths=LENGTHS, max_tokens=st.integers(1, 9))
def test_the_index_finds_what_a_search_finds(text: list[int], lengths: list[int], max_tokens: int) -> None:
    index = NgramIndex(*lengths)
    index.extend_to(text)
    assert index.continuation(max_tokens) == searched(text, *lengths, max_tokens)


@given(text=TEXT, cuts=st.lists(st.integers(0, 40), max_size=6).map(sorted), lengths=LENGTHS)
def test_a_text_that_comes_in_pieces_is_found_alike(text: list[int], cuts: list[int], lengths: list[int]) -> None:
    index = NgramIndex(*lengths)
    for cut in [*cuts, len(text)]:
        index.extend_to(text[:cut])
        assert index.continuation(4) == searched(text[:cut], *lengths, 4)


@given(first=TEXT, second=TEXT, lengths=LENGTHS)
def test_another_text_leaves_nothing_of_the_one_before(first: list[int], second: list[int], lengths: list[int]) -> None:
    index = NgramIndex(*lengths)
    index.extend_to(first)
    index.extend_to(second)
    assert index.continuation(4) == searched(second, *lengths, 4)


def test_it_says_what_it_looks_up() -> None:
    assert NgramSpec().describe() == "n-gram 1-3"
    assert NgramSpec(min_match=2, max_match=5, num_draft_tokens=7).describe() == "n-gram 2-5, 7 drafts"
