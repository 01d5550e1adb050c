from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.plan_world import NGRAM, exit_plan
from tests.support.scripted import ScriptedFactory, scripted_prompts
from tests.support.workspaces import fast_workspace_in

from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.head_to_head import HeadToHead
from selfspec_calibrate.interleave import shuffled
from selfspec_calibrate.interval import MIN_PROMPTS
from selfspec_calibrate.selection import Selected, Selection
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.errors import Interrupted, NumericalError, PlanError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

SETTINGS = GenerationSettings(max_new_tokens=100)
PROMPTS = scripted_prompts(6)
WEIGHT_BYTES = 1000
QUANTIZED = DraftPlan.model_validate({"source": {"kind": "quantized"}})
QUANTIZED_HEAD = DraftPlan.model_validate({"source": {"kind": "quantized", "quantize_head": True}})
HELD = {QUANTIZED: 270, QUANTIZED_HEAD: 300}


def _timed(plan: DraftPlan, speedup: float, num_prompts: int = len(PROMPTS)) -> TimedPlan:
    return TimedPlan(plan=plan, predicted_speedup=None, measured_speedup=speedup, num_prompts=num_prompts)


def _factory(speedups: dict[DraftPlan, float], **changes: Any) -> ScriptedFactory:
    """Plans whose true speed is given; plain decoding takes one second per token."""
    return ScriptedFactory(
        lambda plan, ids: 1.0 / speedups.get(plan, 1.0), extra_bytes=lambda plan: HELD.get(plan, 0), **changes
    )


def _select(timed: list[TimedPlan], factory: ScriptedFactory, **changes: Any) -> tuple[Selected, ...]:
    own = {name: changes.pop(name) for name in ("num_timed", "foresee") if name in changes}
    contest = HeadToHead(**{"prompts": PROMPTS, "settings": SETTINGS, **changes})
    return Selection(make_engine=factory, head_to_head=contest, weight_bytes=WEIGHT_BYTES, **own).select(timed)


SUFFIX = DraftPlan.model_validate({"source": {"kind": "suffix"}})


def test_the_lucky_winner_of_the_search_loses_when_measured_anew() -> None:
    lucky, good = exit_plan(4), exit_plan(5)
    (chosen,) = _select([_timed(lucky, 1.55), _timed(good, 1.5)], _factory({lucky: 1.3, good: 1.5}))
    assert (chosen.plan, chosen.step) == (good, "zero")
    assert chosen.speedup == pytest.approx(1.5)


@pytest.mark.parametrize(("ngram", "suffix"), [(1.5, 1.51), (1.51, 1.5), (1.5, 1.6)])
def test_among_plans_that_cost_the_user_nothing_the_fastest_wins_however_near(ngram: float, suffix: float) -> None:
    """A longer draft, a confidence, another kind of lookup, and a table of some bytes are nobody's loss."""
    speeds = {NGRAM: ngram, SUFFIX: suffix}
    factory = ScriptedFactory(lambda plan, ids: 1.0 / speeds.get(plan, 1.0), extra_bytes=lambda plan: plan == SUFFIX)
    (chosen,) = _select([_timed(plan, speed) for plan, speed in speeds.items()], factory)
    assert chosen.plan == max(speeds, key=lambda plan: speeds[plan])


def test_within_the_tolerance_clearly_less_memory_wins() -> None:
    timed = [_timed(QUANTIZED_HEAD, 2.0), _timed(QUANTIZED, 1.99)]
    _zero, chosen = _select(timed, _factory({QUANTIZED_HEAD: 2.0, QUANTIZED: 1.99}))
    assert (chosen.plan, chosen.extra_bytes) == (QUANTIZED, 270)
    _zero, chosen = _select(timed, _factory({QUANTIZED_HEAD: 2.0, QUANTIZED: 1.94}))
    assert chosen.plan == QUANTIZED_HEAD


