"""SWIFT, CLaSp and ConfLayers: the contract, what each finds on a planted model, and what finding it may cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from tests.support.contracts import DraftSourceContract
from tests.support.counted_costs import counted_speedup
from tests.support.dynamic_plans import (
    DYNAMIC_SOURCES,
    FLAT_SOURCES,
    IDLE,
    NUM_LAYERS,
    dynamic_plan,
    hopeless_target,
    planted_target,
)
from tests.support.faults import Fault
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime.drafts import conf_layers
from selfspec_runtime.drafts.clasp import ClaspSource, ClaspSpec
from selfspec_runtime.drafts.conf_layers import ConfLayersSource
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.dynamic_skips import DynamicSkipSource, spread_layers
from selfspec_runtime.drafts.swift import SwiftSource, SwiftSpec, skip_units
from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.sampling import SamplingSettings

PROMPT = prompt_ids(12)
SETTINGS = GenerationSettings(max_new_tokens=100)
BAD_PACE: list[dict[str, Any]] = [{"interval": 0}, {"max_overhead": -0.1}, {"row_cost": 1.5}]


class TestSwift(DraftSourceContract):
    source: ClassVar = {"kind": "swift", "skip": {"attention": [1, 2], "mlp": [2]}}
    impossible: ClassVar = [{"kind": "swift", "skip": {"attention": [4]}}]
    malformed: ClassVar = [{"skip": None}, {"skip": {}}, {"window": 1}, {"max_steps": 0}, {"max_score": 0}, *BAD_PACE]


class TestClasp(DraftSourceContract):
    source: ClassVar = {"kind": "clasp", "num_skipped": 2}
    impossible: ClassVar = [{"kind": "clasp", "num_skipped": count} for count in (4, 9)]
    malformed: ClassVar = [{"num_skipped": 0}, {"num_skipped": None}, *BAD_PACE]


class TestConfLayers(DraftSourceContract):
    source: ClassVar = {"kind": "conf_layers"}
    malformed: ClassVar = [{"skip_ratio": 0.0}, {"skip_ratio": 1.0}, {"window": 0}, {"interval": 1}, *BAD_PACE]


class TestNgramFirstElseSwift(DraftSourceContract):
    source: ClassVar = {"kind": "ngram_first", "then": TestSwift.source}
    draws = False
    impossible: ClassVar = [{"kind": "ngram_first", "then": entry} for entry in TestSwift.impossible]
    malformed: ClassVar = [{"then": {"kind": "swift"}}]


def source_of(engine: Engine) -> DynamicSkipSource:
    assert isinstance(engine.source, DynamicSkipSource)
    return engine.source


@dataclass(frozen=True)
class PlantedRun:
    """A generation of a planted model.

    Attributes:
        source: As it was left.
        speedup: By counting layers, choosing included.
        frozen_speedup: The same with the set that it began with.
        num_tokens: Tokens after the first.
    """

    source: DynamicSkipSource
    speedup: float
    frozen_speedup: float
    num_tokens: int


@cache
def planted_run(kind: str) -> PlantedRun:
    """SWIFT needs sets that differ by degrees, and a text long enough for a search."""
    target, length = (planted_target(0.15), 260) if kind == "swift" else (planted_target(), 100)
    settings = GenerationSettings(max_new_tokens=length)
    engine = Engine(target, plan=dynamic_plan(FLAT_SOURCES[kind]))
    frozen = {"kind": "layer_skip", "skip": source_of(engine).skip.model_dump(mode="json")}
    return PlantedRun(
        source_of(engine),
        counted_speedup(engine, PROMPT, settings),
        counted_speedup(Engine(target, plan=dynamic_plan(frozen)), PROMPT, settings),
        length - 1,
    )


@pytest.mark.parametrize("kind", FLAT_SOURCES)
def test_each_finds_the_layers_that_say_nothing(kind: str) -> None:
    source = planted_run(kind).source
    assert source.skip.positions <= IDLE.positions
    assert source.overhead.num_steps > 0
    assert kind == "swift" or source.skip == IDLE


@pytest.mark.parametrize("kind", FLAT_SOURCES)
def test_each_wins_on_the_planted_model_by_counting(kind: str) -> None:
    """More than plain decoding, and than the set that it began with: choosing included."""
    run = planted_run(kind)
    assert run.speedup > 1.1
    assert run.speedup > run.frozen_speedup + 0.1


@pytest.mark.parametrize("kind", FLAT_SOURCES)
def test_the_counts_are_what_the_model_really_ran(kind: str) -> None:
    run = planted_run(kind)
    work = run.source.overhead.work + run.source.overhead.decode_work
    assert run.num_tokens * NUM_LAYERS / work == pytest.approx(run.speedup, rel=1e-9)


@pytest.mark.parametrize("kind", FLAT_SOURCES)
def test_each_loses_on_a_hopeless_model_and_is_switched_off(kind: str) -> None:
    """The count says no; and a controller that knows what rounds cost turns plain by itself."""
    stubborn, careful = (
        Engine(hopeless_target(), plan=dynamic_plan(FLAT_SOURCES[kind], falls_back=falls_back))
        for falls_back in (False, True)
    )
    assert counted_speedup(stubborn, PROMPT, GenerationSettings(max_new_tokens=20)) < 0.6
    assert counted_speedup(careful, PROMPT, GenerationSettings(max_new_tokens=120)) > 0.85


@pytest.mark.parametrize("row_cost", [0.0, 1.0])
@pytest.mark.parametrize("kind", FLAT_SOURCES)
def test_choosing_never_costs_more_than_its_share(kind: str, row_cost: float) -> None:
    """At any time: a step waits until decoding has paid for it."""
    spec = {**FLAT_SOURCES[kind], "row_cost": row_cost, "max_overhead": 0.05}
    engine = Engine(hopeless_target(), plan=dynamic_plan(spec))
    shares = []
    for _ in engine.stream(PROMPT, GenerationSettings(max_new_tokens=45)):
        shares.append(source_of(engine).overhead.share)
    assert 0.0 < max(shares) <= 0.05
    overhead = source_of(engine).overhead
    assert overhead.num_rows >= overhead.num_steps >= 1
    assert overhead.seconds > 0


@pytest.mark.parametrize("kind", DYNAMIC_SOURCES)
def test_a_generation_is_the_same_again_after_a_reset(kind: str) -> None:
    engine = Engine(tiny_target("llama"), plan=dynamic_plan(DYNAMIC_SOURCES[kind]))
    settings = GenerationSettings(max_new_tokens=40)
    start, left, stats = source_of(engine).skip, [], []
    for _ in range(2):
        stats.append(engine.generate(PROMPT, settings).stats)
        left.append((source_of(engine).skip, source_of(engine).overhead.work))
    assert left[0] == left[1]
    assert stats[0] == stats[1]
    assert left[0][1] > 0
    source_of(engine).reset()
    assert source_of(engine).skip == start
    assert source_of(engine).overhead.num_steps == 0


STEP_PLACES = {
    "swift": (SwiftSource, "_score"),
    "clasp": (ClaspSource, "_chosen"),
    "conf_layers": (ConfLayersSource, "_candidate"),
}


@pytest.mark.parametrize("kind", DYNAMIC_SOURCES)
def test_an_exception_while_choosing_leaves_the_state_as_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is made again, with the same result as if nothing had happened."""
    engine = Engine(tiny_target("llama"), plan=dynamic_plan(DYNAMIC_SOURCES[kind]))
    settings = GenerationSettings(max_new_tokens=40)
    undisturbed = engine.generate(PROMPT, settings).stats
    owner, name = STEP_PLACES[kind]
    original, failures = getattr(owner, name), []

    def failing(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        if len(failures) < 3:
            failures.append(self.skip)
            raise Fault
        return result

    monkeypatch.setattr(owner, name, failing)
    propose = engine.source.propose  # type: ignore[union-attr]

    def stubborn(context: Any) -> Draft:
        while True:
            try:
                return propose(context)
            except Fault:
                assert source_of(engine).skip == failures[-1]

    monkeypatch.setattr(engine.source, "propose", stubborn)
    assert engine.generate(PROMPT, settings).stats == undisturbed
    assert len(failures) == 3


@pytest.mark.parametrize("kind", DYNAMIC_SOURCES)
def test_no_step_makes_the_cache_grow(kind: str) -> None:
    engine = Engine(tiny_target("llama"), plan=dynamic_plan(DYNAMIC_SOURCES[kind]))
    cache = engine.target.new_cache(capacity=len(PROMPT) + 31)
    engine.generate(PROMPT, GenerationSettings(max_new_tokens=30), cache=cache)
    assert cache.capacity == len(PROMPT) + 31


@pytest.mark.parametrize("kind", DYNAMIC_SOURCES)
def test_a_family_that_goes_by_slots_is_refused(kind: str) -> None:
    with pytest.raises(PlanError, match="does not take a position for each token"):
        Engine(tiny_target("mpt"), plan=dynamic_plan(DYNAMIC_SOURCES[kind]))


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(1.0, mode="match"), SamplingSettings(0.8)])
def test_swift_scores_what_says_nothing_best_however_tokens_are_drawn(sampling: SamplingSettings) -> None:
    """The full model's own tokens agree with a draft that equals it: always, or as often as the law is sure."""
    scores: dict[LayerSkipSet, list[float]] = {}
    original = SwiftSource._score

    class Noting(SwiftSource):
        def _score(self, skip: LayerSkipSet, context: Any, start: int) -> float:
            found = [original(self, each, context, start) for each in (skip, IDLE)]
            for each, score in zip((skip, IDLE), found, strict=True):
                scores.setdefault(each, []).append(score)
            return found[0]

    engine = Engine(planted_target(), plan=dynamic_plan({**FLAT_SOURCES["swift"], "max_overhead": 1000.0}))
    engine.source = engine.decoder.source = Noting(engine.target, engine.plan.source)  # type: ignore[arg-type]
    engine.generate(PROMPT, GenerationSettings(max_new_tokens=40, sampling=sampling))
    idle = scores.pop(IDLE)
    others = [score for found in scores.values() for score in found]
    assert len(others) > 3
    if sampling.mode == "match" or sampling.greedy:
        assert min(idle) == 1.0
    assert sum(idle) / len(idle) > 1.1 * sum(others) / len(others)


