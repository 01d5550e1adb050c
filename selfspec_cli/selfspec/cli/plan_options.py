"""The options that name a calibration file, or a plan in its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_runtime.plan import DraftPlan

PLAN = "Draft plan"
OWN_NAME = "selfspec.json"

DraftKind = Literal["early-exit", "layer-skip", "quantized", "ngram", "ngram-first", "none"]

CalibrationArgument = Annotated[
    Path | None,
    typer.Argument(metavar="CALIBRATION", help="The file that calibrate wrote.", show_default=False),
]
CalibOption = Annotated[
    Path | None, typer.Option("--calib", help="Another way to name the calibration file.", rich_help_panel=PLAN)
]
DraftOption = Annotated[
    DraftKind | None, typer.Option("--draft", help="What drafts, in the file's place.", rich_help_panel=PLAN)
]
ExitLayerOption = Annotated[
    int | None, typer.Option("--exit-layer", help="Layers that the draft runs.", rich_help_panel=PLAN)
]
HeadOption = Annotated[
    Literal["own", "linear"] | None,
    typer.Option("--head", help="The exit's head: the model's own, or the file's linear one.", rich_help_panel=PLAN),
]
SkipAttentionOption = Annotated[
    str | None,
    typer.Option("--skip-attention", metavar="4,7-9", help="Attentions that the draft skips.", rich_help_panel=PLAN),
]
SkipMlpOption = Annotated[
    str | None, typer.Option("--skip-mlp", metavar="4,7-9", help="MLPs that the draft skips.", rich_help_panel=PLAN)
]
NumDraftTokensOption = Annotated[
    int | None,
    typer.Option("--num-draft-tokens", "-k", help="Tokens drafted per round.", rich_help_panel=PLAN),
]
DraftThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--draft-threshold", help="Draft on only while the draft is this sure of a token.", rich_help_panel=PLAN
    ),
]
MaxExtraMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-extra-memory",
        metavar="500MB|30%",
        help="Memory that the plan may hold beyond the model.",
        rich_help_panel=PLAN,
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Use a plan made for other weights of this architecture.", rich_help_panel=PLAN)
]
ExactOption = Annotated[
    bool,
    typer.Option("--exact", help="Refuse unless verification has the bits of single steps.", rich_help_panel=PLAN),
]

_PASS_KINDS = ("early-exit", "layer-skip", "quantized")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """A calibration file, or a plan in its place; without both, decoding is plain."""

    calibration: CalibrationArgument = None
    calib: CalibOption = None
    draft: DraftOption = None
    exit_layer: ExitLayerOption = None
    head: HeadOption = None
    skip_attention: SkipAttentionOption = None
    skip_mlp: SkipMlpOption = None
    num_draft_tokens: NumDraftTokensOption = None
    draft_threshold: DraftThresholdOption = None
    max_extra_memory: MaxExtraMemoryOption = None
    force: ForceOption = False
    exact: ExactOption = False

    def file(self, model: str | None) -> Path | None:
        """The calibration file: the one that was named, or the one in the model's folder or here.

        Args:
            model: The model that was named, or None.

        Raises:
            UsageError: Two files were named.
        """
        named = [path for path in (self.calibration, self.calib) if path is not None]
        if len(set(named)) > 1:
            message = f"Two calibration files are named, {named[0]} and {named[1]}. Give one."
            raise UsageError(message)
        if named:
            return named[0].expanduser()
        own = Path(OWN_NAME if model is None else Path(model).expanduser() / OWN_NAME)
        return own if own.is_file() else None

    def plan(self, stored: DraftPlan | None) -> DraftPlan | None:
        """The plan that the options ask for, or None where they leave it to the file.

        Args:
            stored: The file's plan; what the options do not mention is kept, unless another kind of draft is asked for.

        Raises:
            UsageError: The options contradict each other.
        """
        from selfspec_runtime.plan import PLAIN, DraftPlan

        if self.draft == "none":
            self._refuse_leftovers(set())
            return PLAIN
        source, controller = self._source(stored), self._controller(stored)
        if source is None and controller is None:
            return None
        base = stored if stored is not None and not stored.is_plain else None
        if source is None and base is None:
            message = "--num-draft-tokens and --draft-threshold need a draft: add --draft, or pass a calibration file."
            raise UsageError(message)
        parts: dict[str, Any] = {} if base is None else base.model_dump()
        parts |= {} if source is None else {"source": source}
        parts |= {} if controller is None else {"controller": controller}
        if self.num_draft_tokens is not None:
            _drop_own_limit(parts["source"])
        return _validated(DraftPlan, parts)

    def _kind(self) -> DraftKind | None:
        if self.draft is not None:
            return self.draft
        if self.exit_layer is not None:
            return "early-exit"
        return "layer-skip" if self.skip_attention is not None or self.skip_mlp is not None else None

    def _source(self, stored: DraftPlan | None) -> dict[str, Any] | None:
        kind = self._kind()
        if kind is None:
            self._refuse_leftovers(set())
            return None
        if kind == "ngram":
            self._refuse_leftovers(set())
            return {"kind": "ngram"}
        if kind == "ngram-first":
            return {"kind": "ngram_first", "then": self._then(stored)}
        return self._pass_source(kind)

    def _then(self, stored: DraftPlan | None) -> dict[str, Any]:
        """What drafts where no n-gram matches: what the options say, else the file's own."""
        if self.exit_layer is not None:
            return self._pass_source("early-exit")
        if self.skip_attention is not None or self.skip_mlp is not None:
            return self._pass_source("layer-skip")
        own = None if stored is None else getattr(stored.source, "then", stored.source)
        if own is not None and own.kind in ("early_exit", "layer_skip", "quantized"):
            kept: dict[str, Any] = own.model_dump()
            return kept
        return {"kind": "quantized"}

    def _pass_source(self, kind: DraftKind) -> dict[str, Any]:
        if kind == "early-exit":
            self._refuse_leftovers({"exit_layer", "head"})
            if self.exit_layer is None:
                message = "--draft early-exit needs --exit-layer: the number of layers that the draft runs."
                raise UsageError(message)
            return {"kind": "early_exit", "exit_layer": self.exit_layer, "head": self.head or "own"}
        self._refuse_leftovers({"skip_attention", "skip_mlp"})
        if kind == "layer-skip" and not (self.skip_attention or self.skip_mlp):
            message = "--draft layer-skip needs --skip-attention or --skip-mlp, such as --skip-mlp 4,7-9."
            raise UsageError(message)
        return {"kind": kind.replace("-", "_"), "skip": self._skip()}

    def _skip(self) -> dict[str, list[int]]:
        from selfspec_runtime.layer_skip import parse_indices

        given = {"attention": self.skip_attention, "mlp": self.skip_mlp}
        return {name: sorted(parse_indices(text)) for name, text in given.items() if text is not None}

    def _refuse_leftovers(self, used: set[str]) -> None:
        """Nothing that was said is ignored in silence."""
        names = ("exit_layer", "head", "skip_attention", "skip_mlp")
        left = [name for name in names if name not in used and getattr(self, name) is not None]
        if left:
            option = f"--{left[0].replace('_', '-')}"
            kind = f"--draft {self._kind()}" if self._kind() is not None else "any draft"
            message = f"{option} does not go with {kind}. Leave one of them out."
            raise UsageError(message)

    def _controller(self, stored: DraftPlan | None) -> dict[str, Any] | None:
        if self.draft_threshold is None and self.num_draft_tokens is None:
            return None
        own = {} if stored is None else stored.controller.model_dump()
        threshold = self.draft_threshold
        if threshold is None:
            threshold = own.get("draft_confidence_threshold")
        number = self.num_draft_tokens if self.num_draft_tokens is not None else own.get("num_draft_tokens")
        given = {"num_draft_tokens": number, "draft_confidence_threshold": threshold}
        kind = "fixed" if threshold is None else "confidence"
        return {"kind": kind, **{name: value for name, value in given.items() if value is not None}}


def _drop_own_limit(source: dict[str, Any]) -> None:
    """An n-gram source may have a limit of its own, which would override the number that was asked for."""
    for part in (source, source.get("ngram", {})):
        part.pop("num_draft_tokens", None)


def _validated(plan_class: type[DraftPlan], parts: dict[str, Any]) -> DraftPlan:
    from pydantic import ValidationError

    try:
        return plan_class.model_validate(parts)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = str(fault["loc"][-1])
        option = {"draft_confidence_threshold": "--draft-threshold"}.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(
            f"{option} cannot be {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}."
        ) from error