def test_memory_within_a_hundredth_of_the_weights_is_no_less() -> None:
    held = {QUANTIZED: 270, QUANTIZED_HEAD: 280}
    speeds = {QUANTIZED: 1.99, QUANTIZED_HEAD: 2.0}
    factory = ScriptedFactory(lambda plan, ids: 1.0 / speeds.get(plan, 1.0), extra_bytes=lambda p: held.get(p, 0))
    assert _select([_timed(plan, speed) for plan, speed in speeds.items()], factory)[1].plan == QUANTIZED_HEAD


def test_each_family_has_a_finalist_before_any_has_two() -> None:
    """A search tries many n-gram plans; all of them together must not keep the one suffix plan out."""
    ngrams = [NGRAM.model_copy(update={"controller": FixedSpec(num_draft_tokens=n)}) for n in (3, 5, 6, 7)]
    timed = [*(_timed(plan, 1.55 - 0.01 * place) for place, plan in enumerate(ngrams)), _timed(SUFFIX, 1.46)]
    factory = _factory({SUFFIX: 1.61, **dict.fromkeys(ngrams, 1.53)})
    (chosen,) = _select(timed, factory)
    assert chosen.plan == SUFFIX
    assert set(factory.log) == {each.describe() for each in (PLAIN, *ngrams[:2], SUFFIX)}


@pytest.mark.parametrize("seed", range(12))
def test_a_true_lead_of_four_per_cent_is_found_whoever_led_on_the_few_prompts_of_the_search(seed: int) -> None:
    """Speeds that differ from prompt to prompt and from run to run, and a search that saw five prompts."""
    noise, prompts = random.Random(seed), scripted_prompts(20)
    by_prompt = {(plan, prompt.token_ids): noise.gauss(1.0, 0.05) for plan in (NGRAM, SUFFIX) for prompt in prompts}
    fast = {NGRAM: 1.53, SUFFIX: 1.60}

    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        return noise.gauss(1.0, 0.02) * by_prompt.get((plan, ids), 1.0) / fast.get(plan, 1.0)

    true = {plan: sum(by_prompt[plan, p.token_ids] / fast[plan] for p in prompts) for plan in fast}
    timed = [_timed(NGRAM, 1.54, 5), _timed(SUFFIX, 1.51, 5)]
    (chosen,) = _select(timed, ScriptedFactory(token_s), prompts=prompts, num_timed=5)
    assert true[chosen.plan] <= 1.01 * min(true.values())


def test_where_time_allows_one_prompt_only_the_search_weighs_more() -> None:
    """One prompt may be anybody's best; five prompts of the search say more."""

    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        return {NGRAM: 0.66, SUFFIX: 0.68}.get(plan, 1.0)

    timed = [_timed(NGRAM, 1.50), _timed(SUFFIX, 1.58)]
    cut = {"deadline": 0.0, "clock": lambda: 1.0}
    assert _select(timed, ScriptedFactory(token_s), **cut)[0].plan == SUFFIX
    assert _select(timed, ScriptedFactory(token_s))[0].plan == NGRAM, "head to head has settled it"


def test_prompts_for_which_the_time_did_not_suffice_count_by_their_predictions() -> None:
    """The first prompts happen to suit n-grams; replays know that the others suit suffixes, and by how much."""
    prompts = scripted_prompts(20)
    first = {prompt.token_ids[0] for prompt in shuffled(prompts, seed=0)[:4]}

    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        suits = NGRAM if ids[0] in first else SUFFIX
        return 1.0 if plan.is_plain else 0.6 if plan == suits else 0.63

    def foresee(plan: DraftPlan, prompt_ids: Collection[str]) -> float:
        return len(prompt_ids) / sum(0.9 * token_s(plan, (int(each[1:]),)) for each in prompt_ids)

    timed = [_timed(plan, 1 / 0.615, 1) for plan in (NGRAM, SUFFIX)]
    ticks = iter(range(100))
    cut = {"prompts": prompts, "num_timed": 1, "deadline": 3}
    (blind,) = _select(timed, ScriptedFactory(token_s), **cut, clock=lambda: next(ticks))
    ticks = iter(range(100))
    (chosen,) = _select(timed, ScriptedFactory(token_s), **cut, clock=lambda: next(ticks), foresee=foresee)
    assert (blind.plan, chosen.plan) == (NGRAM, SUFFIX)
    ticks = iter(range(100))
    unknown = {"foresee": lambda plan, ids: None if plan == NGRAM else 1.0, "clock": lambda: next(ticks)}
    assert _select(timed, ScriptedFactory(token_s), **cut, **unknown)[0].plan == NGRAM


