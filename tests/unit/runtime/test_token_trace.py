from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.support.tiny_models import planted, prompt_ids, tiny_model, tiny_target
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec_runtime.engine import Engine
from selfspec_runtime.errors import UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target
from selfspec_runtime.token_trace import TokenTrace
from selfspec_runtime.trace_round import TraceRound
from selfspec_runtime.tracing import trace_generation

if TYPE_CHECKING:
    from pathlib import Path

EXIT: dict[str, Any] = {
    "source": {"kind": "early_exit", "exit_layer": 2},
    "controller": {"kind": "fixed", "num_draft_tokens": 3},
}
NGRAM_FIRST: dict[str, Any] = {"source": {"kind": "ngram_first", "then": EXIT["source"]}}
SAMPLED = SamplingSettings(temperature=1.0, seed=3)


def settings(max_new_tokens: int = 24, **changes: Any) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=max_new_tokens, **changes)


def half_right() -> Target:
    """A model of which an exit after layer 2 gets about half right."""
    return Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))


@pytest.fixture(scope="module")
def trace() -> TokenTrace:
    engine = Engine(half_right(), tiny_tokenizer(), DraftPlan.model_validate(EXIT))
    return trace_generation(engine, prompt_ids(), settings(40))


@torch.no_grad()
def direct_hidden_states(target: Target, ids: list[int]) -> list[torch.Tensor]:
    """Logits after each layer, from the model's own outputs: the norm and the head applied by hand."""
    model: Any = target.model
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    inner = [model.lm_head(model.model.norm(state[0])) for state in states[1:-1]]
    return [*inner, model.lm_head(states[-1][0])]


def test_layers_agree_with_norm_and_head_applied_by_hand(trace: TokenTrace) -> None:
    ids = [*trace.prompt_ids, *trace.token_ids.tolist()]
    rows = slice(len(trace.prompt_ids) - 1, len(ids) - 1)
    for layer, logits in enumerate(direct_hidden_states(half_right(), ids)):
        probs = logits[rows].softmax(dim=-1)
        assert (trace.layers_agree[layer] == (probs.argmax(dim=-1).numpy() == trace.token_ids)).all()
        assert (trace.top_ids[layer] == probs.topk(3).indices.numpy()).all()
        np.testing.assert_allclose(trace.top_probs[layer], probs.topk(3).values.numpy(), rtol=2e-3)
    said = probs[torch.arange(trace.num_tokens), torch.tensor(trace.token_ids, dtype=torch.long)]
    np.testing.assert_allclose(trace.target_probs, said.numpy(), rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "gpt_neox", "qwen2", "phi3"])
def test_a_planted_exit_settles_there_in_every_family(family: str) -> None:
    target = Target(planted(tiny_model(family), exit_layer=2))
    traced = trace_generation(Engine(target), prompt_ids(), settings(10))
    assert traced.layers_agree[1:].all()
    assert (traced.settle_depth <= 2).all()
    assert set(traced.fates[1:]) == {"plain"}


@pytest.mark.parametrize("plan", [EXIT, NGRAM_FIRST, {}], ids=["exit", "ngram_first", "plain"])
@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
def test_tokens_and_counts_are_those_of_the_untraced_run(plan: dict[str, Any], sampling: SamplingSettings) -> None:
    engine = Engine(half_right(), tiny_tokenizer(), DraftPlan.model_validate(plan))
    asked = settings(40, sampling=sampling)
    decoder, generation = engine.decoder, engine.generate(prompt_ids(), asked)
    traced = trace_generation(engine, prompt_ids(), asked)
    assert tuple(traced.token_ids) == generation.token_ids
    assert traced.text == generation.text
    assert traced.stats() == generation.stats
    assert engine.decoder is decoder


def test_fates_add_up_to_the_counts(trace: TokenTrace) -> None:
    stats = trace.stats()
    assert 0.2 < (stats.acceptance_rate or 0) < 0.8, "the drafts are meant to be half right"
    assert len(trace.fates) == trace.num_tokens
    assert trace.fates[0] == "first"
    assert trace.fates.count("accepted") == stats.num_accepted_tokens
    own = [trace.fates.count(fate) for fate in ("corrected", "bonus", "plain")]
    assert sum(own) + stats.num_accepted_tokens == stats.num_emitted_tokens
    assert own[0] > 0
    assert own[1] > 0


