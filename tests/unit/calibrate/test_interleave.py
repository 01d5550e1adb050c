from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripted import ScriptedEngine, scripted_prompts

from selfspec_calibrate.interleave import run_block, shuffled
from selfspec_calibrate.measurement import EngineArm, MeasuredPrompt
from selfspec_runtime.errors import NumericalError, SelfspecError
from selfspec_runtime.generation import GenerationSettings

SETTINGS = GenerationSettings(max_new_tokens=100)
PROMPT = MeasuredPrompt("a", "chat", (1,))


@dataclass
class Stage:
    """Arms that write their names into one log."""

    log: list[str] = field(default_factory=list)

    def arm(self, name: str, **arguments: object) -> EngineArm:
        return EngineArm(name, ScriptedEngine(log=self.log, name=name, **arguments))


def test_blocks_are_mirrored() -> None:
    stage = Stage()
    block = run_block([stage.arm("plain"), stage.arm("A"), stage.arm("B")], PROMPT, SETTINGS)
    assert stage.log == ["plain", "A", "B", "B", "A", "plain"]
    assert {name: len(runs) for name, runs in block.runs.items()} == {"plain": 2, "A": 2, "B": 2}
    assert {run.arm for run in block.runs["A"]} == {"A"}


def test_the_middle_runs_once() -> None:
    stage = Stage()
    run_block([stage.arm("plain"), stage.arm("A")], PROMPT, SETTINGS, middle=[stage.arm("stock")], repeats=2)
    assert stage.log == ["plain", "A", "stock", "A", "plain"] * 2


@given(st.floats(0.0, 0.5), st.integers(1, 3), st.integers(1, 3))
def test_a_machine_that_slows_down_evenly_favours_nobody(drift: float, num_plans: int, repeats: int) -> None:
    stage = Stage()

    def slower_each_time(_ids: tuple[int, ...]) -> float:
        return 1.0 + drift * len(stage.log)

    names = ["plain", *(f"plan {index}" for index in range(num_plans))]
    arms = [stage.arm(name, token_s=slower_each_time) for name in names]
    block = run_block(arms, PROMPT, SETTINGS, repeats=repeats, middle=[stage.arm("stock", token_s=slower_each_time)])
    means = [sum(run.decode_s for run in runs) / len(runs) for runs in block.runs.values()]
    assert means == pytest.approx([means[0]] * len(means))


def test_a_plan_that_fails_loses_its_runs_and_holds_nobody_up() -> None:
    stage = Stage()
    calls: list[int] = []

    def second_call(_ids: tuple[int, ...]) -> Exception | None:
        calls.append(1)
        return NumericalError("NaN in layer 3") if len(calls) == 2 else None

    block = run_block([stage.arm("plain"), stage.arm("A", error=second_call), stage.arm("B")], PROMPT, SETTINGS)
    assert stage.log == ["plain", "A", "B", "B", "A", "plain"]
    assert set(block.runs) == {"plain", "B"}
    assert str(block.failures["A"]) == "NaN in layer 3"


def test_a_failed_plan_is_not_tried_again_in_the_block() -> None:
    stage = Stage()
    run_block([stage.arm("plain"), stage.arm("A", error=NumericalError("x"))], PROMPT, SETTINGS, repeats=2)
    assert stage.log.count("A") == 1


def test_memory_that_runs_out_is_a_failure_with_a_name() -> None:
    stage = Stage()
    block = run_block([stage.arm("plain"), stage.arm("A", error=MemoryError())], PROMPT, SETTINGS)
    assert isinstance(block.failures["A"], SelfspecError)
    assert "Memory ran out" in str(block.failures["A"])


def test_a_fault_of_the_program_is_not_hidden() -> None:
    stage = Stage()
    with pytest.raises(ZeroDivisionError):
        run_block([stage.arm("plain"), stage.arm("A", error=ZeroDivisionError())], PROMPT, SETTINGS)


def test_where_the_baseline_fails_no_plan_is_to_blame() -> None:
    stage = Stage()
    with pytest.raises(NumericalError):
        run_block([stage.arm("plain", error=NumericalError("x")), stage.arm("A")], PROMPT, SETTINGS)
    assert stage.log == ["plain"]


@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, 100))
def test_every_prompt_comes_once_and_kinds_take_turns(count: int, num_kinds: int, seed: int) -> None:
    prompts = scripted_prompts(count, kinds=tuple("abcd"[:num_kinds]))
    order = shuffled(prompts, seed=seed)
    assert sorted(order, key=lambda prompt: prompt.token_ids) == prompts
    first = order[:num_kinds]
    assert len({prompt.kind for prompt in first}) == len(first)
    assert order == shuffled(prompts, seed=seed)


def test_the_seed_makes_the_order() -> None:
    prompts = scripted_prompts(20)
    assert shuffled(prompts, seed=0) != shuffled(prompts, seed=1)
    assert shuffled(prompts, seed=0) != prompts