def test_where_head_to_head_settles_nothing_all_evidence_decides() -> None:
    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        even = ids[0] % 2 == 0
        return {NGRAM: 0.5 if even else 0.81, SUFFIX: 0.8 if even else 0.5}.get(plan, 1.0)

    timed = {plan: _timed(plan, speed) for plan, speed in {NGRAM: 1.58, SUFFIX: 1.50}.items()}
    assert _select(list(timed.values()), ScriptedFactory(token_s), max_turns=1)[0].plan == NGRAM
    again = [timed[SUFFIX], timed[NGRAM].model_copy(update={"measured_speedup": 1.501})]
    assert _select(again, ScriptedFactory(token_s), max_turns=1)[0].plan == SUFFIX


def test_each_memory_step_has_its_own_winner() -> None:
    timed = [_timed(QUANTIZED, 1.9), _timed(exit_plan(5), 1.2), _timed(PLAIN, 1.0)]
    chosen = _select(timed, _factory({QUANTIZED: 1.9, exit_plan(5): 1.2}))
    assert [(each.step, each.plan) for each in chosen] == [("zero", exit_plan(5)), ("quantized", QUANTIZED)]


def test_without_a_plan_of_the_zero_step_plain_decoding_stands_in() -> None:
    zero, quantized = _select([_timed(QUANTIZED, 1.9), _timed(PLAIN, 1.0)], _factory({}))
    assert (zero.step, zero.plan, zero.speedup) == ("zero", PLAIN, None)
    assert quantized.plan == QUANTIZED


def test_one_that_has_no_rival_is_not_measured_again() -> None:
    factory = _factory({})
    chosen = _select([_timed(QUANTIZED, 1.9), _timed(NGRAM, 1.2)], factory)
    assert factory.log == []
    assert [each.speedup for each in chosen] == [1.2, 1.9]


def test_all_finalists_share_the_baseline_in_mirrored_blocks() -> None:
    a, b = exit_plan(4), exit_plan(5)
    factory = _factory({a: 1.5, b: 1.5})
    _select([_timed(a, 1.5), _timed(b, 1.5)], factory, prompts=PROMPTS[:1], max_turns=1)
    names = [plan.describe() for plan in (PLAIN, a, b)]
    assert sorted(factory.log[:3]) == sorted(names), "each is warmed up"
    assert factory.log[3:] == [*names, *reversed(names)]


def test_only_the_best_few_that_are_close_are_finalists() -> None:
    close = [exit_plan(layer) for layer in (1, 2, 3, 4)]
    far = exit_plan(9)
    timed = [*(_timed(plan, 1.5 - 0.01 * place) for place, plan in enumerate(close)), _timed(far, 1.3)]
    factory = _factory({})
    _select(timed, factory)
    measured = set(factory.log)
    assert measured == {PLAIN.describe(), *(plan.describe() for plan in close[:3])}


def test_plans_that_were_given_up_are_finalists_only_if_there_is_no_other() -> None:
    lucky, whole = exit_plan(1), exit_plan(2)
    assert _select([_timed(lucky, 3.0, 2), _timed(whole, 1.2)], _factory({}))[0].plan == whole
    assert _select([_timed(lucky, 0.7, 2)], _factory({}))[0].plan == lucky


