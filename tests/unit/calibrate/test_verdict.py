from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.plan_world import exit_plan
from tests.support.scripted import ScriptedEngine, ScriptedFactory, scripted_prompts

from selfspec_calibrate.events import Event, Noted
from selfspec_calibrate.held_out import HeldOut
from selfspec_calibrate.interleave import Block
from selfspec_calibrate.measurement import WARM_UP_TOKENS, EngineArm, MeasuredPrompt
from selfspec_calibrate.selection import Selected
from selfspec_calibrate.verdict import Verdict, clears
from selfspec_runtime.calibration import Interval, KindResult, MemoryStep
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.sampling import SamplingSettings

GREEDY = GenerationSettings(max_new_tokens=100)
WARM = GenerationSettings(max_new_tokens=100, sampling=SamplingSettings(temperature=0.7))
PLAN = exit_plan(5)
QUANTIZED = DraftPlan.model_validate({"source": {"kind": "quantized"}})
ZERO = Selected(step="zero", plan=PLAN, extra_bytes=4, speedup=1.5)
NEXT = Selected(step="quantized", plan=QUANTIZED, extra_bytes=270, speedup=1.9)
NONE = Selected(step="zero", plan=PLAIN, extra_bytes=0, speedup=None)


def _token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
    """The plan is 1.5 times as fast, up to a little more or less from prompt to prompt."""
    length = 1.0 + 0.1 * ids[0]
    speed = {PLAN: 1.5 + 0.05 * (ids[0] % 3 - 1), QUANTIZED: 2.0}.get(plan, 1.0)
    return length / speed


def _no_margin(prompt_ids: Sequence[int], common_ids: Sequence[int], settings: GenerationSettings) -> float:
    raise AssertionError("nothing diverged")


def _judge(
    *selected: Selected, factory: ScriptedFactory | None = None, num_prompts: int = 8, **changes: Any
) -> tuple[MemoryStep, ...]:
    values = {
        "make_engine": factory or ScriptedFactory(_token_s),
        "prompts": scripted_prompts(num_prompts, kinds=("chat", "code")),
        "settings": (GREEDY,),
        "margin": _no_margin,
    }
    return Verdict(held_out=HeldOut(**{**values, **changes}), weight_bytes=1000).judge(selected)


def _overall(step: MemoryStep) -> KindResult:
    assert step.overall is not None
    return step.overall


def test_a_plan_that_is_faster_on_held_out_prompts_is_enabled() -> None:
    (step,) = _judge(ZERO)
    assert step.enabled
    assert (step.name, step.plan, step.extra_bytes, step.extra_share) == ("zero", PLAN, 4, 0.004)
    assert _overall(step).speedup.value == pytest.approx(1.5, abs=0.02)
    assert 1.4 < _overall(step).speedup.low < _overall(step).speedup.high < 1.6
    assert step.reason.startswith("On 8 held-out prompts it decodes 1.49 times as fast as plain decoding")
    assert "95% interval 1.46 to 1.53" in step.reason


def test_a_plan_that_may_bring_nothing_is_not() -> None:
    factory = ScriptedFactory(lambda plan, ids: 1.0 if plan.is_plain else (0.7, 1.2)[ids[0] % 2])
    (step,) = _judge(ZERO, factory=factory)
    assert _overall(step).speedup.value > 1.0 > _overall(step).speedup.low
    assert not step.enabled
    assert "plain decoding is used" in step.reason
    assert step.plan == PLAN


@pytest.mark.parametrize(("speed", "enabled"), [(1.015, False), (1.025, True)])
def test_with_few_prompts_the_value_has_to_clear_a_little_more(speed: float, enabled: bool) -> None:
    factory = ScriptedFactory(lambda plan, ids: 1.0 if plan.is_plain else 1.0 / speed)
    (step,) = _judge(ZERO, factory=factory, num_prompts=4)
    assert step.enabled is enabled
    assert "too few prompts" in step.reason
    assert _overall(step).speedup.low is None


@pytest.mark.parametrize(
    ("interval", "enough"),
    [
        (Interval(value=1.5, low=1.001, high=2.0), True),
        (Interval(value=1.5, low=1.0, high=2.0), False),
        (Interval(value=1.03), True),
        (Interval(value=1.02), False),
    ],
)
def test_what_is_enough(interval: Interval, enough: bool) -> None:
    assert clears(interval) is enough