def test_the_exits_drafts_are_what_its_layer_would_have_said(trace: TokenTrace) -> None:
    """Drafts attend to the target's own keys and values, so that accepted and first rejected ones are in the map."""
    for each in trace.rounds[1:]:
        seen = trace.top_ids[1, each.start : each.start + each.num_tokens, 0].tolist()
        assert list(each.drafted_ids[: each.num_tokens]) == seen[: each.num_drafted]


def test_probabilities_of_drafts(trace: TokenTrace) -> None:
    accepted = np.array([fate == "accepted" for fate in trace.fates])
    exit_probs = trace.top_probs[1, :, 0]
    np.testing.assert_allclose(trace.draft_probs[accepted], exit_probs[accepted], rtol=2e-3)
    assert np.isnan(trace.draft_probs[~accepted]).all()
    corrected = [each for each in trace.rounds if each.was_corrected]
    for each in corrected:
        place = each.start + each.num_accepted
        assert each.rejected_target_prob is not None
        assert each.rejected_target_prob <= trace.target_probs[place]
    kept = [each for each in trace.rounds if not each.was_corrected]
    assert all(each.rejected_target_prob is None for each in kept)


def test_looked_up_tokens_have_no_draft_probability() -> None:
    ids = prompt_ids(4) * 4
    plan = DraftPlan.model_validate({"source": {"kind": "ngram"}})
    traced = trace_generation(Engine(half_right(), plan=plan), ids, settings(40))
    assert any(each.num_drafted for each in traced.rounds)
    assert all(prob is None for each in traced.rounds for prob in each.draft_probs)


def test_what_a_stop_cuts_off_was_not_rejected() -> None:
    target = Target(planted(tiny_model("llama"), exit_layer=2))
    engine = Engine(target, plan=DraftPlan.model_validate(EXIT))
    whole = engine.generate(prompt_ids(), settings(12)).token_ids
    ends = settings(12, criteria=(lambda ids: len(ids) == len(prompt_ids()) + 3,))
    traced = trace_generation(engine, prompt_ids(), ends)
    assert tuple(traced.token_ids) == whole[:3]
    assert traced.fates == ("first", "accepted", "accepted")
    assert traced.rounds[-1].num_drafted == 3
    assert traced.rounds[-1].rejected_ids == ()


@pytest.mark.parametrize("max_new_tokens", [1, 2])
def test_short_generations_and_a_prompt_of_one_token(max_new_tokens: int) -> None:
    traced = trace_generation(Engine(tiny_target("llama")), [5], settings(max_new_tokens))
    assert traced.layers_agree.shape == (4, max_new_tokens)
    assert traced.layers_agree[-1].all()


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch, trace: TokenTrace) -> None:
    monkeypatch.setattr("selfspec_runtime.layer_readings.LOGITS_AT_ONCE", 1)
    monkeypatch.setattr("selfspec_runtime.layer_readings.PROMPT_CHUNK", 5)
    engine = Engine(half_right(), tiny_tokenizer(), DraftPlan.model_validate(EXIT))
    again = trace_generation(engine, prompt_ids(), settings(40))
    assert (again.layers_agree == trace.layers_agree).all()
    assert (again.top_ids == trace.top_ids).all()
    probs = [each.rejected_target_prob for each in trace.rounds if each.was_corrected]
    assert [each.rejected_target_prob for each in again.rounds if each.was_corrected] == pytest.approx(probs, rel=1e-4)


def test_a_sampled_token_that_the_model_finds_unlikely_never_settles() -> None:
    traced = trace_generation(Engine(tiny_target("llama")), prompt_ids(), settings(40, sampling=SAMPLED))
    unlikely = ~traced.layers_agree[-1]
    assert unlikely.any()
    assert (traced.settle_depth[unlikely] == traced.num_layers + 1).all()
    assert (traced.settle_depth[~unlikely] <= traced.num_layers).all()


@pytest.mark.parametrize(
    ("column", "depth"), [("1111", 1), ("0111", 2), ("1011", 3), ("0001", 4), ("1110", 5), ("0000", 5)]
)
def test_settle_depth_is_the_start_of_the_last_run_of_agreement(column: str, depth: int) -> None:
    agree = np.array([[c == "1"] for c in column])
    assert small_trace(layers_agree=agree).settle_depth.tolist() == [depth]


