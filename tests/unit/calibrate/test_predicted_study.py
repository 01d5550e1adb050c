from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from tests.support.planted_costs import PlantedCosts, PlantedScorer, planted_traces
from tests.support.planted_skips import PlantedSkips
from tests.support.planted_space import some_space

from selfspec_calibrate.events import Event, Progressed
from selfspec_calibrate.predicted_study import PredictedStudy, draft_shares, run_predicted_study
from selfspec_calibrate.prediction import Predictor, pass_spec
from selfspec_calibrate.prediction_book import PredictionBook, open_study
from selfspec_calibrate.search_space import MIN_PROBABILITIES, TOKENS_PER_MATCH, SearchSpace
from selfspec_calibrate.skip_ranking import skip_set_of
from selfspec_calibrate.trace import Trace
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.first_of import PassSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.errors import UsageError
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan

LAYERS = 12
COSTS = PlantedCosts(LAYERS)
STATES = optuna.trial.TrialState


def chance_of(spec: PassSpec) -> float:
    """Deeper exits and smaller skip sets agree more; a linear head helps."""
    if isinstance(spec, EarlyExitSpec):
        return 0.5 * (spec.exit_layer / LAYERS) ** 2 + (0.3 if spec.head == "linear" else 0.0)
    return (0.97 if spec.kind == "quantized" else 1.0) * math.exp(-0.05 * len(spec.skip))


class Watched(PlantedScorer):
    """Remembers what was scored, and may break off."""

    def __init__(
        self, traces: Sequence[Trace], chance: Callable[[PassSpec], float] = chance_of, *, at_most: int = 10**6
    ) -> None:
        super().__init__(traces, chance)
        self.asked: dict[PassSpec, int] = {}
        self.at_most = at_most

    def scores(self, spec: PassSpec) -> Any:
        self.asked[spec] = self.asked.get(spec, 0) + 1
        if len(self.asked) > self.at_most:
            raise KeyboardInterrupt
        return super().scores(spec)


def run(space: SearchSpace, scorer: PlantedScorer, **changes: Any) -> PredictedStudy:
    given: dict[str, Any] = {"storage": None, "study_name": "test", "num_plans": 40, "seed": 0}
    return run_predicted_study(space, list(scorer.traces), scorer, COSTS, **{**given, **changes})


def test_plans_are_sorted_different_and_predicted_as_alone() -> None:
    scorer = Watched(planted_traces(1, 40))
    study = run(some_space(LAYERS), scorer)
    assert len(study.plans) == 40
    assert len({prediction.plan.source for prediction in study.plans}) == 40
    speedups = [prediction.speedup for prediction in study.plans]
    assert speedups == sorted(speedups, reverse=True)
    assert study.num_trace_tokens == 39
    predictor = Predictor(scorer.traces, scorer, COSTS)
    for prediction in study.plans[::8]:
        assert predictor.predict(prediction.plan) == prediction


def test_every_plan_has_its_best_controller() -> None:
    space = some_space(LAYERS)
    scorer = Watched(planted_traces(1, 40))
    study = run(space, scorer, num_plans=12)
    predictor = Predictor(scorer.traces, scorer, COSTS)
    for prediction in study.plans:
        source = prediction.plan.source
        plans = [DraftPlan(source=source, controller=c) for c in space.controllers(source.kind)]
        assert prediction.speedup >= predictor.best_of(plans).speedup
    assert study.num_replayed >= 12 * 8


def test_two_hundred_plans_hold_forty_skip_sets_and_starve_no_family() -> None:
    space = some_space(LAYERS)
    study = run(space, Watched(planted_traces(1, 12)), num_plans=240)
    assert len(study.plans) == 240
    kinds = [prediction.plan.source.kind for prediction in study.plans]
    assert kinds.count("layer_skip") >= 60
    assert study.num_skip_sets >= 40
    # Eleven raw exits and six linear ones, and sixteen pairs of bounds, are all there are.
    assert kinds.count("early_exit") == 11 + 6
    assert kinds.count("ngram") == 16
    assert min(kinds.count(kind) for kind in ("quantized", "suffix", "ngram_first")) >= 25