def test_each_prompt_is_measured_in_one_mirrored_block_with_transformers_in_the_middle() -> None:
    factory = ScriptedFactory(_token_s)
    stock = EngineArm("stock", ScriptedEngine(log=factory.log, name="stock"))
    _judge(ZERO, NEXT, factory=factory, num_prompts=1, stock=stock)
    plain, plan, quantized = (each.describe() for each in (PLAIN, PLAN, QUANTIZED))
    assert factory.log[4:] == [plain, plan, quantized, "stock", quantized, plan, plain]


def test_there_is_a_row_for_each_kind_and_one_for_all() -> None:
    (step,) = _judge(ZERO)
    assert [(row.kind, row.num_prompts) for row in step.results] == [("chat", 4), ("code", 4), ("all", 8)]
    assert {row.sampling for row in step.results} == {"greedy"}


def test_rates_are_totals_of_tokens_over_totals_of_seconds() -> None:
    stock = EngineArm("stock", ScriptedEngine(token_s=2.0))
    factory = ScriptedFactory(lambda plan, ids: (1.0 if plan.is_plain else 0.5) * (1.0, 3.0)[ids[0]])
    (step,) = _judge(ZERO, factory=factory, num_prompts=2, stock=stock)
    row = _overall(step)
    assert row.plain_tokens_per_s == pytest.approx(0.5)
    assert row.plan_tokens_per_s == pytest.approx(1.0)
    assert row.stock_tokens_per_s == pytest.approx(0.5)
    assert row.speedup_over_stock == pytest.approx(2.0)


def test_counts_and_shares_are_those_of_the_plan() -> None:
    row = _overall(_judge(ZERO)[0])
    assert row.tokens_per_round == pytest.approx(2.0)
    assert row.acceptance_rate == pytest.approx(5 / 11)
    assert (row.time.draft, row.time.verify, row.time.host) == pytest.approx((0.25, 0.5, 0.25))
    assert row.time_to_first_token_s == 0.5


def test_further_temperatures_add_rows_and_change_no_verdict() -> None:
    (step,) = _judge(ZERO, settings=(GREEDY, WARM))
    assert [row.sampling.startswith("temperature") for row in step.results] == [False] * 3 + [True] * 3
    assert step.overall is step.results[2]


def test_equal_texts_are_counted() -> None:
    assert _overall(_judge(ZERO)[0]).num_identical == 8
    assert _overall(_judge(ZERO)[0]).largest_divergence_margin is None


def test_the_largest_margin_at_a_first_divergence_is_reported() -> None:
    asked = []

    def margin(prompt_ids: Sequence[int], common_ids: Sequence[int], settings: GenerationSettings) -> float:
        asked.append((prompt_ids, common_ids, settings))
        return 0.01 * prompt_ids[0]

    def tokens(plan: DraftPlan, index: int) -> int:
        return 1 if plan == PLAN and index == 3 else 100 + index

    factory = ScriptedFactory(_token_s, tokens=tokens)
    (step,) = _judge(ZERO, factory=factory, margin=margin, num_prompts=5)
    assert _overall(step).num_identical == 0
    assert _overall(step).largest_divergence_margin == pytest.approx(0.04)
    assert sorted(each[0] for each in asked) == [(0,), (1,), (2,), (3,), (4,)]
    assert {each[1:] for each in asked} == {((100, 101, 102), GREEDY)}
    by_kind = {row.kind: row.largest_divergence_margin for row in step.results}
    assert by_kind == pytest.approx({"chat": 0.04, "code": 0.03, "all": 0.04})


def test_sampled_texts_may_differ() -> None:
    factory = ScriptedFactory(_token_s, tokens=lambda plan, index: 1 if plan == PLAN else 2)
    (step,) = _judge(ZERO, factory=factory, settings=(WARM,))
    assert (_overall(step).num_identical, _overall(step).largest_divergence_margin) == (0, None)


def test_where_transformers_fails_it_is_left_out_and_said_once() -> None:
    heard: list[Event] = []
    engine = ScriptedEngine(error=NumericalError("generate refuses"))
    (step,) = _judge(ZERO, stock=EngineArm("stock", engine), listener=heard.append)
    assert len(engine.calls) == 1
    assert step.enabled
    assert (_overall(step).stock_tokens_per_s, _overall(step).speedup_over_stock) == (None, None)
    assert ["generate refuses" in event.text for event in heard if isinstance(event, Noted)] == [True]


