"""Drafting while the target verifies: nothing is said otherwise, nothing is left running, whatever is thrown."""

from __future__ import annotations

import copy
import random
import threading
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.faults import CallCounter, Fault, faulty, interrupted, module_tree
from tests.support.plans import SOURCES, exit_heads
from tests.support.tiny_models import planted, prompt_ids, tiny_model, tiny_target

from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import PlanError
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule, make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.schedulers.ahead import AheadScheduler
from selfspec_runtime.schedulers.gate import AheadGate
from selfspec_runtime.schedulers.lookup_preparer import LookupPreparer
from selfspec_runtime.schedulers.preparation import Preparation
from selfspec_runtime.schedulers.second_device import SecondDevicePreparer
from selfspec_runtime.schedulers.side_task import SideTask
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = [*prompt_ids(10), *prompt_ids(10)]
NUM_TOKENS = 40
SAMPLING = {
    "greedy": SamplingSettings(),
    "rejection": SamplingSettings(temperature=0.7, top_k=6),
    "match": SamplingSettings(temperature=0.7, top_k=6, mode="match"),
}
LOOKUPS = {
    "ngram": {"kind": "ngram"},
    "own limit": {"kind": "ngram", "num_draft_tokens": 6},
    "ngram_first": SOURCES["ngram_first"],
}


class OpenGate(AheadGate):
    """Is on whatever is measured."""

    def reset(self) -> None:
        super().reset()
        self.is_on = True

    def _next(self) -> None: ...


class EagerTask(SideTask):
    """Has done all its work before the verification begins."""

    def start(self) -> None:
        super().start()
        self._thread.join()


@cache
def target() -> Target:
    """Repeats itself now and then, so that lookups find something, and drafts are accepted now and then."""
    return Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))


def plan_of(source: dict[str, Any], **scheduler: Any) -> DraftPlan:
    return DraftPlan.model_validate({"source": source, "scheduler": {"kind": "saguaro", **scheduler}})


def engine_of(source: dict[str, Any], *, on: bool = True) -> Engine:
    """An engine whose gate is open, and which waits for what is prepared."""
    plan = plan_of(source)
    engine = Engine(target(), plan=plan if on else plan.model_copy(update={"scheduler": None}), arrays=exit_heads())
    if on:
        preparer = engine.decoder.scheduler.preparer  # type: ignore[attr-defined]
        engine.decoder.scheduler = AheadScheduler(preparer, OpenGate(), num_outcomes=24, make_task=EagerTask)
    return engine


def second_device(source: str, *, model: Any = None) -> Engine:
    """An engine whose second device is another copy of the model on the same processor."""
    plan = DraftPlan.model_validate({"source": SOURCES[source]})
    first = target() if model is None else model
    assert plan.source is not None
    copied = plan.source.build(Target(copy.deepcopy(first.model)), exit_heads())
    preparer = SecondDevicePreparer(copied, plan.max_draft_tokens, home=first.device)  # type: ignore[arg-type]
    engine = Engine(first, plan=plan, arrays=exit_heads())
    engine.decoder.scheduler = AheadScheduler(preparer, OpenGate(), num_outcomes=4, make_task=EagerTask)
    return engine


@pytest.mark.parametrize(("sampling", "is_refused"), [("rejection", True), ("greedy", False), ("match", False)])
def test_laws_that_cannot_be_read_on_the_target_s_device_are_not_drawn_from(sampling: str, is_refused: bool) -> None:
    source: Any = second_device("early_exit").source
    preparer = SecondDevicePreparer(source, 4, home=torch.device("cuda"))
    refusal = preparer.refusal(make_rule(SAMPLING[sampling], Processors()))
    assert (refusal is not None) is is_refused


def generated(engine: Engine, sampling: str = "greedy", *, seed: int = 0, num_tokens: int = NUM_TOKENS) -> Generation:
    settings = replace(SAMPLING[sampling], seed=seed)
    return engine.generate(PROMPT, GenerationSettings(max_new_tokens=num_tokens, sampling=settings))