def test_the_best_suffix_is_found_and_put_before_passes() -> None:
    """A text in which the word after a pair tells what comes, and after one word nothing does."""
    text = [1, 2, 3, 4, 1, 5, 3, 6] * 12
    traces = [Trace("x", "test", tuple(text[:16]), tuple(text[16:]))]
    costs = PlantedCosts(LAYERS, row_s=0.05)
    space = some_space(LAYERS, families=("ngram", "suffix", "quantized", "ngram_first"))
    scorer = Watched(traces)
    study = run_predicted_study(space, traces, scorer, costs, storage=None, study_name="test", num_plans=80, seed=0)
    predictor = Predictor(traces, scorer, costs)
    suffixes = [each for each in study.plans if each.plan.source.kind == "suffix"]
    everything = [
        DraftPlan(source=SuffixSpec(min_match=low, tokens_per_match=per, min_probability=share), controller=controller)
        for low in range(1, 5)
        for per in TOKENS_PER_MATCH
        for share in MIN_PROBABILITIES
        for controller in space.controllers("suffix")
    ]
    assert suffixes[0].speedup >= 0.99 * predictor.best_of(everything).speedup
    assert suffixes[0] == predictor.predict(suffixes[0].plan)
    firsts = [each.plan.source.ngram.kind for each in study.plans if each.plan.source.kind == "ngram_first"]
    assert set(firsts) == {"ngram", "suffix"}


def test_a_small_space_is_searched_out() -> None:
    study = run(some_space(4, families=("early_exit",)), Watched(planted_traces(1, 12)), num_plans=200)
    assert {prediction.plan.source for prediction in study.plans} == {
        *(EarlyExitSpec(exit_layer=layer) for layer in (1, 2, 3)),
        *(EarlyExitSpec(exit_layer=layer, head="linear") for layer in (2, 3)),
    }


def test_nothing_to_search_gives_no_plans() -> None:
    space = some_space(families=("quantized",), quantized_available=False)
    study = run(space, Watched(planted_traces(1, 12)))
    assert study.plans == ()
    assert study.num_skip_sets == 0


def test_the_planted_best_exit_is_found() -> None:
    def only_nine(spec: PassSpec) -> float:
        return 1.0 if isinstance(spec, EarlyExitSpec) and spec.exit_layer >= 9 else 0.05

    study = run(
        some_space(LAYERS, families=("early_exit",), linear_exits=()), Watched(planted_traces(1, 60), only_nine)
    )
    best = study.plans[0].plan
    assert best.source.exit_layer == 9
    assert study.plans[0].acceptance_rate == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_skip_sets_of_48_interacting_sub_layers_reach_98_per_cent_of_the_optimum(seed: int) -> None:
    problem, costs, traces = PlantedSkips(24, seed), PlantedCosts(24), planted_traces(1, 40)
    scorer = PlantedScorer(traces, lambda spec: problem.agreement(spec.skip))
    space = some_space(
        24,
        families=("layer_skip",),
        sensitivity=problem.sensitivity,
        attention_s=costs.attention_s,
        mlp_s=costs.mlp_s,
    )
    predictor = Predictor(traces, scorer, costs)

    def speedup(skip: LayerSkipSet) -> float:
        source = LayerSkipSpec(skip=skip)
        plans = [DraftPlan(source=source, controller=c) for c in space.controllers("layer_skip")[:8]]
        return predictor.best_of(plans).speedup

    # The optimum is a set of highest agreement for its size; sizes around the best are all that can matter.
    sizes = [(a, m) for a in range(4, 16, 2) for m in range(6, 18, 2)]
    optimum = max(speedup(problem.best_by_size[counts]) for counts in sizes)
    random = np.random.default_rng(seed)
    drawn = [skip_set_of(random.choice(48, random.integers(1, 34), replace=False).tolist()) for _ in range(160)]
    study = run_predicted_study(space, traces, scorer, costs, storage=None, study_name="test", num_plans=160, seed=seed)
    assert study.plans[0].speedup >= 0.98 * optimum
    assert max(map(speedup, drawn)) < 0.92 * optimum


def test_a_source_is_scored_in_one_trial_only() -> None:
    space = some_space(LAYERS)
    scorer = Watched(planted_traces(1, 12))
    study = run(space, scorer, num_plans=100)
    users = [pass_spec(prediction.plan) for prediction in study.plans]
    for spec, asked in scorer.asked.items():
        # One look for each controller and one for the agreement; compositions look at their passes again.
        assert asked <= users.count(spec) * (len(space.controllers("quantized")) + 2)


