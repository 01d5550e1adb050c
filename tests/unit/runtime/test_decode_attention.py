"""Attention by the kernels: that of float64, the same bits in any company, and nothing read that no row sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import interpreter
from tests.support.attention_cases import SPLIT, TOLERANCES, Case, make_case
from tests.support.capture_guards import OperatorTrace
from tests.support.device_steps import STEPS, meta_world
from tests.support.replay_engine import draft_plan, replay_engine
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import prompt_ids, tiny_target
from torch import Tensor, nn

from selfspec_runtime.attention import grouped_attention
from selfspec_runtime.folded_attention import folded_attention
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.kernels import attention_operator
from selfspec_runtime.kernels.attention_layout import MAX_ROWS, split_size
from selfspec_runtime.kernels.decode_attention import decode_attention
from selfspec_runtime.masks import causal_mask
from selfspec_runtime.tree.token_tree import PlacedTree, TokenTree

pytest.importorskip("triton")
CPU = torch.device("cpu")
EDGES = (1, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 5)
DTYPES = tuple(TOLERANCES)
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where kernels run: on a CPU in Triton's interpreter."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if request.param == "cpu":
        interpreter.require()
    return str(request.param)


def attended(case: Case, device: str = "cpu", *, mask: Tensor | None = None) -> Tensor:
    """What the kernels give, on the CPU."""
    tensors = (case.query, case.key, case.value, case.mask if mask is None else mask)
    query, key, value, shown = (None if t is None else t.to(device) for t in tensors)
    extras = {**case.extras, "sinks": None if case.sinks is None else case.sinks.to(device)}
    return decode_attention(query, key, value, shown, split=SPLIT, **extras).cpu()  # type: ignore[arg-type]


def additive(seen: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


def windowed(rows: int, columns: int, window: int | None) -> Tensor:
    return causal_mask(torch.arange(columns - rows, columns), torch.arange(columns), window)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    heads = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (3, 1)]))
    rows = draw(st.sampled_from([1, 2, 5, MAX_ROWS if heads[0] < 3 else 3]))
    columns = draw(st.sampled_from(EDGES))
    window = draw(st.sampled_from([None, 3, SPLIT + 1]))
    fields: dict[str, Any] = {
        "softcap": draw(st.sampled_from([None, 1.5])),
        "sinks": draw(st.sampled_from([None, SINKS[: heads[0]]])),
    }
    kind = draw(st.sampled_from(["random", "causal", "none"]))
    if kind == "none":
        fields["mask"] = None
    elif kind == "causal" and rows <= columns:
        fields["mask"] = windowed(rows, columns, window)
    dims = draw(st.sampled_from([(8, 6), (20, 20), (16, 24)]))
    dtype = draw(st.sampled_from(DTYPES))
    return make_case(
        heads=heads, rows=rows, columns=columns, dims=dims, dtype=dtype, seed=draw(st.integers(0, 99)), **fields
    )


@settings(max_examples=16)
@given(case=cases())
def test_it_is_attention_in_float64(case: Case) -> None:
    interpreter.require()
    out = attended(case)
    assert out.dtype == case.query.dtype
    assert case.error(out) < TOLERANCES[out.dtype]


@pytest.mark.parametrize("columns", EDGES)
def test_it_is_the_torch_implementation_around_the_edges_of_splits(device: str, columns: int) -> None:
    case = make_case(heads=(4, 2), rows=2, columns=columns, softcap=2.0, sinks=SINKS)
    expected = folded_attention(case.query, case.key, case.value, case.mask, **case.extras)
    torch.testing.assert_close(attended(case, device), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(device: str, dtype: torch.dtype) -> None:
    case = make_case(heads=(4, 1), rows=5, columns=2 * SPLIT + 5, dtype=dtype, sinks=SINKS)
    together = attended(case, device)
    for row in range(5):
        assert torch.equal(attended(case.row(row), device), together[:, row : row + 1])


@pytest.mark.parametrize("columns", [SPLIT + 5, 2 * SPLIT, 20 * SPLIT + 3])
def test_what_lies_beyond_the_text_is_not_read_and_changes_no_bit(device: str, columns: int) -> None:
    live = SPLIT + 4
    case = make_case(rows=2, columns=live)
    assert case.mask is not None
    poisoned = [torch.full((1, 1, columns, t.shape[3]), torch.nan) for t in (case.key, case.value)]
    mask = torch.zeros(1, 1, 2, columns, dtype=torch.bool)
    for wide, narrow in zip((*poisoned, mask), (case.key, case.value, case.mask), strict=True):
        wide[..., :live, :].copy_(narrow) if wide.dtype != torch.bool else wide[..., :live].copy_(narrow)
    # A column that no row sees is not read, inside a live split neither.
    case.key.masked_fill_(~case.mask.any(dim=2)[..., None], torch.nan)
    reach = replace(case, key=poisoned[0], value=poisoned[1], mask=mask)
    assert torch.equal(attended(reach, device), attended(case, device))


def test_what_a_window_has_left_behind_is_not_read(device: str) -> None:
    columns, window = 3 * SPLIT, 5
    case = make_case(rows=3, columns=columns, mask=windowed(3, columns, window))
    expected = attended(case, device)
    for held in (case.key, case.value):
        held[:, :, : columns - window - 2] = torch.nan
    assert torch.equal(attended(case, device), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_additive_mask_hides_by_its_lowest_number_and_adds_the_rest(device: str, dtype: torch.dtype) -> None:
    case = make_case(rows=3, columns=SPLIT + 3, dtype=dtype)
    assert case.mask is not None
    hidden = additive(case.mask, dtype)
    assert torch.equal(attended(case, device, mask=hidden), attended(case, device))
    slopes = hidden + torch.linspace(-1, 1, SPLIT + 3, dtype=dtype)
    slopes = slopes.where(case.mask, torch.finfo(dtype).min)
    expected = folded_attention(*(t.float() for t in (case.query, case.key, case.value, slopes)), **case.extras)
    torch.testing.assert_close(attended(case, device, mask=slopes).float(), expected, rtol=1e-2, atol=TOLERANCES[dtype])
    assert not torch.allclose(expected, attended(case, device).float(), atol=0.05)


def test_no_key_and_no_value_is_read_but_what_a_row_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter.require()
    case = make_case(rows=3, columns=4 * SPLIT, mask=windowed(3, 4 * SPLIT - 9, 20))
    assert case.mask is not None
    mask = torch.nn.functional.pad(case.mask, (0, 9))
    with loaded_addresses(monkeypatch) as loaded:
        attended(replace(case, mask=mask))
    seen = mask.any(dim=2)[0, 0].nonzero().flatten().tolist()
    for held in (case.key, case.value):
        rows = [(address - held.data_ptr()) / (4 * held.stride(2)) for address in loaded]
        inside = {int(row) for row in rows if 0 <= row < held.shape[2]}
        assert sorted(inside) == seen


@contextmanager
def loaded_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Collects where interpreted kernels load from."""
    from triton.runtime.interpreter import interpreter_builder

    load, found = interpreter_builder.create_masked_load, set()

    def noted(pointers: Any, mask: Any, *others: Any) -> Any:
        found.update(pointers.data[mask.data.astype(bool)].tolist())
        return load(pointers, mask, *others)

    with monkeypatch.context() as patched:
        patched.setattr(interpreter_builder, "create_masked_load", noted)
        yield found