def test_swift_exchanges_whole_layers_where_a_family_has_no_mlp() -> None:
    units = skip_units(tiny_target("opt"), LayerSkipSet.whole({2}))
    assert sorted(units, key=min) == [frozenset({2, 3}), frozenset({4, 5})]
    source = SwiftSpec.model_validate({"skip": {"attention": [2], "mlp": [2]}, "window": 4, "max_overhead": 1000.0})
    engine = Engine(tiny_target("opt"), plan=DraftPlan(source=source))
    settings = GenerationSettings(max_new_tokens=40)
    assert engine.generate(PROMPT, settings).token_ids == Engine(engine.target).generate(PROMPT, settings).token_ids
    assert source_of(engine).overhead.num_steps > 2


@pytest.mark.parametrize(("num_layers", "count"), [(2, 1), (4, 1), (4, 2), (4, 3), (12, 5), (32, 16), (32, 30)])
def test_the_first_layers_left_out_are_spread_evenly(num_layers: int, count: int) -> None:
    layers = spread_layers(num_layers, count)
    assert len(set(layers)) == count
    assert 0 not in layers
    if count <= num_layers - 2:
        assert num_layers - 1 not in layers
        gaps = [after - before for before, after in pairwise(layers)]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_clasp_says_what_it_does() -> None:
    assert ClaspSpec(num_skipped=1).describe() == "skip 1 layer, chosen every 64 rounds"
    assert ClaspSpec(num_skipped=9, interval=8).describe() == "skip 9 layers, chosen every 8 rounds"