def gate_of(engine: Engine) -> AheadGate:
    return engine.decoder.scheduler.gate  # type: ignore[attr-defined, no-any-return]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "selfspec-ahead"]


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    for thread in threads():
        thread.join(timeout=10.0)
    assert threads() == []


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("source", LOOKUPS)
def test_a_lookup_prepared_ahead_is_the_lookup_made_in_turn(source: str, sampling: str) -> None:
    ahead, in_turn = engine_of(LOOKUPS[source]), engine_of(LOOKUPS[source], on=False)
    for seed in range(1 if sampling == "greedy" else 2):
        one, other = (generated(engine, sampling, seed=seed) for engine in (ahead, in_turn))
        assert one.token_ids == other.token_ids
        assert one.stats == other.stats
        assert gate_of(ahead).num_rounds > 5
        assert gate_of(ahead).num_hits > 0 or sampling != "greedy"


@pytest.mark.parametrize("source", ["early_exit", "layer_skip"])
def test_a_second_device_says_what_plain_decoding_says(source: str) -> None:
    engine = second_device(source)
    plain = Engine(target())
    assert generated(engine).token_ids == generated(plain).token_ids
    assert gate_of(engine).num_hits > 0
    match = generated(engine, "match", num_tokens=20)
    assert match.token_ids == generated(plain, "match", num_tokens=20).token_ids


def test_an_exit_on_a_second_device_drafts_what_it_would_beside_the_target() -> None:
    """Its layers are the target's own, so that their keys and values are the same however they came about."""
    engine = second_device("early_exit")
    in_turn = Engine(target(), plan=DraftPlan.model_validate({"source": SOURCES["early_exit"]}))
    for sampling, seed in (("greedy", 0), ("rejection", 1)):
        one, other = (generated(each, sampling, seed=seed, num_tokens=25) for each in (engine, in_turn))
        assert one.token_ids == other.token_ids
        assert one.stats.num_accepted_tokens == other.stats.num_accepted_tokens
        assert gate_of(engine).num_hits > 0


def test_a_draft_that_equals_the_model_foresees_every_greedy_outcome() -> None:
    engine = second_device("early_exit", model=Target(planted(tiny_model("llama"), exit_layer=2)))
    generation = generated(engine)
    assert generation.stats.acceptance_rate == 1.0
    assert gate_of(engine).num_hits == gate_of(engine).num_rounds > 5


def test_preparing_touches_neither_the_model_nor_the_shared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a thread beside the verification runs is the copy's."""
    engine = second_device("layer_skip")
    ran: set[tuple[str, int]] = set()
    kind = type(engine.target.model)
    original = kind.forward

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.add((threading.current_thread().name, id(self)))
        ran.update((threading.current_thread().name, id(value)) for value in kwargs.values())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", noted)
    tree = module_tree(engine.target.model)
    cache = engine.target.new_cache(capacity=128)
    engine.generate(PROMPT, GenerationSettings(max_new_tokens=30), cache=cache)
    beside = {identity for name, identity in ran if name == "selfspec-ahead"}
    assert beside
    assert not beside & {id(engine.target.model), id(cache)}
    assert module_tree(engine.target.model) == tree


def test_a_suffix_is_looked_up_ahead_too() -> None:
    """Not always what would be drafted in turn, since what comes true is not counted beforehand."""
    engine = engine_of(SOURCES["suffix"])
    for sampling in ("greedy", "match"):
        assert generated(engine, sampling).token_ids == generated(Engine(target()), sampling).token_ids
        assert gate_of(engine).num_rounds > 5


def test_a_model_without_a_second_device_is_told_so() -> None:
    for device, reason in (("cuda:7", "not one of this machine"), ("cpu", "own device"), ("nonsense", "not one of")):
        with pytest.raises(PlanError, match=reason):
            Engine(tiny_target("llama"), plan=plan_of(SOURCES["early_exit"], draft_device=device))


def test_passes_of_the_model_cannot_run_beside_it() -> None:
    with pytest.raises(PlanError, match="cannot run beside a verification on the same device"):
        Engine(tiny_target("llama"), plan=plan_of(SOURCES["early_exit"]))
    with pytest.raises(PlanError, match="cannot be drafted on a second device"):
        Engine(tiny_target("llama"), plan=plan_of({"kind": "ngram"}, draft_device="cuda:7"))


