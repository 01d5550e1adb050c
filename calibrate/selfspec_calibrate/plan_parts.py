"""What a plan is made of, whatever wraps what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from selfspec_runtime.drafts.source import SourceSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_runtime.plan import DraftPlan

#: Kinds of source that look the text up, and run no pass.
LOOKUPS = frozenset({"ngram", "suffix"})

#: Kinds of source whose rounds follow from scores and lookups alone.
REPLAYED = LOOKUPS | {"early_exit", "layer_skip", "quantized", "ngram_first"}


def sources_in(plan: DraftPlan) -> Iterator[SourceSpec]:
    """The plan's source and all sources within it, outer ones first."""
    yield from _sources(plan.source)


def _sources(part: object) -> Iterator[SourceSpec]:
    if isinstance(part, SourceSpec):
        yield part
    if isinstance(part, BaseModel):
        for name in type(part).model_fields:
            yield from _sources(getattr(part, name))
    elif isinstance(part, tuple):
        for each in part:
            yield from _sources(each)


def is_replayed(plan: DraftPlan) -> bool:
    """Whether a plan's rounds can be replayed over traces one by one: nothing in it learns while it decodes."""
    return not plan.controller.learns and getattr(plan, "scheduler", None) is None and replayed_core(plan)


def replayed_core(plan: DraftPlan) -> bool:
    """Whether a plan's sources are ones that traces score and the cost model knows, whatever controls them."""
    sources = list(sources_in(plan))
    if any(getattr(source, name, None) for source in sources for name in ("vocab_size", "corpus")):
        return False
    return all(getattr(source, "kind", None) in REPLAYED for source in sources)


def array_names(plan: DraftPlan) -> frozenset[str]:
    """Fitted arrays that a plan needs."""
    return frozenset(name for source in sources_in(plan) for name in getattr(source, "array_names", tuple)())
