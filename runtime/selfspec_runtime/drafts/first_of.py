"""N-gram first: look the text up, and draft with another source where nothing matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from selfspec_runtime.drafts.clasp import ClaspSpec
from selfspec_runtime.drafts.conf_layers import ConfLayersSpec
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.fewer_experts import FewerExpertsSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.overhead import Overhead
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.source import DraftSource, RoundContext, SourceSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.drafts.swift import SwiftSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_runtime.target import Target

PassSpec = Annotated[
    EarlyExitSpec | LayerSkipSpec | QuantizedSpec | SwiftSpec | ClaspSpec | ConfLayersSpec | FewerExpertsSpec,
    Field(discriminator="kind"),
]


class FirstOfSource(DraftSource):
    """Asks sources in order and takes the first draft that is not empty.

    Args:
        sources: The sources, cheapest first.
    """

    def __init__(self, sources: tuple[DraftSource, ...]) -> None:
        self.sources = sources

    def propose(self, context: RoundContext) -> Draft:
        """Returns the first non-empty draft."""
        for source in self.sources:
            draft = source.propose(context)
            if len(draft):
                return draft
        return Draft()

    def observe(self, draft: Draft, *, num_accepted: int) -> None:
        """Tells every source."""
        for source in self.sources:
            source.observe(draft, num_accepted=num_accepted)

    def reset(self) -> None:
        """Resets every source."""
        for source in self.sources:
            source.reset()

    @property
    def extra_bytes(self) -> int:
        """Sum over the sources."""
        return sum(source.extra_bytes for source in self.sources)

    @property
    def overhead(self) -> Overhead:
        """Sum over the sources."""
        return sum((source.overhead for source in self.sources), Overhead())


class NgramFirstSpec(SourceSpec):
    """Plan entry for n-gram first, then passes of the model.

    Attributes:
        ngram: The lookup, of n-grams or of the longest suffix.
        then: What drafts where nothing matches.
    """

    kind: Literal["ngram_first"] = "ngram_first"
    ngram: NgramSpec | SuffixSpec = NgramSpec()
    then: PassSpec

    def build(self, target: Target, arrays: Mapping[str, Tensor]) -> FirstOfSource:
        """Makes both sources."""
        return FirstOfSource((self.ngram.build(target, arrays), self.then.build(target, arrays)))

    def validate_for(self, num_layers: int) -> None:
        """Checks the second source."""
        self.then.validate_for(num_layers)

    def describe(self) -> str:
        """For example ``n-gram 1-3, else exit after layer 8``."""
        return f"{self.ngram.describe()}, else {self.then.describe()}"

    def array_names(self) -> tuple[str, ...]:
        """Those of both sources."""
        return (*self.ngram.array_names(), *self.then.array_names())