def test_a_generation_says_that_it_was_switched_off() -> None:
    engine = Engine(target(), plan=plan_of({"kind": "ngram"}, min_gain=10.0))
    assert isinstance(engine.decoder.scheduler, AheadScheduler)
    engine.decoder.scheduler.gate.trial_rounds = 3
    generation = generated(engine)
    assert len(generation.notices) == 1
    assert "switched off" in generation.notices[0]
    assert generated(engine_of({"kind": "ngram"}, on=False)).notices == ()


WORK: list[tuple[type, str]] = [
    (LookupPreparer, "begin"),
    (LookupPreparer, "next_tokens"),
    (LookupPreparer, "draft_after"),
]


@pytest.mark.parametrize(("kind", "method"), WORK, ids=str)
def test_an_exception_beside_the_verification_reaches_the_caller(
    kind: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, said = engine_of({"kind": "ngram"}), generated(Engine(target())).token_ids
    original = getattr(kind, method)
    for number in (0, 1, 5):
        monkeypatch.setattr(kind, method, faulty(original, CallCounter(number)))
        with pytest.raises(Fault):
            generated(engine)
        assert threads() == []
        monkeypatch.setattr(kind, method, original)
        assert generated(engine).token_ids == said


@pytest.mark.parametrize("part", ["layer", "rule"])
def test_an_exception_in_the_target_ends_what_runs_beside(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, said = engine_of({"kind": "ngram"}), generated(Engine(target())).token_ids
    owner, method = (type(target().parts.layers[0]), "forward") if part == "layer" else (GreedyRule, "decide")
    original: Callable[..., Any] = getattr(owner, method)
    for number in (1, 9, 14, 15):
        monkeypatch.setattr(owner, method, faulty(original, CallCounter(number)))
        with pytest.raises(Fault):
            generated(engine)
        assert threads() == []
        monkeypatch.setattr(owner, method, original)
        assert generated(engine).token_ids == said


def test_a_consumer_that_leaves_half_way_leaves_nothing_running() -> None:
    engine = engine_of({"kind": "ngram"})
    said = generated(Engine(target())).token_ids
    for taken in range(1, 5):
        stream = engine.stream(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS))
        for _, _step in zip(range(taken), stream, strict=False):
            pass
        stream.close()  # type: ignore[attr-defined]
        assert threads() == []
        assert generated(engine).token_ids == said


def test_ctrl_c_at_any_point() -> None:
    engine = Engine(target(), plan=plan_of({"kind": "ngram"}))
    engine.decoder.scheduler.gate = OpenGate()  # type: ignore[attr-defined]
    said = generated(Engine(target()), num_tokens=8).token_ids
    with interrupted(None) as points:
        generated(engine, num_tokens=8)
    thrown = 0
    for number in random.Random(1).sample(range(points[0]), 25):
        try:
            with interrupted(number):
                generated(engine, num_tokens=8)
        except KeyboardInterrupt:
            thrown += 1
        assert generated(engine, num_tokens=8).token_ids == said
    assert thrown > 18


def test_a_draft_in_progress_is_waited_for_and_others_are_not() -> None:
    """Once asked to stop, only the draft that has come true is finished."""
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.schedulers.outcomes import Place
    from selfspec_runtime.schedulers.preparer import Verification

    began, may_go_on = threading.Event(), threading.Event()

    class Slow(LookupPreparer):
        def begin(self, verification: Verification) -> None: ...

        def next_tokens(self, num_accepted: int, number: int) -> list[int]:
            return [11, 12]

        def draft_after(self, committed: tuple[int, ...], stopped: Callable[[], bool]) -> Draft | None:
            began.set()
            may_go_on.wait(10.0)
            return None if stopped() else Draft(list(committed), [None])

    for came_true, ready in ((11, True), (12, False)):
        began.clear()
        may_go_on.clear()
        verification = Verification((1, 2), (), None, None)  # type: ignore[arg-type]
        preparer = Slow(engine_of({"kind": "ngram"}).source, 4)  # type: ignore[arg-type]
        preparation = Preparation(preparer, verification, [Place(0, 0), Place(0, 1)], clock=lambda: 0.0)
        preparation.start()
        began.wait(10.0)
        stop = preparation._task._stop.set

        def let_go(stop: Callable[[], None] = stop) -> None:
            stop()
            may_go_on.set()

        preparation._task._stop.set = let_go  # type: ignore[method-assign]
        assert (preparation.finish([1, 2, came_true]) is not None) is ready
