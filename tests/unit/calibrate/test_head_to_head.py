from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted import ScriptedEngine, scripted_prompts
from tests.support.workspaces import fast_workspace_in

from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.head_to_head import HeadToHead, Standings
from selfspec_calibrate.interval import MIN_PROMPTS
from selfspec_calibrate.measurement import EngineArm
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.generation import GenerationSettings

SETTINGS = GenerationSettings(max_new_tokens=100)
PROMPTS = scripted_prompts(8)


def arm(name: str, log: list[str], token_s: Any = 1.0, **changes: Any) -> EngineArm:
    return EngineArm(name, ScriptedEngine(token_s=token_s, log=log, name=name, **changes))


def alternating(low: float, high: float) -> Any:
    """Fast on even prompts, slow on odd ones."""
    return lambda ids: low if ids[0] % 2 == 0 else high


def measured(log: list[str], *groups: list[EngineArm], **changes: Any) -> Standings:
    values = {"prompts": PROMPTS, "settings": SETTINGS}
    return HeadToHead(**{**values, **changes}).measure(groups, baseline=arm("plain", log))


def test_a_rival_leaves_as_soon_as_there_is_an_interval_and_it_is_behind() -> None:
    log: list[str] = []
    found = measured(log, [arm("slow", log, 0.9), arm("fast", log, 0.8)])
    assert found.contenders == (("fast",),)
    assert Counter(log) == dict.fromkeys(("plain", "slow", "fast"), 2 * MIN_PROMPTS)
    assert found.speedup("fast") == pytest.approx(1.25)
    assert found.speedup("slow", over="fast") == pytest.approx(8 / 9)


def test_who_is_equal_on_every_prompt_is_no_rival_either() -> None:
    log: list[str] = []
    found = measured(log, [arm("one", log, 0.8), arm("other", log, 0.8)])
    assert found.contenders == (("one",),)
    assert len(found.blocks) == MIN_PROMPTS


def test_rivals_who_win_on_different_prompts_meet_until_all_turns_are_over() -> None:
    log: list[str] = []
    rivals = [arm("even", log, alternating(0.5, 0.9)), arm("odd", log, alternating(0.9, 0.49))]
    found = measured(log, rivals, max_turns=3)
    assert found.contenders == (("even", "odd"),)
    assert len(found.blocks) == 3 * len(PROMPTS)
    assert found.num_blocks("even", "odd") == len(found.blocks)
    assert {pair.plan_s for pair in found.pairs("even")} == {3 * 2 * 10 * 0.5, 3 * 2 * 10 * 0.9}


def test_the_time_of_those_who_left_is_the_others() -> None:
    log: list[str] = []
    near = [arm("even", log, alternating(0.5, 0.9)), arm("odd", log, alternating(0.9, 0.49))]
    found = measured(log, [*near, arm("far", log, 0.95)], [arm("alone", log)], max_turns=1)
    runs = Counter(log)
    assert runs["far"] < runs["even"] == runs["odd"] == 2 * len(PROMPTS)
    assert "alone" not in runs, "one without a rival has nothing to prove"
    assert found.contenders == (("even", "odd"), ("alone",))


def test_each_group_has_its_own_winner() -> None:
    log: list[str] = []
    zero = [arm("a", log, 0.9), arm("b", log, 0.8)]
    more = [arm("c", log, 0.4), arm("d", log, 0.5)]
    assert measured(log, zero, more).contenders == (("b",), ("c",))


def test_the_deadline_leaves_one_prompt() -> None:
    log: list[str] = []
    found = measured(log, [arm("a", log), arm("b", log, 0.9)], deadline=0.0, clock=lambda: 1.0)
    assert len(found.blocks) == 1
    assert found.contenders == (("a", "b"),)


def test_too_few_prompts_for_an_interval_leave_everybody_in() -> None:
    log: list[str] = []
    found = measured(log, [arm("a", log), arm("b", log, 0.9)], prompts=PROMPTS[: MIN_PROMPTS - 1], max_turns=2)
    assert found.contenders == (("a", "b"),)
    assert len(found.blocks) == 2 * (MIN_PROMPTS - 1)


def test_who_fails_is_out_and_the_others_go_on() -> None:
    log: list[str] = []
    error = NumericalError("NaN")
    bad = arm("bad", log, 0.1, error=lambda ids: error if ids == (3,) else None)
    found = measured(log, [bad, arm("good", log, 0.9), arm("better", log, 0.8)])
    assert found.contenders == (("better",),)
    assert found.failed == {"bad"}


def test_if_all_fail_nobody_is_left() -> None:
    log: list[str] = []
    bad = [arm(name, log, error=NumericalError("NaN")) for name in "ab"]
    found = measured(log, bad)
    assert found.contenders == ((),)
    assert found.failed == {"a", "b"}
    assert found.speedup("a") is None


def test_a_rerun_goes_no_farther_than_the_time_of_the_first_run_allowed(tmp_path: Path) -> None:
    """Its blocks come from the file at once, and further ones might change what was chosen."""
    log: list[str] = []
    rivals = [arm("even", log, alternating(0.5, 0.9)), arm("odd", log, alternating(0.9, 0.49))]
    with fast_workspace_in(tmp_path) as workspace:
        store = BlockStore(workspace, "finals.json")
        ticks = iter(range(100))
        first = measured(log, rivals, store=store, deadline=3, clock=lambda: float(next(ticks)))
        assert len(first.blocks) == 4
        assert measured(log, rivals, store=store) == first
        assert measured(log, rivals, store=store, deadline=0.0, clock=lambda: 1.0) == first
        assert len(log) == 4 * 6
        assert len(measured(log, [*rivals, arm("far", log)], store=store, max_turns=1).blocks) == len(PROMPTS)


def test_blocks_are_kept_turn_by_turn(tmp_path: Path) -> None:
    """The same arms on the same prompt again is another measurement, and a rerun takes both from the file."""
    log: list[str] = []
    rivals = [arm("even", log, alternating(0.5, 0.9)), arm("odd", log, alternating(0.9, 0.49))]
    with fast_workspace_in(tmp_path) as workspace:
        store = BlockStore(workspace, "finals.json")
        first = measured(log, rivals, max_turns=2, store=store)
        num_runs = len(log)
        assert num_runs == 2 * len(PROMPTS) * 6
        assert measured(log, rivals, max_turns=2, store=store) == first
    assert len(log) == num_runs
