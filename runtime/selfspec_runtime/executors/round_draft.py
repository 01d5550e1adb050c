"""What a round drafts with, as an executor sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSource
from selfspec_runtime.drafts.first_of import FirstOfSource
from selfspec_runtime.drafts.lookahead import LooksAhead
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.executors.steps import DraftProgram
from selfspec_runtime.stubs import HandOut

if TYPE_CHECKING:
    from selfspec_runtime.drafts.source import DraftSource, RoundContext
    from selfspec_runtime.layer_skip import LayerSkipSet


@runtime_checkable
class SkipsLayers(Protocol):
    """A source whose drafts are passes without some sub-layers, which may be others in every round.

    Attributes:
        origin: Kind of the source, for the record.
        skip: What the coming round leaves out.
    """

    origin: str
    skip: LayerSkipSet

    def prepare(self, context: RoundContext) -> None:
        """Chooses what the coming round leaves out."""


@dataclass(frozen=True)
class PassDraft:
    """One pass of a layer program per token.

    Attributes:
        count: Tokens to draft.
        origin: Kind of the source, for the record.
        program: What a pass runs.
    """

    count: int
    origin: str
    program: DraftProgram


@dataclass(frozen=True)
class SkipDraft:
    """One pass without some sub-layers per token.

    Attributes:
        count: Tokens to draft.
        origin: Kind of the source, for the record.
        skip: What is left out.
    """

    count: int
    origin: str
    skip: LayerSkipSet


@dataclass(frozen=True)
class HostDraft:
    """Tokens that are known already; none for a plain step.

    Attributes:
        draft: The tokens, chosen without chance.
    """

    draft: Draft = field(default_factory=Draft)

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.draft)


RoundDraft = PassDraft | SkipDraft | HostDraft


def round_draft(source: DraftSource | None, context: RoundContext) -> RoundDraft | None:
    """What the coming round drafts with.

    Args:
        source: The plan's source, or None.
        context: As the decoder would pass it; its budget is the controller's, not yet cut to what fits.

    Returns:
        None for a source that is not known here.
    """
    if source is None or context.budget == 0:
        return HostDraft()
    if isinstance(source, FirstOfSource):
        return _first(source, context)
    if isinstance(source, LooksAhead):
        return HostDraft(source.propose(context)) if context.room else HostDraft()
    # A sub-class may do anything in a round, so that only these very classes are known.
    if isinstance(source, PassSource) and type(source) in (PassSource, EarlyExitSource):
        return PassDraft(context.budget, source.origin, _program(source))
    if isinstance(source, SkipsLayers):
        source.prepare(context)
        return SkipDraft(context.budget, source.origin, source.skip)
    return None


def _first(source: FirstOfSource, context: RoundContext) -> RoundDraft | None:
    for each in source.sources:
        draft = round_draft(each, context)
        if draft is None or draft.count:
            return draft
    return HostDraft()


def _program(source: PassSource) -> DraftProgram:
    if isinstance(source, EarlyExitSource):
        out = next(module for module in source.program.modules if isinstance(module, HandOut))
        return DraftProgram(source.program, out, source.exit_layer)
    return DraftProgram(source.program)
