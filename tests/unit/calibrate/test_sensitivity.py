from __future__ import annotations

import pytest
from tests.support.scored_traces import plain_traces, tiny_states
from tests.support.tiny_models import planted_skip, tiny_model, tiny_target

from selfspec_calibrate.cost_model import CostModel
from selfspec_calibrate.scoring import Scorer
from selfspec_calibrate.sensitivity import affordable, measure_sensitivity
from selfspec_calibrate.trace_state import compute_states
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.generation import GREEDY
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.target import Target

COST = CostModel(
    CostTable(context_lengths=(8,), pass_s=((5.0,),), attention_s=(0.2,), mlp_s=0.8, head_s=1.0, host_s=0.0), 4
)


def test_planted_sublayers_are_found_to_be_free_and_the_others_not() -> None:
    target = Target(planted_skip(tiny_model("llama"), attention=[1], mlp=[2]))
    done: list[int] = []
    states = compute_states(target, plain_traces(target), GREEDY)
    found = measure_sensitivity(target, states, GREEDY, max_rows=99, on_progress=done.append)
    assert found.attention[1] == found.mlp[2] == 1.0
    others = [*(a for i, a in enumerate(found.attention) if i != 1), *(a for i, a in enumerate(found.mlp) if i != 2)]
    assert len(others) == 6
    assert max(others) < 1.0
    assert done == list(range(1, 9))


def test_each_entry_is_the_agreement_of_that_skip_set() -> None:
    target, states = tiny_target("llama"), tiny_states("llama")
    found = measure_sensitivity(target, states, GREEDY, max_rows=1)
    scorer = Scorer(target, states[:1], GREEDY, {})
    assert found.attention[3] == scorer.agreement(LayerSkipSpec(skip=LayerSkipSet(attention=[3])))
    assert found.mlp[0] == scorer.agreement(LayerSkipSpec(skip=LayerSkipSet(mlp=[0])))


@pytest.mark.parametrize(("max_seconds", "num_states"), [(0.0, 1), (32.0, 2), (10**6, 4)])
def test_rows_follow_from_the_time_allowed(max_seconds: float, num_states: int) -> None:
    """A pass over a trace takes 2 seconds by this clock, so that 8 sub-layers take 16 a trace."""
    target, states = tiny_target("llama"), tiny_states("llama", num_traces=4)
    ticks = iter([5.0, 7.0])
    limited = measure_sensitivity(
        target, states, GREEDY, max_rows=10**6, max_seconds=max_seconds, clock=lambda: next(ticks)
    )
    rows = sum(state.num_rows for state in affordable(states, max_rows=10**6)[:num_states])
    assert limited == measure_sensitivity(target, states, GREEDY, max_rows=rows)


def test_a_family_without_an_mlp_module_cannot_do_without_it() -> None:
    target, states = tiny_target("opt"), tiny_states("opt")
    found = measure_sensitivity(target, states, GREEDY, max_rows=1)
    assert found.mlp == (0.0,) * 4
    assert max(found.attention) > 0


def test_rows_are_taken_from_every_kind_in_turn() -> None:
    states = tiny_states("llama", num_traces=4)
    assert [state.trace.kind for state in states] == ["k0", "k1", "k0", "k1"]
    rows = states[0].num_rows
    assert affordable(states, max_rows=1) == [states[0]]
    assert affordable(states, max_rows=rows + 1) == [states[0], states[1]]
    assert affordable(states, max_rows=10**6) == list(states)
    same_kind = [states[0], states[2], states[1]]
    assert affordable(same_kind, max_rows=rows + 1) == [states[0], states[1]]