def test_a_plan_given_up_after_one_lucky_prompt_loses_also_where_few_prompts_were_timed() -> None:
    lucky, good = exit_plan(4), exit_plan(5)
    timed = [_timed(lucky, 2.3, num_prompts=1), _timed(good, 1.4, num_prompts=4)]
    (chosen,) = _select(timed, _factory({lucky: 1.1, good: 1.4}), num_timed=4)
    assert chosen.plan == good


def test_the_order_of_the_results_does_not_matter() -> None:
    timed = [_timed(exit_plan(9), 1.1), _timed(QUANTIZED, 1.9), _timed(exit_plan(5), 1.4), _timed(QUANTIZED_HEAD, 1.5)]
    chosen = _select(timed, _factory({}))
    assert [each.plan for each in chosen] == [exit_plan(5), QUANTIZED]


def test_a_finalist_that_fails_is_passed_over() -> None:
    bad, good = exit_plan(4), exit_plan(5)

    def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
        if plan == bad and ids == (3,):
            raise NumericalError("NaN")
        return 1.0 if plan.is_plain else 0.5

    assert _select([_timed(bad, 1.55), _timed(good, 1.5)], ScriptedFactory(token_s))[0].plan == good
    refusing = _factory({}, refuse=lambda plan: PlanError("no") if plan == bad else None)
    assert _select([_timed(bad, 1.55), _timed(good, 1.5)], refusing)[0].plan == good


def test_the_deadline_leaves_at_least_one_prompt() -> None:
    a, b = exit_plan(4), exit_plan(5)
    factory = _factory({a: 1.2, b: 1.5})
    (chosen,) = _select([_timed(a, 1.5), _timed(b, 1.5)], factory, deadline=0.0, clock=lambda: 1.0)
    assert chosen.plan == b
    assert len(factory.log) == 3 + 6


class TestInterruption:
    @pytest.fixture(autouse=True)
    def _python_handler(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_what_was_measured_is_not_measured_again(self, tmp_path: Path) -> None:
        a, b = exit_plan(4), exit_plan(5)
        seen: Counter[tuple[DraftPlan, tuple[int, ...]]] = Counter()

        def token_s(plan: DraftPlan, ids: tuple[int, ...]) -> float:
            seen[plan, ids] += 1
            if sum(seen.values()) == 3 + 6 + 2:
                signal.raise_signal(signal.SIGINT)
            return {a: 0.8, b: 0.5}.get(plan, 1.0)

        with fast_workspace_in(tmp_path) as workspace:
            store = BlockStore(workspace, "finals.json")
            with pytest.raises(Interrupted, match="same command"):
                _select([_timed(a, 1.5), _timed(b, 1.5)], ScriptedFactory(token_s), store=store)
            assert sum(seen.values()) == 3 + 2 * 6
            (chosen,) = _select([_timed(a, 1.5), _timed(b, 1.5)], ScriptedFactory(token_s), store=store)
        assert chosen.plan == b
        warm_ups = 2 * 3
        assert sum(seen.values()) == warm_ups + 6 * MIN_PROMPTS, "then b is ahead"


def test_a_finalist_that_does_not_warm_up_is_passed_over() -> None:
    first, second, third = exit_plan(3), exit_plan(4), exit_plan(5)
    factory = _factory({first: 1.6, second: 1.5, third: 1.4})

    class Failing:
        extra_bytes = 0

        def generate(self, *_: object) -> None:
            raise MemoryError("no room")

    def make(plan: DraftPlan) -> Any:
        return Failing() if plan == first else factory(plan)

    timed = [_timed(plan, speed) for plan, speed in ((first, 1.6), (second, 1.55), (third, 1.54))]
    (chosen,) = _select(timed, make)  # type: ignore[arg-type]
    assert chosen.plan == second
    (alone,) = _select(timed[:1], make)  # type: ignore[arg-type]
    assert alone.plan == first, "the verdict reports it"
