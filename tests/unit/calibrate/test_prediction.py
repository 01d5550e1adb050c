from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planted_costs import PlantedCosts, PlantedScorer, planted_traces

from selfspec_calibrate.predicted_phase import Forecast
from selfspec_calibrate.prediction import Predictor, pass_spec, predict
from selfspec_calibrate.scoring import TokenScores
from selfspec_calibrate.textbook import expected_speedup, expected_tokens
from selfspec_calibrate.trace import Trace
from selfspec_runtime.drafts.first_of import PassSpec
from selfspec_runtime.errors import UsageError
from selfspec_runtime.plan import PLAIN, DraftPlan

EXIT = {"kind": "early_exit", "exit_layer": 2}


def plan_of(source: dict[str, object], num_draft_tokens: int) -> DraftPlan:
    return DraftPlan.model_validate(
        {"source": source, "controller": {"kind": "fixed", "num_draft_tokens": num_draft_tokens}}
    )


@given(st.floats(0.1, 0.98), st.integers(1, 6))
def test_long_traces_of_even_chances_follow_the_textbook(chance: float, num_draft_tokens: int) -> None:
    traces = planted_traces(1, 600)
    costs = PlantedCosts(num_layers=8, host_s=0.0)
    found = predict(plan_of(EXIT, num_draft_tokens), traces, PlantedScorer(traces, lambda _: chance), costs)
    ratio = costs.draft_pass_s(pass_spec(found.plan), 0)
    # The trace's end cuts the last rounds short, which weighs about one round in a hundred or less.
    assert found.speedup == pytest.approx(expected_speedup(chance, ratio, num_draft_tokens), rel=0.02)
    assert found.tokens_per_round == pytest.approx(expected_tokens(chance, num_draft_tokens), rel=0.02)


def test_seconds_by_hand() -> None:
    trace = Trace("x", "test", (1, 2, 3), (10, 11, 12, 13, 14))
    scorer = PlantedScorer([trace], lambda _: 0.0)
    scorer.scores = lambda spec: (TokenScores(np.array([1.0, 0.0, 1.0, 1.0]), np.ones(4)),)  # type: ignore[method-assign]
    costs = PlantedCosts(num_layers=8, row_s=0.1, context_s=0.01, host_s=0.02)
    found = predict(plan_of(EXIT, 2), [trace], scorer, costs)
    # Row 0: two drafts, the second rejected; row 2: room for one draft, accepted.
    draft = 0.2 + 0.8 * 2 / 8
    first = 2 * (draft + 0.03) + (1.0 + 0.2 + 0.03) + 0.02
    second = 1 * (draft + 0.05) + (1.0 + 0.1 + 0.05) + 0.02
    assert found.seconds_plan == pytest.approx(first + second)
    # Plain rounds start at contexts 3 to 6; their mean is taken to a whole position.
    assert found.seconds_plain == pytest.approx(4 * (1.0 + 0.01 * 4 + 0.02))
    assert found.speedup == pytest.approx(found.seconds_plain / found.seconds_plan)
    assert found.tokens_per_round == 2.0
    assert found.acceptance_rate == pytest.approx(2 / 3)


def test_plain_decoding_is_its_own_measure() -> None:
    traces = planted_traces(2, 9)
    found = predict(PLAIN, traces, PlantedScorer(traces, lambda _: 0.0), PlantedCosts(num_layers=4, context_s=0.01))
    assert found.speedup == 1.0
    assert found.acceptance_rate is None
    assert found.tokens_per_round == 1.0


def test_traces_count_by_their_time() -> None:
    """Totals, not a mean of ratios: the longer trace weighs more."""
    hit = Trace("hit", "test", tuple([1, 2, 3, 4] * 3), tuple([1, 2, 3, 4] * 5))
    miss = Trace("miss", "test", (1, 2), (50, 51, 52))
    plan = plan_of({"kind": "ngram"}, 4)
    costs = PlantedCosts(num_layers=4)
    both, alone = (predict(plan, t, PlantedScorer(t, lambda _: 0.0), costs) for t in ([hit, miss], [hit]))
    missed = predict(plan, [miss], PlantedScorer([miss], lambda _: 0.0), costs)
    assert alone.speedup > 2.0
    assert missed.speedup == pytest.approx(1.0)
    assert both.seconds_plan == pytest.approx(alone.seconds_plan + missed.seconds_plan)
    assert both.speedup == pytest.approx(both.seconds_plain / both.seconds_plan)


LOOKUPS = pytest.mark.parametrize("lookup", [{"kind": "ngram"}, {"kind": "suffix"}], ids=lambda each: each["kind"])


