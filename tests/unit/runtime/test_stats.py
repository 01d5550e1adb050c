"""Counts add up; rates are derived from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

ROUNDS = st.lists(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=12)


def recorded(rounds: list[tuple[int, int]]) -> AcceptanceStats:
    stats = AcceptanceStats()
    for drafted, accepted in rounds:
        stats.record(drafted=drafted, accepted=accepted, emitted=accepted + 1, draft_passes=drafted)
    return stats


@given(rounds=ROUNDS)
def test_a_round_is_counted_in_every_total(rounds: list[tuple[int, int]]) -> None:
    stats = recorded(rounds)
    accepted = [a for _, a in rounds]
    longest = max((drafted for drafted, _ in rounds), default=0)
    assert stats == AcceptanceStats(
        num_rounds=len(rounds),
        num_drafts=sum(drafted > 0 for drafted, _ in rounds),
        num_draft_tokens=sum(drafted for drafted, _ in rounds),
        num_accepted_tokens=sum(accepted),
        num_accepted_tokens_per_pos=[sum(a > place for a in accepted) for place in range(longest)],
        num_emitted_tokens=sum(accepted) + len(rounds),
        num_draft_passes=sum(drafted for drafted, _ in rounds),
    )
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens


def test_side_branches_are_drafted_tokens_at_the_places_of_the_chain() -> None:
    stats = AcceptanceStats()
    stats.record(drafted=7, depth=3, accepted=2, emitted=3, draft_passes=3)
    stats.record(drafted=3, depth=3, accepted=3, emitted=4, draft_passes=3)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (10, 5)
    assert stats.num_accepted_tokens_per_pos == [2, 2, 1]


@given(first=ROUNDS, second=ROUNDS)
def test_adding_runs_is_recording_them_one_after_the_other(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    total, other = recorded(first), recorded(second)
    total.add(other)
    assert total == recorded(first + second)
    assert other == recorded(second)


def test_rates_are_ratios_of_the_counts() -> None:
    stats = recorded([(4, 3), (4, 0), (0, 0)])
    assert stats.acceptance_rate == pytest.approx(3 / 8)
    assert stats.mean_acceptance_length == pytest.approx(6 / 3)


def test_without_a_draft_or_a_round_there_is_no_rate() -> None:
    assert AcceptanceStats().acceptance_rate is None
    assert AcceptanceStats().mean_acceptance_length is None
    assert recorded([(0, 0)]).acceptance_rate is None
    assert recorded([(0, 0)]).mean_acceptance_length == 1.0
    assert recorded([(3, 0)]).acceptance_rate == 0.0


def test_seconds_add_up_by_phase_and_decoding_is_all_but_the_prompt() -> None:
    seconds = PhaseSeconds(prefill=1.0, draft=2.0, verify=4.0, host=8.0)
    seconds.add(PhaseSeconds(prefill=0.5, draft=0.25, verify=0.125, host=0.0625))
    assert seconds == PhaseSeconds(prefill=1.5, draft=2.25, verify=4.125, host=8.0625)
    assert seconds.decode == 2.25 + 4.125 + 8.0625