class Trial:
    """ConfLayers on outcomes that are made up: how many of four drafts each set gets accepted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, accepted: dict[LayerSkipSet, int]) -> None:
        candidates = iter([skip for skip in accepted][1:])
        monkeypatch.setattr(ConfLayersSource, "_candidate", lambda *_: next(candidates, None))
        spec = conf_layers.ConfLayersSpec(skip_ratio=0.4, interval=4, max_overhead=1000.0)
        self.source = ConfLayersSource(tiny_target("llama"), spec)
        self.accepted = accepted
        self.used: list[LayerSkipSet] = []

    def run(self, num_rounds: int) -> list[LayerSkipSet]:
        """Rounds with a draft of four tokens each; the sets that drafted them."""
        engine = Engine(self.source.target, plan=dynamic_plan({"kind": "conf_layers"}))
        engine.source = engine.decoder.source = self.source
        self.source.observe, observe = self._observed, self.source.observe  # type: ignore[method-assign]
        self._observe = observe
        list(zip(range(num_rounds + 1), engine.stream(PROMPT, SETTINGS), strict=False))
        return self.used

    def _observed(self, draft: Draft, *, num_accepted: int) -> None:
        del num_accepted
        self.used.append(self.source.skip)
        self._observe(draft, num_accepted=self.accepted[self.source.skip])


START = LayerSkipSet.whole({2})
GOOD, BAD = LayerSkipSet.whole({1}), LayerSkipSet.whole({3})


def test_conf_layers_keeps_a_candidate_that_does_better(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {START: 2, GOOD: 3})
    assert trial.run(16) == [START] * 4 + [GOOD] * 12
    assert trial.source.best == GOOD


def test_conf_layers_never_lets_a_worse_one_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {START: 3, BAD: 2, GOOD: 3})
    assert trial.run(20) == [START] * 4 + [BAD] * 4 + [START] * 4 + [GOOD] * 4 + [START] * 4
    assert trial.source.best == START


def test_conf_layers_gives_a_hopeless_candidate_up_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {START: 3, BAD: 0})
    assert trial.run(10) == [START] * 4 + [BAD] * 2 + [START] * 4


def test_conf_layers_ends_with_a_good_set(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {START: 4, GOOD: 4})
    assert trial.run(12) == [START] * 12
    assert trial.source.overhead.num_steps == 0
