"""The families of drafts that calibration searches and compares: adding one is one entry in this table.

Families that replay exactly are searched by the predicted study, and its leaders are timed. The others, which learn or
choose while they decode, are timed from a few plans that the predicted study suggests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfspec_calibrate import family_plans
from selfspec_calibrate.family_world import CONTROLLER_KINDS, SOURCE_KINDS
from selfspec_calibrate.plan_parts import sources_in
from selfspec_runtime.drafts.early_exit import EarlyExitSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from selfspec_calibrate.family_world import FamilyWorld
    from selfspec_calibrate.settings import Family
    from selfspec_runtime.plan import DraftPlan

#: Drafts by the model's own layers that learn while decoding are tried by calibrate only if plain ones come so near.
WORTH_LEARNING = 0.95


@dataclass(frozen=True, kw_only=True)
class DraftFamily:
    """One family.

    Attributes:
        name: As result files spell it.
        title: In tables, with its paper.
        holds: Whether a plan is of this family; the first family of the table that holds a plan has it.
        plans: Plans to time; None where the predicted study proposes them.
        absent: Why a model has no plans of it, or None.
        needs_layers: Whether it pays only where drafts by the model's own layers nearly do.
        part_of: The name under which ``--families`` knows it, where that is another.
    """

    name: str
    title: str
    holds: Callable[[DraftPlan], bool]
    plans: Callable[[FamilyWorld], Sequence[DraftPlan]] | None = None
    absent: Callable[[FamilyWorld], str | None] = family_plans.never_absent
    needs_layers: bool = False
    part_of: Family | None = None

    @property
    def option(self) -> str:
        """As ``--families`` spells it."""
        return self.part_of or self.name

    def is_worth_timing(self, world: FamilyWorld) -> bool:
        """Whether the cheap analysis leaves it a chance; where nothing was analysed, it has one."""
        known = world.best_layer_speedup
        return not self.needs_layers or known is None or known >= WORTH_LEARNING


def _source(*kinds: str) -> Callable[[DraftPlan], bool]:
    return lambda plan: plan.source is not None and plan.source.kind in kinds


def _controller(kind: str) -> Callable[[DraftPlan], bool]:
    return lambda plan: not plan.is_plain and plan.controller.kind == kind


def _falls_back(plan: DraftPlan) -> bool:
    return not plan.is_plain and bool(getattr(plan.controller, "falls_back", False))


def _has_reduced_head(plan: DraftPlan) -> bool:
    return any(getattr(source, "vocab_size", None) is not None for source in sources_in(plan))


def _has_linear_head(plan: DraftPlan) -> bool:
    return isinstance(plan.source, EarlyExitSpec) and plan.source.head == "linear"


TABLE: tuple[DraftFamily, ...] = (
    DraftFamily(
        name="tree",
        title="token trees (SWIFT's side branches, 2410.06916)",
        holds=_source("tree"),
        plans=family_plans.trees,
        absent=family_plans.without_source("tree"),
    ),
    DraftFamily(
        name="saguaro",
        title="drafting beside verification (Saguaro)",
        holds=lambda plan: getattr(plan, "scheduler", None) is not None,
        plans=family_plans.saguaro,
        absent=family_plans.without_scheduler,
    ),
    DraftFamily(
        name="adaptive_threshold",
        title="adaptive threshold (Draft&Verify, 2309.08168)",
        holds=_controller("adaptive_threshold"),
        plans=family_plans.adaptive_thresholds,
        absent=family_plans.without_passes,
        needs_layers=True,
    ),
    DraftFamily(
        name="accepted_length",
        title="length by accepted lengths, with probes",
        holds=_controller("accepted_length"),
        plans=family_plans.accepted_lengths,
        absent=family_plans.without_controller("accepted_length"),
    ),
    DraftFamily(
        name="thompson",
        title="length by Thompson sampling (EESD, 2406.03853)",
        holds=_controller("thompson"),
        plans=family_plans.thompsons,
        absent=family_plans.without_controller("thompson"),
    ),
    DraftFamily(
        name="reduced_head",
        title="draft head over a reduced vocabulary (FR-Spec, 2502.14856)",
        holds=_has_reduced_head,
        plans=family_plans.reduced_heads,
        absent=family_plans.without_ranks,
    ),
    DraftFamily(
        name="fallback",
        title="plain while speculation loses",
        holds=_falls_back,
        plans=family_plans.fallbacks,
        absent=family_plans.without_costs,
    ),
    DraftFamily(
        name="swift",
        title="skip set improved while decoding (SWIFT, 2410.06916)",
        holds=_source("swift"),
        plans=family_plans.swifts,
        absent=family_plans.without_source("swift"),
        needs_layers=True,
    ),
    DraftFamily(
        name="clasp",
        title="layers chosen after verification (CLaSp, 2505.24196)",
        holds=_source("clasp"),
        plans=family_plans.clasps,
        absent=family_plans.without_source("clasp"),
        needs_layers=True,
    ),
    DraftFamily(
        name="conf_layers",
        title="layers by confidence (ConfLayers, 2604.14612)",
        holds=_source("conf_layers"),
        plans=family_plans.conf_layers,
        absent=family_plans.without_source("conf_layers"),
        needs_layers=True,
    ),
    DraftFamily(
        name="fewer_experts",
        title="fewer routed experts (Zheng et al., WWW 2026)",
        holds=_source("fewer_experts"),
        plans=family_plans.fewer_experts,
        absent=family_plans.without_experts,
    ),
    DraftFamily(
        name="suffix",
        title="suffix automaton (SAM-Decoding, 2411.10666)",
        holds=_source("suffix"),
    ),
    DraftFamily(name="ngram_first", title="n-gram first, else passes", holds=_source("ngram_first")),
    DraftFamily(name="ngram", title="n-gram lookup (prompt lookup)", holds=_source("ngram")),
    DraftFamily(
        name="quantized",
        title="NF4 copy of its own weights",
        holds=_source("quantized"),
        absent=family_plans.without_quantisation,
    ),
    DraftFamily(
        name="layer_skip",
        title="skip set (Draft&Verify, KnapSpec 2602.20217)",
        holds=_source("layer_skip"),
        absent=family_plans.without_inner_layers,
    ),
    DraftFamily(
        name="linear_exit",
        part_of="early_exit",
        title="early exit through a linear head",
        holds=_has_linear_head,
        absent=family_plans.without_inner_layers,
    ),
    DraftFamily(
        name="early_exit",
        title="early exit with shared cache (LayerSkip, 2404.16710)",
        holds=_source("early_exit"),
        absent=family_plans.without_inner_layers,
    ),
)


def family_of(plan: DraftPlan) -> DraftFamily | None:
    """The family of a plan; None for plain decoding."""
    return next((family for family in TABLE if family.holds(plan)), None)


def in_turns(plans: Iterable[DraftPlan]) -> list[DraftPlan]:
    """Each family's first plan, then each family's second one, and so on: where time ends, no family is left out."""
    counts: Counter[str] = Counter()
    turns: list[tuple[int, DraftPlan]] = []
    for plan in plans:
        family = family_of(plan)
        name = "none" if family is None else family.name
        turns.append((counts[name], plan))
        counts[name] += 1
    return [plan for _, plan in sorted(turns, key=lambda turn: turn[0])]


def num_families(plans: Iterable[DraftPlan]) -> int:
    """How many families plans are of."""
    return len({family.name for plan in plans if (family := family_of(plan)) is not None})


def known_kinds() -> frozenset[str]:
    """All kinds of sources and controllers; a test holds the table to them."""
    return SOURCE_KINDS | CONTROLLER_KINDS
