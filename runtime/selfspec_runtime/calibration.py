"""The calibration file: what was found for one model, with the evidence and the fingerprint it holds for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from selfspec_runtime.fingerprint import ModelFingerprint
from selfspec_runtime.machine import Machine
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import DraftPlan

SCHEMA_NAME: Final = "selfspec.calibration"
SCHEMA_VERSION = "1.0"


class Part(BaseModel):
    """Base of the file's parts: read-only, and tolerant of fields that a later minor version adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Interval(Part):
    """A ratio with an interval over prompts.

    Attributes:
        value: Total plain seconds over total plan seconds, per emitted token.
        low: Lower end, or None where there are too few prompts for an interval.
        high: Upper end, or None.
        level: Confidence level.
    """

    value: float
    low: float | None = None
    high: float | None = None
    level: float = 0.95


class TimeSplit(Part):
    """Shares of decoding time; they add up to 1.

    Attributes:
        draft: Drafting.
        verify: The target's passes.
        host: Everything else.
    """

    draft: float
    verify: float
    host: float


class KindResult(Part):
    """What was measured on the held-out prompts of one kind, or on all of them.

    Attributes:
        kind: Kind of prompt, or "all".
        sampling: How tokens were chosen, in words.
        num_prompts: Number of held-out prompts.
        plain_tokens_per_s: Own plain decoding, prefill apart.
        plan_tokens_per_s: The plan, prefill apart.
        stock_tokens_per_s: ``transformers`` generate, prefill apart, or None if it was not measured.
        speedup: Plan over own plain decoding.
        speedup_over_stock: Plan over ``transformers`` generate, or None.
        tokens_per_round: Mean acceptance length.
        acceptance_rate: Accepted over drafted tokens, or None if nothing was drafted.
        time: Where the plan's time went.
        time_to_first_token_s: Median seconds to the first token.
        num_identical: Prompts on which the plan's tokens equal plain decoding's.
        largest_divergence_margin: Largest top-two margin of the target's logits at a first divergence, or None
            where nothing diverged or tokens were sampled.
    """

    kind: str
    sampling: str
    num_prompts: int
    plain_tokens_per_s: float
    plan_tokens_per_s: float
    stock_tokens_per_s: float | None = None
    speedup: Interval
    speedup_over_stock: float | None = None
    tokens_per_round: float
    acceptance_rate: float | None
    time: TimeSplit
    time_to_first_token_s: float
    num_identical: int
    largest_divergence_margin: float | None = None


class MemoryStep(Part):
    """The best plan that keeps within one amount of extra memory.

    Attributes:
        name: "zero" (at most 1 % of the weights) or "quantized".
        extra_bytes: What the plan holds beyond model and cache.
        extra_share: The same as a share of the weights.
        enabled: Whether the plan beat plain decoding on held-out prompts.
        reason: Why, in a sentence.
        plan: The plan; the best one found also where it is not enabled.
        results: Held-out rows: one per kind, then "all"; more where other temperatures were asked for.
    """

    name: str
    extra_bytes: int
    extra_share: float
    enabled: bool
    reason: str
    plan: DraftPlan
    results: tuple[KindResult, ...] = ()

    @property
    def overall(self) -> KindResult | None:
        """The row over all held-out prompts at the calibrated sampling settings."""
        return next((row for row in self.results if row.kind == "all"), None)


class TimedPlan(Part):
    """One plan of the timed study: predicted beside measured.

    Attributes:
        plan: The plan.
        predicted_speedup: From traces and the cost model, or None where it was not predicted.
        measured_speedup: On search prompts.
        num_prompts: Prompts it was timed on before it was pruned or complete.
        num_runs: How often the plan was measured; duplicates are averaged.
        order: Place among the plans of its study in the order of their first trial, from 0 (plain decoding); None in
            older files.
        decode_s: Seconds of decoding that timing it took, plain decoding beside it included.
        step: The step of extra memory whose study timed it, "zero" or "quantized"; None in older files.
    """

    plan: DraftPlan
    predicted_speedup: float | None
    measured_speedup: float
    num_prompts: int
    num_runs: int = 1
    order: int | None = None
    decode_s: float = 0.0
    step: str | None = None


