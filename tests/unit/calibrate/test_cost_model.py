from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_calibrate.cost_model import CostModel, interpolated
from selfspec_runtime.calibration import CostTable
from selfspec_runtime.drafts.branching import BranchingSpec
from selfspec_runtime.drafts.clasp import ClaspSpec
from selfspec_runtime.drafts.conf_layers import ConfLayersSpec
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.fewer_experts import FewerExpertsSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.registry import AnySourceSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.swift import SwiftSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet

LAYERS = 8
EVERYTHING = LayerSkipSet(attention=list(range(LAYERS)), mlp=list(range(LAYERS)))


def table(**changes: Any) -> CostTable:
    """A pass of 10 seconds at 100 positions: 2 of head, 8 layers of 1 (attention 0.3, MLP 0.6, rest 0.1)."""
    values: dict[str, Any] = {
        "context_lengths": (100, 300),
        "pass_s": ((10.0, 19.0, 14.0, 15.0), (14.0, 23.0, 18.0, 19.0)),
        "attention_s": (0.3, 0.8),
        "mlp_s": 0.6,
        "head_s": 2.0,
        "host_s": 0.25,
        "quantized_pass_s": 6.0,
        "quantized_head_s": 1.0,
    }
    return CostTable(**values | changes)


MODEL = CostModel(table(), LAYERS)
SECONDS = st.floats(1e-6, 10.0)
INDICES = st.frozensets(st.integers(0, LAYERS - 1))
SKIPS = st.builds(lambda a, m: LayerSkipSet(attention=sorted(a), mlp=sorted(m)), INDICES, INDICES)
SPECS = st.one_of(
    st.builds(EarlyExitSpec, exit_layer=st.integers(1, LAYERS - 1)),
    st.builds(LayerSkipSpec, skip=SKIPS),
    st.builds(QuantizedSpec, quantize_head=st.booleans(), skip=SKIPS),
)


@st.composite
def noisy_models(draw: st.DrawFn) -> CostModel:
    """Tables as noise could make them: parts may exceed the whole, and longer contexts be quicker."""
    contexts = draw(st.lists(st.integers(1, 4000), min_size=1, max_size=3, unique=True).map(sorted))
    rows = st.lists(SECONDS, min_size=3, max_size=3)
    passes = [draw(rows) for _ in contexts]
    return CostModel(
        table(
            context_lengths=contexts,
            pass_s=passes,
            attention_s=[draw(SECONDS) for _ in contexts],
            mlp_s=draw(SECONDS),
            head_s=draw(SECONDS),
            quantized_pass_s=draw(SECONDS),
            quantized_head_s=draw(SECONDS),
        ),
        LAYERS,
    )


def test_measured_rows_are_kept_as_measured_edges_and_all() -> None:
    assert [MODEL.pass_s(rows, 100) for rows in (1, 2, 3, 4)] == [10.0, 19.0, 14.0, 15.0]
    assert MODEL.pass_s(3, 200) == pytest.approx(16.0)


def test_beyond_the_table_the_overall_slope_goes_on() -> None:
    assert MODEL.pass_s(7, 100) == pytest.approx(15.0 + 3 * 5 / 3)
    assert MODEL.pass_s(1, 500) == pytest.approx(18.0)
    assert MODEL.pass_s(1, 10) == 10.0
    falling = CostModel(table(pass_s=((10.0,), (9.0,))), LAYERS)
    assert falling.pass_s(5, 900) == 9.0


@given(
    ys=st.lists(st.floats(0, 100), min_size=1, max_size=5).map(sorted),
    first=st.floats(0, 60),
    second=st.floats(0, 60),
)
def test_interpolation_of_rising_points_rises(ys: list[float], first: float, second: float) -> None:
    xs = [10 * index for index in range(len(ys))]
    low, high = sorted((first, second))
    assert interpolated(xs, ys, low) <= interpolated(xs, ys, high) + 1e-9
    assert [interpolated(xs, ys, x) for x in xs] == pytest.approx(ys)


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        (None, 0.0),
        (NgramSpec(), 0.0),
        (EarlyExitSpec(exit_layer=3), 5.0),
        (EarlyExitSpec(exit_layer=3, head="linear"), 5.0),
        (LayerSkipSpec(skip=LayerSkipSet()), 10.0),
        (LayerSkipSpec(skip=LayerSkipSet(attention=[1, 2], mlp=[5])), 8.8),
        (LayerSkipSpec(skip=LayerSkipSet(attention=[1], mlp=[1])), 9.0),
        (LayerSkipSpec(skip=EVERYTHING), 2.0),
        (QuantizedSpec(), 6.0),
        (QuantizedSpec(quantize_head=True), 5.0),
        (QuantizedSpec(skip=LayerSkipSet(attention=[1, 2], mlp=[5])), 5.4),
        (QuantizedSpec(quantize_head=True, skip=EVERYTHING), 1.0),
        (NgramFirstSpec(then=EarlyExitSpec(exit_layer=3)), 5.0),
    ],
)
def test_draft_passes_of_a_known_model(spec: AnySourceSpec | None, seconds: float) -> None:
    assert MODEL.draft_pass_s(spec, 100) == pytest.approx(seconds)


