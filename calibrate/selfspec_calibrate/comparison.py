"""What a comparison of draft families found: the content of its file."""

from __future__ import annotations

from typing import Literal

from selfspec_runtime.calibration import Interval, KindResult, Part, PromptData, SamplingRecord
from selfspec_runtime.fingerprint import ModelFingerprint
from selfspec_runtime.machine import Machine
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import DraftPlan

SCHEMA_NAME = "selfspec.comparison"
SCHEMA_VERSION = "1.0"


class MeasuredPlan(Part):
    """A plan on held-out prompts.

    Attributes:
        plan: The plan.
        extra_bytes: What it holds beyond model and cache.
        extra_share: The same as a share of the weights.
        draft_cost: Seconds per draft token over seconds of a plain step, or None if nothing was drafted.
        choosing_share: Share of the decoding seconds that went into choosing how to draft, 0 where a source that
            does so found no time for it; None if no source does.
        results: One row per kind of prompt, then "all"; empty if it failed.
        failure: Why it did not get through the prompts, or None.
    """

    plan: DraftPlan
    extra_bytes: int
    extra_share: float
    draft_cost: float | None
    choosing_share: float | None = None
    results: tuple[KindResult, ...]
    failure: str | None = None

    @property
    def overall(self) -> KindResult | None:
        """The row over all prompts."""
        return next((row for row in self.results if row.kind == "all"), None)


class FamilyResult(Part):
    """The best plan of a family.

    Attributes:
        family: Its name.
        title: Its title, with the paper.
        best: What was measured of it on held-out prompts; None for a family that is left out.
        left_out: Why it is left out, or None.
        num_timed: Plans of it that were timed on search prompts.
        search_s: Seconds of decoding that timing them took, plain decoding beside them included.
        search_speedup: The best plan's speedup on search prompts, on which it was chosen.
        is_fastest: Whether no other family is faster on the held-out prompts.
    """

    family: str
    title: str
    best: MeasuredPlan | None = None
    left_out: str | None = None
    num_timed: int = 0
    search_s: float = 0.0
    search_speedup: float | None = None
    is_fastest: bool = False


class CalibratedResult(Part):
    """The plan that calibration chooses for an amount of extra memory, in the same run.

    Attributes:
        step: "zero" or "quantized".
        measured: The plan on held-out prompts.
        fastest_family: The fastest family that holds no more memory, or None.
        against_fastest: Speedup of the plan over that family's, paired over prompts; None if it is the same plan.
    """

    step: str
    measured: MeasuredPlan
    fastest_family: str | None = None
    against_fastest: Interval | None = None


class SpecBenchGroup(Part):
    """A group of Spec-Bench's questions by its own definition.

    Speed is a question's tokens over its seconds, prompts included, averaged over questions; the speedup is the ratio
    of these means (Xia et al. 2401.07851).

    Attributes:
        group: One of the six, or "Overall".
        num_questions: Questions measured.
        plain_tokens_per_s: Of plain decoding.
        tokens_per_s: Of the plan.
        speedup: Their ratio.
        mean_accepted_tokens: Tokens per verification, the target's own token included.
    """

    group: str
    num_questions: int
    plain_tokens_per_s: float
    tokens_per_s: float
    speedup: float
    mean_accepted_tokens: float


class SpecBenchResult(Part):
    """Spec-Bench's rows of one plan.

    Attributes:
        name: The family's name, or ``calibrated`` with the step of memory.
        plan: The plan.
        groups: The groups, then "Overall".
    """

    name: str
    plan: DraftPlan
    groups: tuple[SpecBenchGroup, ...]


class Comparison(Part):
    """The file's content.

    Attributes:
        schema_name: Always "selfspec.comparison".
        schema_version: "major.minor".
        created: ISO 8601, UTC.
        selfspec_version: Version that wrote it.
        model: How the model was loaded.
        fingerprint: The model.
        machine: Where it was measured.
        sampling: The sampling settings.
        max_new_tokens: Length of the measured generations.
        data: The prompts.
        num_timed: Search prompts on which plans were timed; all of them were traced. None in older files.
        families: Every family, those with a plan first, fastest first.
        calibrated: The plans that calibration chooses.
        spec_bench: Rows by Spec-Bench's definition, where its questions were measured.
        common_s: Seconds of what serves all families, over all runs that it took: traces, costs, fitting, predictions.
    """

    schema_name: Literal["selfspec.comparison"] = "selfspec.comparison"
    schema_version: str = SCHEMA_VERSION
    created: str
    selfspec_version: str
    model: ModelSpec
    fingerprint: ModelFingerprint
    machine: Machine
    sampling: SamplingRecord
    max_new_tokens: int
    data: PromptData
    num_timed: int | None = None
    families: tuple[FamilyResult, ...]
    calibrated: tuple[CalibratedResult, ...] = ()
    spec_bench: tuple[SpecBenchResult, ...] = ()
    common_s: float = 0.0
