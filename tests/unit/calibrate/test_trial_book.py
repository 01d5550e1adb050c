from __future__ import annotations

import optuna
import pytest
from tests.support.plan_world import BEST, exit_plan

from selfspec_calibrate.pair import PromptPair
from selfspec_calibrate.ranking import best_complete, num_fruitless, ranked, timed_plans
from selfspec_calibrate.trial_book import Origin, PlanEvidence, TrialBook, plan_key
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import PLAIN, DraftPlan


@pytest.fixture
def book() -> TrialBook:
    return TrialBook(optuna.create_study(direction="maximize"))


def _pair(prompt_id: str, ratio: float, *, plan_s: float = 1.0) -> PromptPair:
    return PromptPair(
        prompt_id=prompt_id, kind="chat", plain_s=ratio * plan_s, plain_tokens=10, plan_s=plan_s, plan_tokens=10
    )


def _started(book: TrialBook, plan: DraftPlan, *, origin: Origin = "leader") -> optuna.Trial:
    trial = book.study.ask()
    book.start(trial, plan, origin=origin, predicted=None)
    return trial


def _settle(book: TrialBook, plan: DraftPlan, ratio: float, *, origin: Origin = "leader") -> None:
    trial = _started(book, plan, origin=origin)
    book.record(trial, [_pair("a", ratio)])
    book.complete(trial, ratio)


def _of(book: TrialBook, plan: DraftPlan) -> PlanEvidence:
    return book.evidence()[plan_key(plan)]


def test_equal_plans_have_one_key_whatever_the_order_of_their_sets() -> None:
    one = DraftPlan(source=LayerSkipSpec(skip=LayerSkipSet(attention=frozenset([7, 1, 12]))))
    two = DraftPlan(source=LayerSkipSpec(skip=LayerSkipSet(attention=frozenset([12, 7, 1]))))
    assert plan_key(one) == plan_key(two) != plan_key(BEST)


def test_duplicates_are_averaged_into_one_result(book: TrialBook) -> None:
    for ratio in (1.2, 1.6):
        _settle(book, BEST, ratio)
    (timed,) = timed_plans(book.evidence().values(), num_prompts=1)
    assert timed.measured_speedup == pytest.approx(1.4)
    assert timed.num_runs == 2


def test_the_order_of_first_trials_is_kept(book: TrialBook) -> None:
    second = DraftPlan(source=LayerSkipSpec(skip=LayerSkipSet(attention=frozenset([7]))))
    for plan, ratio in ((BEST, 1.2), (second, 1.5), (BEST, 1.3)):
        _settle(book, plan, ratio)
    timed = timed_plans(book.evidence().values(), num_prompts=1)
    assert [(each.plan, each.order) for each in timed] == [(second, 1), (BEST, 0)]


def test_what_an_unfinished_trial_measured_is_kept(book: TrialBook) -> None:
    cut = _started(book, BEST)
    book.record(cut, [_pair("a", 1.5)])
    book.abandon(cut)
    assert not _of(book, BEST).is_settled
    again = _started(book, BEST)
    book.record(again, [_pair("b", 1.5)])
    book.complete(again, 1.5)
    found = _of(book, BEST)
    assert (found.outcome, found.num_runs, set(found.pairs)) == ("complete", 1, {"a", "b"})


def test_a_failed_plan_is_settled_with_its_reason(book: TrialBook) -> None:
    trial = _started(book, BEST)
    book.record(trial, [_pair("a", 9.0)])
    book.fail(trial, "NaN in layer 3")
    found = _of(book, BEST)
    assert (found.outcome, found.reason, found.is_settled) == ("failed", "NaN in layer 3", True)
    assert timed_plans(book.evidence().values(), num_prompts=1) == ()


def test_a_trial_that_was_killed_before_it_had_a_plan_counts_for_nothing(book: TrialBook) -> None:
    book.study.ask()
    assert book.evidence() == {}


def test_plans_that_went_through_all_prompts_come_first(book: TrialBook) -> None:
    lucky = _started(book, exit_plan(9))
    book.record(lucky, [_pair("a", 3.0)])
    book.prune(lucky)
    _settle(book, exit_plan(4), 1.2)
    _settle(book, exit_plan(5), 1.4)
    order = [each.plan for each in ranked(book.evidence().values())]
    assert order == [exit_plan(5), exit_plan(4), exit_plan(9)]
    assert best_complete(book.evidence().values()).plan == exit_plan(5)


def test_what_is_slower_than_plain_decoding_is_nobodys_best(book: TrialBook) -> None:
    _settle(book, BEST, 0.9)
    assert best_complete(book.evidence().values()) is None


def test_plain_decoding_has_its_place_in_the_results(book: TrialBook) -> None:
    book.complete(_started(book, PLAIN, origin="plain"), 1.0)
    _settle(book, exit_plan(4), 0.9)
    _settle(book, exit_plan(5), 1.1)
    timed = timed_plans(book.evidence().values(), num_prompts=7)
    assert [each.plan for each in timed] == [exit_plan(5), PLAIN, exit_plan(4)]
    assert [each.num_prompts for each in timed] == [1, 7, 1]


def test_patience_is_renewed_by_worthwhile_gains_only(book: TrialBook) -> None:
    for exit_layer, ratio in ((1, 1.2), (2, 1.1), (3, 1.203), (4, 1.3), (5, 1.0)):
        _settle(book, exit_plan(exit_layer), ratio, origin="neighbour")
    assert num_fruitless(book.evidence().values()) == 1
    _settle(book, exit_plan(6), 1.0, origin="neighbour")
    assert num_fruitless(book.evidence().values()) == 2