class CostTable(Part):
    """Measured seconds of passes on this machine.

    Attributes:
        context_lengths: Context lengths n that were measured.
        pass_s: For each context length, seconds of a full pass over 1, 2, ... rows.
        attention_s: Seconds of one attention sub-layer in a one-row pass, per context length.
        mlp_s: Seconds of one MLP sub-layer in a one-row pass.
        head_s: Seconds of final norm and head for one row.
        host_s: Seconds per round outside of passes.
        quantized_pass_s: Seconds of a one-row pass of the NF4 copy, or None if there is none.
        quantized_head_s: Seconds of the NF4 head for one row, or None.
    """

    context_lengths: tuple[int, ...] = Field(min_length=1)
    pass_s: tuple[Annotated[tuple[float, ...], Field(min_length=1)], ...] = Field(min_length=1)
    attention_s: tuple[float, ...] = Field(min_length=1)
    mlp_s: float
    head_s: float
    host_s: float
    quantized_pass_s: float | None = None
    quantized_head_s: float | None = None


class Evidence(Part):
    """What the choice rests on.

    Attributes:
        cost: The cost model's table.
        agreement_by_exit: Draft agreement of the raw exit at layers 1 .. L-1 on search traces.
        agreement_by_linear_exit: The same through a fitted linear head, scored on other prompts.
        attention_sensitivity: For each layer the agreement without its attention.
        mlp_sensitivity: For each layer the agreement without its MLP.
        num_predicted: Plans scored without decoding.
        num_skip_sets: Distinct skip sets among them.
        num_trace_tokens: Trace tokens they were scored on.
        timed: The timed study, best first.
        median_prediction_error: Median of |predicted - measured| / measured over timed plans.
    """

    cost: CostTable
    agreement_by_exit: tuple[float, ...] = ()
    agreement_by_linear_exit: tuple[float | None, ...] = ()
    attention_sensitivity: tuple[float | None, ...] = ()
    mlp_sensitivity: tuple[float | None, ...] = ()
    num_predicted: int = 0
    num_skip_sets: int = 0
    num_trace_tokens: int = 0
    timed: tuple[TimedPlan, ...] = ()
    median_prediction_error: float | None = None


class SamplingRecord(Part):
    """The sampling settings that were measured."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    mode: Literal["rejection", "match"] = "rejection"


class PromptData(Part):
    """The prompts that were used; their text is not in the file.

    Attributes:
        file: Name of the prompt file, without its folder.
        sha256: Hash of its content.
        num_search: Prompts that the search saw.
        num_held_out: Prompts that only the verdict saw.
        kinds: Prompts used per kind.
        skipped: Rows left out, by reason.
        search_ids: Hashes of the prompts that the search saw; empty in older files.
    """

    file: str
    sha256: str
    num_search: int
    num_held_out: int
    kinds: dict[str, int] = Field(default_factory=dict)
    skipped: dict[str, int] = Field(default_factory=dict)
    search_ids: tuple[str, ...] = ()


class Calibration(Part):
    """The file's content.

    Attributes:
        schema_name: Always "selfspec.calibration".
        schema_version: "major.minor"; another major version is refused.
        created: ISO 8601, UTC.
        selfspec_version: Version that wrote it.
        model: How the model was loaded.
        fingerprint: The model it holds for.
        machine: The machine it was measured on.
        sampling: The sampling settings it was measured at.
        max_new_tokens: Length of the measured generations.
        data: The prompts.
        steps: The best plan per amount of extra memory, in ascending order.
        chosen: Index into ``steps`` that ``--max-extra-memory`` chose.
        evidence: What the choice rests on.
        arrays: Name of the safetensors file beside this one that holds fitted arrays, or None.
        arrays_sha256: Hash of that file, or None.
    """

    schema_name: Literal["selfspec.calibration"] = SCHEMA_NAME
    schema_version: str = SCHEMA_VERSION
    created: str
    selfspec_version: str
    model: ModelSpec
    fingerprint: ModelFingerprint
    machine: Machine
    sampling: SamplingRecord = SamplingRecord()
    max_new_tokens: int
    data: PromptData
    steps: tuple[MemoryStep, ...] = Field(min_length=1)
    chosen: int = 0
    evidence: Evidence
    arrays: str | None = None
    arrays_sha256: str | None = None