def small_trace(**changes: Any) -> TokenTrace:
    content: dict[str, Any] = {
        "prompt_ids": (1,),
        "token_ids": np.array([7], dtype=np.int32),
        "pieces": {7: "x"},
        "rounds": (TraceRound(start=0, num_tokens=1),),
        "layers_agree": np.ones((4, 1), dtype=bool),
        "top_ids": np.full((4, 1, 3), 7, dtype=np.int32),
        "top_probs": np.ones((4, 1, 3), dtype=np.float16),
        "target_probs": np.ones(1, dtype=np.float32),
        "text": "x",
        "finish_reason": "length",
        "plan": "plain decoding",
    }
    return TokenTrace(**(content | changes))


def test_parts_of_other_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="other lengths"):
        small_trace(target_probs=np.ones(2, dtype=np.float32))
    with pytest.raises(UsageError, match="other lengths"):
        small_trace(rounds=())


def test_top_k_must_be_positive() -> None:
    with pytest.raises(UsageError, match="top_k is 0"):
        trace_generation(Engine(tiny_target("llama")), prompt_ids(), settings(2), top_k=0)


BRANCHED = TraceRound(
    start=4,
    num_tokens=3,
    drafted_ids=(10, 11, 12, 20, 21, 22),
    draft_probs=(0.9, 0.6, 0.8, 0.3, 0.1, 0.2),
    branch_places=(1, 1, 2),
)
"""A chain of three; beside its second token stand two branches, beside its third one."""


def test_a_branch_that_stands_ends_the_path_and_nothing_was_put_right() -> None:
    taken = BRANCHED.model_copy(update={"num_accepted": 2, "accepted_branch": 0})
    assert (taken.num_drafted, taken.drafted_per_place) == (6, (1, 3, 2))
    assert taken.accepted_probs == (0.9, 0.3)
    assert taken.fates() == ("accepted", "accepted", "bonus")
    assert taken.rejected_ids == ()


def test_where_no_branch_stands_those_of_that_place_and_later_ones_were_rejected() -> None:
    corrected = BRANCHED.model_copy(update={"num_accepted": 1, "num_tokens": 2})
    assert corrected.accepted_probs == (0.9,)
    assert corrected.fates() == ("accepted", "corrected")
    assert corrected.rejected_ids == (11, 12, 20, 21, 22)
    later = BRANCHED.model_copy(update={"num_accepted": 2})
    assert later.rejected_ids == (12, 22)
    whole = BRANCHED.model_copy(update={"num_accepted": 3, "num_tokens": 4})
    assert whole.fates() == ("accepted",) * 3 + ("bonus",)
    assert whole.rejected_ids == ()


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_saved_and_loaded_it_is_the_same(trace: TokenTrace, tmp_path: Path, ending: str) -> None:
    trace.save(tmp_path / f"trace.{ending}")
    loaded = TokenTrace.load(tmp_path / f"trace.{ending}")
    assert loaded.rounds == trace.rounds
    assert dict(loaded.pieces) == dict(trace.pieces)
    assert (loaded.text, loaded.plan, loaded.exit_layer) == (trace.text, trace.plan, 2)
    for name in ("token_ids", "layers_agree", "top_ids", "top_probs", "target_probs"):
        array, before = getattr(loaded, name), getattr(trace, name)
        assert array.dtype == before.dtype
        assert (array == before).all()


def test_lone_surrogates_and_controls_survive_the_file(tmp_path: Path) -> None:
    pieces = {7: "\ud83d\x00\u202e</script>"}
    small_trace(pieces=pieces).save(tmp_path / "t.json")
    assert TokenTrace.load(tmp_path / "t.json").pieces == pieces


def _break(name: str, data: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        _break("t.json", b""),
        _break("t.json", b"[]"),
        _break("t.json", b'{"format": "selfspec.token_trace/1"}'),
        _break("t.safetensors", b"\x00" * 7),
        lambda folder: (folder / "t.json").unlink(),
        lambda folder: (folder / "t.safetensors").unlink(),
    ],
)
def test_broken_files_are_named(harm: Any, tmp_path: Path) -> None:
    small_trace().save(tmp_path / "t.json")
    harm(tmp_path)
    with pytest.raises(UsageError, match=r"t\.\w+ holds no trace"):
        TokenTrace.load(tmp_path / "t.json")


def test_a_data_frame_has_a_row_per_token(trace: TokenTrace) -> None:
    pytest.importorskip("pandas")
    frame = trace.to_dataframe()
    assert frame.shape == (trace.num_tokens, 8)
    assert frame["fate"].tolist() == list(trace.fates)


def test_without_pandas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        small_trace().to_dataframe()