def test_one_mask_row_may_stand_for_all(device: str) -> None:
    case = make_case(rows=3)
    assert case.mask is not None
    alike = replace(case, mask=case.mask[:, :, :1].repeat(1, 1, 3, 1))
    assert torch.equal(attended(case, device, mask=case.mask[:, :, :1]), attended(alike, device))


@pytest.mark.parametrize("extras", [{}, {"softcap": 1.5}, {"sinks": SINKS[:2]}], ids=["plain", "softcap", "sinks"])
def test_a_row_that_sees_nothing_reads_zeros(device: str, extras: dict[str, Any]) -> None:
    case = make_case(rows=3, columns=SPLIT + 4, **extras)
    assert case.mask is not None
    case.mask[:, :, 1] = False
    by_torch = folded_attention(case.query, case.key, case.value, case.mask, **case.extras)
    for out in (attended(case, device), by_torch):
        assert not out[:, 1].any()
        assert case.error(out) < TOLERANCES[torch.float32]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_numbers_that_are_none_come_through(device: str, where: str) -> None:
    case = make_case(rows=1, columns=SPLIT + 4, mask=None)
    getattr(case, where)[..., -1, 0] = torch.nan
    assert attended(case, device).isnan().any()


def test_splits_depend_on_the_model_alone() -> None:
    assert [split_size(dim, dim, 2) for dim in (64, 80, 128, 256)] == [128, 64, 64, 32]
    assert [split_size(dim, dim, 4) for dim in (8, 64, 128, 256)] == [128, 32, 16, 16]
    assert split_size(192, 128, 2) == 32


