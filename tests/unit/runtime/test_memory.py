from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from selfspec_runtime.calibration import Interval, KindResult, MemoryStep, TimeSplit
from selfspec_runtime.errors import UsageError
from selfspec_runtime.memory import ZERO_STEP, MemoryLimit, choose_step, parse_memory, step_of, weight_bytes
from selfspec_runtime.plan import PLAIN


def _step(name: str, *, share: float, speedup: float | None, enabled: bool = True) -> MemoryStep:
    rows = () if speedup is None else (_row(speedup),)
    return MemoryStep(
        name=name,
        extra_bytes=int(share * 1_000_000),
        extra_share=share,
        enabled=enabled,
        reason="",
        plan=PLAIN,
        results=rows,
    )


def _row(speedup: float) -> KindResult:
    return KindResult(
        kind="all",
        sampling="greedy",
        num_prompts=1,
        plain_tokens_per_s=1.0,
        plan_tokens_per_s=speedup,
        speedup=Interval(value=speedup),
        tokens_per_round=2.0,
        acceptance_rate=0.5,
        time=TimeSplit(draft=0.5, verify=0.5, host=0.0),
        time_to_first_token_s=0.1,
        num_identical=1,
    )


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("500MB", MemoryLimit(max_bytes=500_000_000)),
        ("500 mb", MemoryLimit(max_bytes=500_000_000)),
        ("2M", MemoryLimit(max_bytes=2_000_000)),
        ("1.5GiB", MemoryLimit(max_bytes=3 * 2**29)),
        ("1kib", MemoryLimit(max_bytes=1024)),
        ("30%", MemoryLimit(max_share=0.3)),
        (" .5 % ", MemoryLimit(max_share=0.005)),
        ("0", MemoryLimit(max_bytes=0)),
        ("123456", MemoryLimit(max_bytes=123456)),
        (None, ZERO_STEP),
    ],
)
def test_limits_are_read_as_people_write_them(text: str | None, limit: MemoryLimit) -> None:
    assert parse_memory(text) == limit


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1e3", "nan", "5 parsecs", "30%%", "1.2.3MB", "GB", "1,5GB"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="500MB") as raised:
        parse_memory(text)
    assert repr(text) in str(raised.value)


@given(st.integers(0, 2**50))
def test_a_limit_in_bytes_admits_exactly_what_is_not_more(limit: int) -> None:
    parsed = parse_memory(str(limit))
    assert parsed.admits(extra_bytes=limit, extra_share=0.5)
    assert not parsed.admits(extra_bytes=limit + 1, extra_share=0.5)


def test_the_zero_step_is_always_admitted() -> None:
    assert parse_memory("0").admits(extra_bytes=10_000, extra_share=0.01)
    assert not parse_memory("0").admits(extra_bytes=10_000, extra_share=0.011)


def test_weight_bytes_count_tied_weights_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)}).to(torch.bfloat16)
    assert weight_bytes(model) == 2 * 10 * 4 * 2
    model["head"].weight = model["embed"].weight
    assert weight_bytes(model) == 10 * 4 * 2


def test_weight_bytes_count_four_bit_weights_as_stored_with_their_scales() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    weight = bnb.nn.Params4bit(torch.randn(64, 64), requires_grad=False, blocksize=64, compress_statistics=False)
    linear = bnb.nn.Linear4bit(64, 64, bias=False)
    linear.weight = weight.to("cpu")
    assert weight_bytes(linear) == 64 * 64 // 2 + 64 * 4


def test_a_plan_is_of_the_zero_step_up_to_one_per_cent() -> None:
    assert step_of(extra_bytes=10, weight_bytes=1000) == "zero"
    assert step_of(extra_bytes=11, weight_bytes=1000) == "quantized"


ZERO = _step("zero", share=0.0, speedup=1.2)
QUANTIZED = _step("quantized", share=0.27, speedup=1.9)


@pytest.mark.parametrize(
    ("steps", "limit", "chosen"),
    [
        ((ZERO, QUANTIZED), None, 0),
        ((ZERO, QUANTIZED), "30%", 1),
        ((ZERO, QUANTIZED), "269999", 0),
        ((ZERO, QUANTIZED), "270000", 1),
        ((_step("zero", share=0.0, speedup=2.0), QUANTIZED), "30%", 0),
        ((_step("zero", share=0.0, speedup=1.9), QUANTIZED), "30%", 0),
        ((_step("zero", share=0.0, speedup=1.0, enabled=False), QUANTIZED), "30%", 1),
        ((_step("zero", share=0.0, speedup=1.0, enabled=False), QUANTIZED), None, 0),
        ((ZERO, _step("quantized", share=0.27, speedup=1.9, enabled=False)), "30%", 0),
        ((_step("zero", share=0.0, speedup=None, enabled=False),), "1GB", 0),
    ],
)
def test_the_fastest_enabled_step_that_fits_is_chosen(
    steps: tuple[MemoryStep, ...], limit: str | None, chosen: int
) -> None:
    assert choose_step(steps, parse_memory(limit)) == chosen