def test_a_plan_that_fails_on_a_held_out_prompt_is_not_enabled() -> None:
    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        if plan == PLAN and ids == (3,):
            raise NumericalError("NaN in layer 2")
        return _token_s(plan, ids)

    zero, quantized = _judge(ZERO, NEXT, factory=ScriptedFactory(token_s))
    assert not zero.enabled
    assert "NaN in layer 2" in zero.reason
    assert zero.results == ()
    assert quantized.enabled
    assert _overall(quantized).num_prompts == 8


def test_where_plain_decoding_fails_there_is_no_verdict() -> None:
    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        if plan.is_plain and ids == (3,):
            raise NumericalError("NaN")
        return _token_s(plan, ids)

    with pytest.raises(NumericalError):
        _judge(ZERO, factory=ScriptedFactory(token_s))


def test_without_a_plan_nothing_is_measured() -> None:
    factory = ScriptedFactory(_token_s)
    (step,) = _judge(NONE, factory=factory)
    assert (step.enabled, step.plan, step.results) == (False, PLAIN, ())
    assert factory.log == []


def test_answers_of_one_token_leave_nothing_to_time() -> None:
    (step,) = _judge(ZERO, factory=ScriptedFactory(_token_s, num_tokens=1))
    assert not step.enabled
    assert "more than one token" in step.reason
    assert step.results == ()


def test_the_prompts_of_a_kind_that_end_at_once_make_no_row() -> None:
    class Brief(ScriptedFactory):
        def __call__(self, plan: DraftPlan = PLAIN) -> ScriptedEngine:
            engine = super().__call__(plan)
            engine.num_tokens = lambda ids: 1 if ids[0] % 2 else 11
            return engine

    (step,) = _judge(ZERO, factory=Brief(_token_s))
    assert [(row.kind, row.num_prompts) for row in step.results] == [("chat", 4), ("all", 4)]


@pytest.mark.parametrize("error", [NumericalError("no kernel"), MemoryError("no room")])
def test_a_plan_that_does_not_warm_up_costs_the_others_nothing(error: Exception) -> None:
    factory = ScriptedFactory(_token_s, refuse=lambda plan: error if plan == PLAN else None)
    zero, quantized = _judge(ZERO, NEXT, factory=factory)
    assert (zero.enabled, zero.results) == (False, ())
    assert str(error) in zero.reason
    assert quantized.enabled
    assert _overall(quantized).num_prompts == 8


def test_without_plain_decoding_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(NumericalError):
        _judge(
            ZERO, factory=ScriptedFactory(_token_s, refuse=lambda plan: NumericalError("x") if plan.is_plain else None)
        )


def test_transformers_is_warmed_up_as_our_engines_are() -> None:
    engine = ScriptedEngine()
    _judge(ZERO, stock=EngineArm("stock", engine), num_prompts=2)
    assert [each.max_new_tokens for each in engine.settings] == [WARM_UP_TOKENS, 100, 100]


def test_turns_of_one_question_are_one_prompt_of_the_sample() -> None:
    """Six questions of two turns, of which only the second tells the plans apart, are six answers and no more."""

    def follow_up(prompt: MeasuredPrompt, block: Block) -> MeasuredPrompt | None:
        del block
        again = MeasuredPrompt(f"{prompt.prompt_id}, again", prompt.kind, (*prompt.token_ids, 1))
        return again if len(prompt.token_ids) == 1 else None

    def tokens(plan: DraftPlan, index: int) -> int:
        return 1 if plan == PLAN and index == 10 else 100 + index

    factory = ScriptedFactory(lambda plan, ids: (0.5 if plan == PLAN else 1.0) / len(ids), tokens=tokens)
    (step,) = _judge(ZERO, factory=factory, num_prompts=6, follow_up=follow_up, margin=lambda *_: 0.0)
    row = _overall(step)
    assert (row.num_prompts, row.num_identical) == (6, 0)
    assert "6 held-out prompts" in step.reason
    (few,) = _judge(ZERO, factory=factory, num_prompts=4, follow_up=follow_up, margin=lambda *_: 0.0)
    assert _overall(few).speedup.low is None
    assert _overall(few).speedup.value == pytest.approx(2.0)
