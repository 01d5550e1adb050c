from __future__ import annotations

import pytest
import torch
from tests.support.scored_traces import plain_traces, tiny_states
from tests.support.tiny_models import tiny_target
from torch import Tensor

from selfspec_calibrate import trace_state
from selfspec_calibrate.scoring import Scorer
from selfspec_calibrate.trace_state import chunks, compute_states
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.generation import GREEDY
from selfspec_runtime.law import token_probs
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.processors import Processors
from selfspec_runtime.sampling import SamplingSettings


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_hidden_states_are_the_models_own(family: str) -> None:
    target = tiny_target(family)
    for state in tiny_states(family):
        ids = torch.tensor([state.trace.input_ids])
        own = target.model(input_ids=ids, output_hidden_states=True).hidden_states
        rows = slice(len(state.trace.prompt_ids), None)
        for layer in range(target.num_layers - 1):
            torch.testing.assert_close(state.hidden[layer], own[layer + 1][:, rows], atol=1e-4, rtol=1e-4)


def test_scored_rows_are_the_generated_tokens_but_the_last() -> None:
    (state, _) = tiny_states("llama")
    assert state.token_ids.tolist() == list(state.trace.output_ids[:-1])
    assert state.law.ids[:, 0].tolist() == list(state.trace.output_ids[1:])
    assert {tuple(hidden.shape) for hidden in state.hidden} == {(1, state.num_rows, 64)}


def test_the_law_is_that_of_the_settings() -> None:
    sampling = SamplingSettings(temperature=0.9, top_k=30)
    target = tiny_target("qwen3")
    for state in tiny_states("qwen3", sampling=sampling):
        logits = target.logits(torch.tensor(state.trace.input_ids), target.new_cache(), start=0)[-state.num_rows :]
        dense = torch.zeros(logits.shape).scatter_(1, state.law.ids, state.law.probs)
        torch.testing.assert_close(dense, token_probs(logits, sampling), atol=1e-5, rtol=1e-4)


def test_a_long_prompt_in_pieces_gives_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("mistral")
    traces = plain_traces(target, num_traces=1, prompt_length=40)
    (whole,) = compute_states(target, traces, GREEDY)
    monkeypatch.setattr(trace_state, "CHUNK", 16)
    assert [start for start, _ in chunks(torch.arange(40))] == [0, 16, 32]
    (pieces,) = compute_states(target, traces, GREEDY)
    for a, b in zip(whole.hidden, pieces.hidden, strict=True):
        # Short and long pieces are added up by other kernels.
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_memory_is_what_the_docstring_says() -> None:
    target, (state, _) = tiny_target("llama"), tiny_states("llama")
    positions, rows = len(state.trace.input_ids), state.num_rows
    cache_bytes = 2 * target.num_layers * 2 * 16 * (positions + rows) * 4
    hidden_bytes = target.num_layers * rows * 64 * 4
    assert state.num_bytes == cache_bytes + hidden_bytes + rows * (8 + 4)


def test_history_dependent_processors_see_each_rows_own_past() -> None:
    """A processor that forbids whatever stands before a row: drafts and laws must never hold those tokens."""
    pasts: list[list[int]] = []

    def forbid(past: Tensor, logits: Tensor) -> Tensor:
        pasts.append(past[0].tolist())
        return logits.index_fill(1, past[0].unique(), -torch.inf)

    sampling = SamplingSettings(temperature=1.0)
    target = tiny_target("llama")
    traces = plain_traces(target, num_traces=1, sampling=sampling)
    lengths: list[int] = []
    (state,) = compute_states(
        target, traces, sampling, processors_for=lambda n: lengths.append(n) or Processors(history=(forbid,))
    )
    expected = [list(state.trace.input_ids[: len(state.trace.prompt_ids) + row + 1]) for row in range(state.num_rows)]
    assert (pasts, lengths) == (expected, [len(state.trace.prompt_ids)])
    for row, past in enumerate(pasts):
        assert float(state.law.probs[row][torch.isin(state.law.ids[row], torch.tensor(past))].sum()) == 0.0
    spec = LayerSkipSpec(skip=LayerSkipSet())
    (scores,) = Scorer(target, [state], sampling, {}).scores(spec)
    assert scores.accept == pytest.approx([1.0] * state.num_rows, abs=1e-4)
