"""Calibrations made up for tests: complete and consistent, with numbers that are easy to recognise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.calibration import (
    Calibration,
    CostTable,
    Evidence,
    Interval,
    KindResult,
    MemoryStep,
    PromptData,
    TimedPlan,
    TimeSplit,
)
from selfspec_runtime.fingerprint import ModelFingerprint
from selfspec_runtime.machine import Machine
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import DraftPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

FINGERPRINT = ModelFingerprint(
    architecture="LlamaForCausalLM",
    num_hidden_layers=4,
    hidden_size=64,
    vocab_size=128,
    config_sha256="c",
    weights_sha256="w",
    tokenizer_sha256="t",
    dtype="float32",
)
MACHINE = Machine(
    system="Linux 6",
    cpu="Test CPU",
    num_threads=1,
    memory_bytes=8_000_000_000,
    device="Test CPU",
    avx512_bf16=False,
    amx=False,
    python="3.11",
    torch="2.13.0",
    transformers="5.24.0",
    bitsandbytes=None,
    selfspec="0.1.0",
)
NGRAM: dict[str, Any] = {"source": {"kind": "ngram"}}
LINEAR_EXIT: dict[str, Any] = {"source": {"kind": "early_exit", "exit_layer": 2, "head": "linear"}}
QUANTIZED: dict[str, Any] = {"source": {"kind": "quantized"}}


def kind_result(kind: str = "all", *, speedup: float = 1.25, low: float | None = 1.1) -> KindResult:
    """A row whose plain decoding runs at 40 tokens per second."""
    return KindResult(
        kind=kind,
        sampling="greedy",
        num_prompts=10,
        plain_tokens_per_s=40.0,
        plan_tokens_per_s=40.0 * speedup,
        stock_tokens_per_s=32.0,
        speedup=Interval(value=speedup, low=low, high=None if low is None else speedup + 0.2),
        speedup_over_stock=40.0 * speedup / 32.0,
        tokens_per_round=2.5,
        acceptance_rate=0.625,
        time=TimeSplit(draft=0.2, verify=0.7, host=0.1),
        time_to_first_token_s=0.123,
        num_identical=10,
    )


def memory_step(
    plan: Mapping[str, Any] = NGRAM,
    *,
    name: str = "zero",
    extra_bytes: int = 0,
    speedup: float = 1.25,
    enabled: bool = True,
) -> MemoryStep:
    """A step whose plan was measured on chat and code prompts."""
    return MemoryStep(
        name=name,
        extra_bytes=extra_bytes,
        extra_share=extra_bytes / 1_000_000,
        enabled=enabled,
        reason="It is faster on held-out prompts." if enabled else "It is not faster on held-out prompts.",
        plan=DraftPlan.model_validate(plan),
        results=(
            kind_result("chat", speedup=speedup - 0.1),
            kind_result("code", speedup=speedup + 0.1),
            kind_result("all", speedup=speedup),
        ),
    )


def calibration(*steps: MemoryStep, **changes: Any) -> Calibration:
    """A calibration of a model with 4 layers of width 64, with an n-gram plan unless steps are given."""
    content: dict[str, Any] = {
        "created": "2026-11-05T10:00:00Z",
        "selfspec_version": "0.1.0",
        "model": ModelSpec(model="model"),
        "fingerprint": FINGERPRINT,
        "machine": MACHINE,
        "max_new_tokens": 64,
        "data": PromptData(file="prompts.jsonl", sha256="d", num_search=10, num_held_out=10, kinds={"chat": 20}),
        "steps": steps or (memory_step(),),
        "evidence": evidence(),
    }
    return Calibration.model_validate(content | changes)


def evidence() -> Evidence:
    """A cost table of one context length, and two timed plans."""
    cost = CostTable(
        context_lengths=(128,), pass_s=((0.025, 0.026),), attention_s=(0.001,), mlp_s=0.002, head_s=0.004, host_s=0.001
    )
    timed = (
        TimedPlan(
            plan=DraftPlan.model_validate(NGRAM), predicted_speedup=1.4, measured_speedup=1.3, num_prompts=10, order=2
        ),
        TimedPlan(
            plan=DraftPlan.model_validate(LINEAR_EXIT),
            predicted_speedup=1.1,
            measured_speedup=0.9,
            num_prompts=4,
            order=1,
        ),
    )
    return Evidence(cost=cost, num_predicted=300, num_trace_tokens=640, timed=timed, median_prediction_error=0.08)