class TestOperator:
    """The custom operator, and what comes to it."""

    @pytest.fixture(params=[False, True], ids=["torch", "interpreter"])
    def arguments(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Case, tuple[Any, ...]]:
        if request.param:
            interpreter.require()
        monkeypatch.setattr(attention_operator, "is_interpreted", lambda: request.param)
        case = make_case(rows=3, softcap=1.5, sinks=SINKS[:2])
        return case, (case.query, case.key, case.value, case.mask, case.sinks, case.scaling, case.softcap)

    def test_it_gives_attention(self, arguments: tuple[Case, tuple[Any, ...]]) -> None:
        case, given_ = arguments
        assert case.error(attention_operator.decode_attention(*given_)) < TOLERANCES[torch.float32]

    def test_its_fake_says_what_it_gives(self, arguments: tuple[Case, tuple[Any, ...]]) -> None:
        tests = ("test_schema", "test_faketensor")
        torch.library.opcheck(attention_operator.decode_attention, arguments[1], test_utils=tests)

    @pytest.mark.parametrize(("rows", "taken"), [(1, True), (MAX_ROWS, True), (MAX_ROWS + 1, False)])
    def test_few_rows_come_to_it(self, rows: int, taken: bool) -> None:
        case = make_case(rows=rows, columns=24)
        meta = [t.to("meta") for t in (case.query, case.key, case.value, case.mask) if t is not None]
        with OperatorTrace() as trace:
            out, _ = grouped_attention(nn.Module(), *meta)
        assert out.shape == (1, rows, 2, 6)
        assert ("selfspec.decode_attention.default" in dict(trace.operators)) == taken

    def test_nothing_else_does(self) -> None:
        case = make_case(rows=2)
        assert case.mask is not None
        query, key, value, mask = (t.to("meta") for t in (case.query, case.key, case.value, case.mask))
        assert attention_operator.serves(query, key, value, mask)
        assert attention_operator.serves(query, key, value, None)
        wide = query.new_empty(1, 2, 2, 512)
        refused = [
            (case.query, case.key, case.value, case.mask),
            (query.double(), key.double(), value.double(), mask),
            (query.half(), key, value, mask),
            (query.expand(2, -1, -1, -1), key, value, mask),
            (query, key, value, mask.expand(1, 2, -1, -1)),
            (query, key.transpose(2, 3).contiguous().transpose(2, 3), value, mask),
            (query.requires_grad_(), key, value, mask),
            (wide, wide, wide, None),
        ]
        assert not any(attention_operator.serves(*each) for each in refused)

    @pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
    def test_every_layer_of_a_recorded_step_goes_through_it(self, family: str) -> None:
        world = meta_world(family)
        with torch.no_grad(), OperatorTrace() as trace:
            STEPS["verification"](world.steps())
        names = [name for name, _ in trace.operators]
        assert names.count("selfspec.decode_attention.default") == world.target.num_layers
        assert not any("scaled_dot_product" in name for name in names)


@pytest.fixture
def through_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models on a CPU attend by the kernels."""
    interpreter.require()
    monkeypatch.setattr(attention_operator, "is_for_kernels", lambda _: True)
    monkeypatch.setattr(attention_operator, "is_interpreted", lambda: True)


def test_a_tree_is_verified_through_them_within_windows_too(request: pytest.FixtureRequest) -> None:
    target = tiny_target("gemma3_text")
    tree = PlacedTree(TokenTree.caterpillar(2, [0, 1]), 24)
    ids, cache = torch.tensor(prompt_ids(24 + len(tree.tree))), target.new_cache()
    target.logits(ids[:24], cache, start=0)
    cache.length = 24
    expected = target.logits(ids[24:], cache, start=24, tree=tree)
    request.getfixturevalue("through_kernels")
    with OperatorTrace() as trace:
        found = target.logits(ids[24:], cache, start=24, tree=tree)
    assert "selfspec.decode_attention.default" in dict(trace.operators)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("torch_only")
def test_recorded_rounds_read_the_live_length_through_them(request: pytest.FixtureRequest) -> None:
    target, plan = tiny_target("llama"), draft_plan({"kind": "early_exit", "exit_layer": 2}, 1)
    asked = GenerationSettings(max_new_tokens=3)
    expected = replay_engine(target, plan)[0].generate(prompt_ids(20), asked).token_ids
    request.getfixturevalue("through_kernels")
    engine, executor = replay_engine(target, plan)
    assert engine.generate(prompt_ids(20), asked).token_ids == expected
    assert executor.notice is None
    assert executor.recordings.num_recorded == 1
