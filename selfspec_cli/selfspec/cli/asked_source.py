"""The draft source that options spell out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_runtime.plan import DraftPlan

DraftKind = Literal["early-exit", "layer-skip", "quantized", "ngram", "suffix", "ngram-first", "none"]
HeadKind = Literal["own", "linear"]


@dataclass(frozen=True, kw_only=True)
class AskedSource:
    """What was said of the source.

    Attributes:
        draft: The kind that was named.
        exit_layer: Layers that an early exit runs.
        head: The exit's head.
        skip_attention: Attentions to leave out, such as ``4,7-9``.
        skip_mlp: MLPs to leave out.
    """

    draft: DraftKind | None
    exit_layer: int | None
    head: HeadKind | None
    skip_attention: str | None
    skip_mlp: str | None

    @property
    def kind(self) -> DraftKind | None:
        """The kind that was named, or the one that the other options imply."""
        if self.draft is not None:
            return self.draft
        if self.exit_layer is not None:
            return "early-exit"
        return "layer-skip" if self._skips else None

    def spec(self, stored: DraftPlan | None) -> dict[str, Any] | None:
        """The fields of the source's spec, or None where nothing is said of it.

        Args:
            stored: The calibration file's plan.

        Raises:
            UsageError: The options contradict each other.
        """
        kind = self.kind
        if kind is None or kind in ("none", "ngram", "suffix"):
            self._refuse_all_but(set())
            return None if kind is None or kind == "none" else {"kind": kind}
        if kind == "ngram-first":
            return {"kind": "ngram_first", "then": self._then(stored)}
        return self._pass_source(kind)

    @property
    def _skips(self) -> bool:
        return self.skip_attention is not None or self.skip_mlp is not None

    def _then(self, stored: DraftPlan | None) -> dict[str, Any]:
        """What drafts where no n-gram matches: what the options say, else the file's own."""
        if self.exit_layer is not None:
            return self._pass_source("early-exit")
        if self._skips:
            return self._pass_source("layer-skip")
        own = None if stored is None else getattr(stored.source, "then", stored.source)
        if own is not None and own.kind in ("early_exit", "layer_skip", "quantized"):
            kept: dict[str, Any] = own.model_dump()
            return kept
        return {"kind": "quantized"}

    def _pass_source(self, kind: DraftKind) -> dict[str, Any]:
        if kind == "early-exit":
            self._refuse_all_but({"exit_layer", "head"})
            if self.exit_layer is None:
                message = "--draft early-exit needs --exit-layer: the number of layers that the draft runs."
                raise UsageError(message)
            return {"kind": "early_exit", "exit_layer": self.exit_layer, "head": self.head or "own"}
        self._refuse_all_but({"skip_attention", "skip_mlp"})
        if kind == "layer-skip" and not (self.skip_attention or self.skip_mlp):
            message = "--draft layer-skip needs --skip-attention or --skip-mlp, such as --skip-mlp 4,7-9."
            raise UsageError(message)
        return {"kind": kind.replace("-", "_"), "skip": self._skip_set()}

    def _skip_set(self) -> dict[str, list[int]]:
        from selfspec_runtime.layer_skip import parse_indices

        given = {"attention": self.skip_attention, "mlp": self.skip_mlp}
        found = {name: sorted(parse_indices(text)) for name, text in given.items() if text is not None}
        for name, indices in found.items():
            if given[name] and not indices:
                message = f"--skip-{name} is {given[name]!r}, which names no layer. Write something like 4,7-9."
                raise UsageError(message)
        return found

    def _refuse_all_but(self, used: set[str]) -> None:
        """Nothing that was said is ignored in silence."""
        names = ("exit_layer", "head", "skip_attention", "skip_mlp")
        left = [name for name in names if name not in used and getattr(self, name) is not None]
        if left:
            option = f"--{left[0].replace('_', '-')}"
            kind = f"--draft {self.kind}" if self.kind is not None else "any draft"
            message = f"{option} does not go with {kind}. Leave one of them out."
            raise UsageError(message)