def test_a_finished_study_is_read_and_not_repeated() -> None:
    storage = optuna.storages.InMemoryStorage()
    space = some_space(LAYERS)
    first = run(space, Watched(planted_traces(1, 12)), storage=storage)
    again = Watched(planted_traces(1, 12))
    assert run(space, again, storage=storage) == first
    assert again.asked == {}


def test_a_study_that_was_broken_off_goes_on() -> None:
    storage = optuna.storages.InMemoryStorage()
    space = some_space(LAYERS, families=("early_exit", "layer_skip"))
    broken = Watched(planted_traces(1, 12), at_most=15)
    with pytest.raises(KeyboardInterrupt):
        run(space, broken, storage=storage)
    study = optuna.load_study(study_name="test", storage=storage)
    assert {trial.state for trial in study.trials} == {STATES.COMPLETE}
    assert len([trial for trial in study.trials if "prediction" in trial.user_attrs]) == 15
    resumed = Watched(planted_traces(1, 12))
    result = run(space, resumed, storage=storage)
    assert len(result.plans) == 40
    known = list(broken.asked)[:15]
    assert not set(known) & set(resumed.asked)


def test_trials_left_by_a_killed_process_are_failed() -> None:
    storage = optuna.storages.InMemoryStorage()
    open_study(storage, "test").ask()
    study = open_study(storage, "test")
    assert [trial.state for trial in study.trials] == [STATES.FAIL]


def test_a_study_of_another_kind_is_refused() -> None:
    storage = optuna.storages.InMemoryStorage()
    optuna.create_study(study_name="test", storage=storage, direction="minimize")
    with pytest.raises(UsageError, match="minimises"):
        open_study(storage, "test")


def test_predictions_are_readable_in_a_database_and_survive_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.sqlite3"
    first = run(some_space(LAYERS), Watched(planted_traces(1, 12)), storage=storage, num_plans=6)
    assert run(some_space(LAYERS), Watched(planted_traces(1, 12)), storage=storage, num_plans=6) == first
    trials = optuna.load_study(study_name="test", storage=storage).get_trials(states=(STATES.COMPLETE,))
    for trial in trials:
        stored = trial.user_attrs["prediction"]
        assert trial.value == stored["speedup"]
        assert DraftPlan.model_validate(stored["plan"]).source.kind == trial.params["family"]


def test_a_late_study_still_has_a_plan_of_each_family() -> None:
    space = some_space(LAYERS)
    study = run(space, Watched(planted_traces(1, 12)), deadline=0.0, clock=lambda: 1.0)
    kinds = [prediction.plan.source.kind for prediction in study.plans]
    assert sorted(kinds) == sorted(space.searched)


def test_the_deadline_ends_the_study() -> None:
    ticks = iter(range(1000))
    study = run(some_space(LAYERS), Watched(planted_traces(1, 12)), deadline=20, clock=lambda: float(next(ticks)))
    assert len(study.plans) == 20


def test_progress_is_told() -> None:
    heard: list[Event] = []
    study = run(some_space(LAYERS), Watched(planted_traces(1, 12)), num_plans=10, listener=heard.append)
    assert all(isinstance(event, Progressed) for event in heard)
    assert heard[-1].done == 10
    assert heard[-1].best == study.plans[0].speedup


def test_a_seed_may_have_64_bits() -> None:
    trial = PredictionBook(None, seed=2**64 - 1).study.ask()
    assert 0 <= trial.suggest_float("x", 0, 1) <= 1


def test_the_same_seed_gives_the_same_study() -> None:
    space = some_space(LAYERS)
    one, other = (run(space, Watched(planted_traces(1, 12)), num_plans=30) for _ in range(2))
    assert one == other


def test_optuna_s_log_is_quiet() -> None:
    run(some_space(LAYERS), Watched(planted_traces(1, 12)), num_plans=2)
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_shares_are_those_of_the_cost_model() -> None:
    costs = PlantedCosts(LAYERS, host_s=0.25, row_s=0.05)
    shares = draft_shares(costs, LAYERS, context=100)
    assert shares.full == pytest.approx(1.0 / 1.25)
    assert shares.attention == pytest.approx(costs.attention_s / 1.25)
    assert shares.mlp == pytest.approx(costs.mlp_s / 1.25)
    assert shares.verify == pytest.approx(1.45 / 1.25)