def test_a_longer_context_costs_a_quantised_copy_what_it_costs_the_model() -> None:
    assert MODEL.draft_pass_s(QuantizedSpec(), 300) == pytest.approx(6.0 + 4.0)


@given(model=noisy_models(), spec=SPECS, context=st.integers(0, 8000))
def test_a_draft_pass_is_never_negative_nor_below_its_head(model: CostModel, spec: Any, context: int) -> None:
    table_ = model.table
    head_s = table_.quantized_head_s if getattr(spec, "quantize_head", False) else table_.head_s
    assert head_s is not None
    seconds = model.draft_pass_s(spec, context)
    assert seconds >= min(head_s, model.pass_s(1, context)) * (1 - 1e-6)


@given(model=noisy_models(), context=st.integers(0, 8000))
def test_skipping_everything_costs_the_head_only(model: CostModel, context: int) -> None:
    whole = model.draft_pass_s(LayerSkipSpec(skip=EVERYTHING), context)
    assert whole == pytest.approx(min(model.head_s, model.pass_s(1, context)), rel=1e-6)


@given(model=noisy_models(), skip=SKIPS, more=SKIPS, context=st.integers(0, 8000))
def test_leaving_more_out_never_costs_more(
    model: CostModel, skip: LayerSkipSet, more: LayerSkipSet, context: int
) -> None:
    union = LayerSkipSet(attention=sorted(skip.attention | more.attention), mlp=sorted(skip.mlp | more.mlp))
    first = model.draft_pass_s(LayerSkipSpec(skip=skip), context)
    assert model.draft_pass_s(LayerSkipSpec(skip=union), context) <= first * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("spec", [None, NgramSpec(), QuantizedSpec(), LayerSkipSpec(skip=EVERYTHING)])
def test_other_drafts_are_verified_by_a_full_pass(spec: AnySourceSpec | None) -> None:
    assert [MODEL.verify_s(spec, g, 100) for g in (0, 1, 2)] == [10.0, 19.0, 14.0]
    assert MODEL.prefix_s(spec, 100) == 0.0


def test_an_exits_verification_resumes_but_for_the_last_token() -> None:
    spec = EarlyExitSpec(exit_layer=4)
    # Layers are 0.8 of a pass; half of them are not run for 3 rows, and are run for one row.
    assert MODEL.verify_s(spec, 2, 100) == pytest.approx(14.0 * 0.6 + 4.0)
    assert MODEL.prefix_s(spec, 100) == pytest.approx(4.0)
    assert MODEL.verify_s(NgramFirstSpec(then=spec), 2, 100) == MODEL.verify_s(spec, 2, 100)
    assert MODEL.verify_s(spec, 0, 100) == 10.0


def test_where_rows_are_free_resuming_saves_nothing() -> None:
    flat = CostModel(table(context_lengths=(1,), pass_s=((10.0, 10.0, 10.0),), attention_s=(0.3,)), LAYERS)
    for exit_layer in range(1, LAYERS):
        assert flat.verify_s(EarlyExitSpec(exit_layer=exit_layer), 2, 50) == pytest.approx(10.0)


def test_a_round_is_its_parts() -> None:
    assert MODEL.round_s(None, 0, 100) == pytest.approx(10.25)
    assert MODEL.round_s(NgramSpec(), 3, 100) == pytest.approx(15.25)
    assert MODEL.round_s(EarlyExitSpec(exit_layer=4), 2, 100) == pytest.approx(2 * 6.0 + 12.4 + 0.25)


def test_an_unmeasured_copy_is_refused() -> None:
    unmeasured = CostModel(table(quantized_pass_s=None, quantized_head_s=None), LAYERS)
    with pytest.raises(PlanError, match="The cost of 'NF4 copy of layers' was not measured"):
        unmeasured.draft_pass_s(QuantizedSpec(), 100)


def test_a_source_that_chooses_while_decoding_costs_what_its_first_set_costs() -> None:
    skip = LayerSkipSet.whole({1, 3})
    swift, fixed = SwiftSpec(skip=skip), LayerSkipSpec(skip=skip)
    assert MODEL.draft_pass_s(swift, 100) == MODEL.draft_pass_s(fixed, 100) == pytest.approx(8.0)
    clasp = ClaspSpec(num_skipped=2)
    assert MODEL.draft_pass_s(clasp, 100) == pytest.approx(8.0)
    assert MODEL.draft_pass_s(ConfLayersSpec(skip_ratio=0.5), 100) == pytest.approx(7.0)
    assert MODEL.draft_pass_s(NgramFirstSpec(then=swift), 100) == pytest.approx(8.0)


def test_a_tree_costs_what_its_chain_costs() -> None:
    chain = EarlyExitSpec(exit_layer=4)
    assert MODEL.draft_pass_s(BranchingSpec(chain=chain), 100) == MODEL.draft_pass_s(chain, 100) == pytest.approx(6.0)


def test_what_experts_cost_is_not_known() -> None:
    with pytest.raises(PlanError, match="what an expert costs is not measured"):
        MODEL.draft_pass_s(FewerExpertsSpec(num_experts=1), 100)
