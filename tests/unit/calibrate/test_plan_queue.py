from __future__ import annotations

import warnings
from collections.abc import Sequence

import optuna
import pytest
from tests.support.plan_world import BEST, exit_plan, neighbours, speedup_of

from selfspec_calibrate.pair import PromptPair
from selfspec_calibrate.plan_queue import NUM_PARENTS, PlanQueue, StartedTrial
from selfspec_calibrate.trial_book import TrialBook
from selfspec_runtime.plan import DraftPlan

LEADERS: Sequence[tuple[DraftPlan, float | None]] = ((exit_plan(8), 1.4), (exit_plan(6, 4), None), (exit_plan(8), 1.1))


def _queue(seed: int = 0, leaders: Sequence[tuple[DraftPlan, float | None]] = LEADERS) -> PlanQueue:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    book = TrialBook(optuna.create_study(direction="maximize"))
    return PlanQueue(book=book, leaders=leaders, neighbours=neighbours, predict=lambda _plan: None, seed=seed)


def _settle(queue: PlanQueue, batch: list[StartedTrial]) -> None:
    for each in batch:
        value = speedup_of(each.plan)
        pair = PromptPair(prompt_id="a", kind="x", plain_s=value, plain_tokens=5, plan_s=1.0, plan_tokens=5)
        queue.book.record(each.trial, [pair])
        queue.book.complete(each.trial, value)


def _drain(queue: PlanQueue, *, most: int = 40) -> list[DraftPlan]:
    order = []
    while len(order) < most and (batch := queue.next(2)):
        order += [each.plan for each in batch]
        _settle(queue, batch)
    return order


def test_each_leader_comes_once_in_order() -> None:
    queue = _queue()
    assert [each.plan for each in queue.next(5)] == [exit_plan(8), exit_plan(6, 4)]


def test_then_come_neighbours_of_the_best_that_are_not_known() -> None:
    queue = _queue()
    _settle(queue, queue.next(2))
    batch = queue.next(2)
    possible = {*neighbours(exit_plan(8)), *neighbours(exit_plan(6, 4))}
    assert {each.plan for each in batch} <= possible
    assert len({each.plan for each in batch}) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_best_plan_is_reached_and_nothing_comes_twice(seed: int) -> None:
    order = _drain(_queue(seed))
    assert BEST in order
    assert len(set(order)) == len(order)


def test_a_seed_gives_one_order_and_another_seed_another() -> None:
    assert _drain(_queue(1)) == _drain(_queue(1)) != _drain(_queue(2))


def test_what_was_cut_short_comes_before_anything_new() -> None:
    queue = _queue()
    first, second = queue.next(2)
    queue.book.abandon(first.trial)
    _settle(queue, [second])
    assert [each.plan for each in queue.next(2)] == [first.plan]


def test_taken_up_again_it_keeps_the_parameters_that_the_sampler_chose() -> None:
    queue = _queue()
    _settle(queue, queue.next(2))
    (cut,) = queue.next(1)
    queue.book.abandon(cut.trial)
    (again,) = queue.next(1)
    assert again.plan == cut.plan
    assert again.trial.params == cut.trial.params
    assert set(cut.trial.params) == {"parent", "step"}
    assert 0 <= cut.trial.params["parent"] < NUM_PARENTS


def test_without_leaders_there_is_nothing_to_try() -> None:
    assert _queue(leaders=()).next(2) == []


def test_only_plans_that_can_draft_have_neighbours_worth_trying() -> None:
    queue = _queue(leaders=[(exit_plan(8), None)])
    (leader,) = queue.next(1)
    queue.book.fail(leader.trial, "no such layer")
    assert queue.next(1) == []


def test_optuna_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _drain(_queue(), most=10)


def test_a_seed_may_have_64_bits() -> None:
    assert len(_drain(_queue(seed=2**64 - 1), most=6)) >= 6