@LOOKUPS
def test_lookups_ask_for_no_scores_and_cost_no_pass(lookup: dict[str, object]) -> None:
    repeated = [Trace("hit", "test", tuple([1, 2, 3, 4] * 3), tuple([1, 2, 3, 4] * 5))]
    scorer = PlantedScorer(repeated, lambda _: 0.5)
    costs = PlantedCosts(num_layers=4, host_s=0.0)
    found = predict(plan_of(lookup, 4), repeated, scorer, costs)
    assert scorer.num_scored == 0
    assert found.seconds_plan == pytest.approx(found.seconds_plain / found.tokens_per_round)


@LOOKUPS
def test_a_composition_pays_for_passes_only_where_nothing_matches(lookup: dict[str, object]) -> None:
    repeated = [Trace("hit", "test", (1, 2, 3, 4) * 3, (1, 2, 3, 4) * 4 + tuple(range(50, 66)))]
    scorer = PlantedScorer(repeated, lambda _: 0.9)
    costs = PlantedCosts(num_layers=4)
    source = {"kind": "ngram_first", "ngram": lookup, "then": EXIT}
    composed, alone, passes = (predict(plan_of(s, 3), repeated, scorer, costs) for s in (source, lookup, EXIT))
    assert composed.speedup > max(alone.speedup, passes.speedup)


def test_verification_is_asked_for_the_source_that_drafted() -> None:
    traces = planted_traces(1, 30)
    asked: list[tuple[PassSpec, int]] = []

    class Watched(PlantedCosts):
        def verify_s(self, spec: PassSpec, num_drafted: int, context: int) -> float:
            asked.append((spec, num_drafted))
            return 0.5

    plan = plan_of(EXIT, 3)
    predict(plan, traces, PlantedScorer(traces, lambda _: 1.0), Watched(num_layers=4))
    assert {spec for spec, _ in asked} == {plan.source}
    assert max(drafted for _, drafted in asked) == 3


def test_the_best_of_several_is_the_fastest() -> None:
    traces = planted_traces(1, 200)
    predictor = Predictor(traces, PlantedScorer(traces, lambda _: 0.8), PlantedCosts(num_layers=8))
    plans = [plan_of(EXIT, n) for n in range(1, 9)]
    best = predictor.best_of(plans)
    assert best.speedup == max(predictor.predict(plan).speedup for plan in plans)
    assert predictor.num_tokens == 199


def test_traces_of_one_token_are_refused() -> None:
    traces = planted_traces(3, 1)
    with pytest.raises(UsageError, match="None of the 3 search prompts"):
        Predictor(traces, PlantedScorer(traces, lambda _: 0.5), PlantedCosts(num_layers=4))


@pytest.mark.parametrize("source", [EXIT, {"kind": "suffix"}], ids=["passes", "lookup"])
def test_a_forecast_predicts_any_of_the_prompts_by_their_own_traces(source: dict[str, object]) -> None:
    hit = Trace("hit", "test", tuple([1, 2, 3, 4] * 3), tuple([1, 2, 3, 4] * 5))
    miss, short = Trace("miss", "test", (1, 2), tuple(range(50, 60))), Trace("short", "test", (1,), (2,))
    traces, costs, plan = [miss, hit, short], PlantedCosts(num_layers=4), plan_of(source, 4)
    chances = {"hit": 0.9, "miss": 0.3, "short": 0.5}

    def scorer(some: list[Trace]) -> PlantedScorer:
        found = PlantedScorer(some, lambda _: 0.0)
        rows = [(trace.num_scored, chances[trace.prompt_id]) for trace in some]
        scores = tuple(TokenScores(np.full(n, chance), np.full(n, chance)) for n, chance in rows)
        found.scores = lambda spec: scores  # type: ignore[method-assign]
        return found

    forecast = Forecast(None, None, traces, scorer(traces), costs, 20, None, None)  # type: ignore[arg-type]
    for some in ([hit], [miss], [hit, miss], traces):
        alone = Predictor(some, scorer(some), costs, max_new_tokens=20).predict(plan).speedup
        assert forecast.speedup_on(plan, {trace.prompt_id for trace in some}) == pytest.approx(alone)
    assert forecast.speedup_on(plan, {"short"}) is None
    assert forecast.speedup_on(plan, {"unknown"}) is None
    assert forecast.predictor_of(2).predict(plan).speedup == forecast.speedup_on(plan, {"hit", "miss"})
    learning = DraftPlan.model_validate({"source": source, "controller": {"kind": "adaptive_threshold"}})
    assert forecast.speedup_on(learning, {"hit"}) is None
