"""The split into search and held-out prompts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_calibrate.prompts.prompt import Prompt, prompt_id
from selfspec_calibrate.prompts.split import split_held_out
from selfspec_runtime.errors import UsageError


def prompt(kind: str, number: int) -> Prompt:
    text = f"{kind} {number}"
    return Prompt(id=prompt_id(text=text), kind=kind, messages=None, text=text, line=number + 1, shape="text")


def prompts(**counts: int) -> list[Prompt]:
    return [prompt(kind, number) for kind, count in counts.items() for number in range(count)]


def kinds(side: list[Prompt]) -> Counter[str]:
    return Counter(item.kind for item in side)


COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1)
FRACTIONS = st.floats(0.01, 0.99)
BRIEF = settings(max_examples=80, deadline=None)


@BRIEF
@given(counts=COUNTS, fraction=FRACTIONS, seed=st.integers(0, 9))
def test_split_is_a_partition_with_every_kind_on_both_sides(counts: dict[str, int], fraction: float, seed: int) -> None:
    everything = prompts(**counts)
    search, held_out = split_held_out(everything, fraction=fraction, seed=seed)

    assert sorted(item.id for item in search + held_out) == sorted(item.id for item in everything)
    for kind, count in counts.items():
        if count > 1:
            assert kinds(search)[kind] >= 1
            assert kinds(held_out)[kind] >= 1
        elif len(everything) > len(counts):
            assert kinds(search)[kind] == 1


@BRIEF
@given(counts=COUNTS, fraction=FRACTIONS, random=st.randoms(use_true_random=False))
def test_order_of_the_file_does_not_matter(counts: dict[str, int], fraction: float, random: object) -> None:
    everything = prompts(**counts)
    shuffled = list(everything)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert split_held_out(shuffled, fraction=fraction) == split_held_out(everything, fraction=fraction)


@BRIEF
@given(count=st.integers(2, 30), fraction=FRACTIONS, added=st.integers(100, 200))
def test_one_more_prompt_moves_at_most_one_other(count: int, fraction: float, added: int) -> None:
    before = prompts(a=count, b=3)
    _, held_before = split_held_out(before, fraction=fraction)
    _, held_after = split_held_out([*before, prompt("a", added)], fraction=fraction)

    moved = {item.id for item in held_before} ^ {item.id for item in held_after}
    assert len(moved - {prompt("a", added).id}) <= 1
    assert kinds(held_before)["b"] == kinds(held_after)["b"]


@pytest.mark.parametrize(("fraction", "held_out"), [(0.5, 15), (0.1, 3), (0.3, 9), (0.34, 10), (0.01, 1), (0.99, 29)])
def test_fraction_is_the_held_out_share(fraction: float, held_out: int) -> None:
    sides = split_held_out(prompts(a=30), fraction=fraction)

    assert [len(side) for side in sides] == [30 - held_out, held_out]


def test_fraction_that_floats_miss_is_still_met() -> None:
    assert len(split_held_out(prompts(a=100), fraction=0.29)[1]) == 29


def test_seed_changes_the_split_and_nothing_else_does() -> None:
    everything = prompts(a=20)

    assert split_held_out(everything, seed=1) == split_held_out(everything, seed=1)
    assert {item.id for item in split_held_out(everything, seed=1)[0]} != {
        item.id for item in split_held_out(everything, seed=2)[0]
    }


def test_single_prompts_of_many_kinds_are_split_together() -> None:
    search, held_out = split_held_out(prompts(a=1, b=1, c=1, d=1))

    assert len(search) == len(held_out) == 2


def test_one_prompt_is_searched_on_and_none_is_nothing() -> None:
    assert [len(side) for side in split_held_out(prompts(a=1))] == [1, 0]
    assert split_held_out([]) == ([], [])


def test_beginning_of_each_side_is_a_fair_sample() -> None:
    search, held_out = split_held_out(prompts(a=40, b=40, c=20))

    for side in (search, held_out):
        assert kinds(side[:5]) == {"a": 2, "b": 2, "c": 1}
        assert kinds(side[:25]) == {"a": 10, "b": 10, "c": 5}


def test_rare_kind_does_not_crowd_the_beginning() -> None:
    for side in split_held_out(prompts(a=40, b=4)):
        assert [index for index, item in enumerate(side) if item.kind == "b"] == [5, 16]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="Give a number between 0 and 1"):
        split_held_out(prompts(a=4), fraction=fraction)
