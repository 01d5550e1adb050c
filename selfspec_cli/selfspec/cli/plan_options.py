"""The options that name a calibration file, or a plan in its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfspec.cli.asked_source import AskedSource, DraftKind, HeadKind
from selfspec.cli.option_values import json_object, text_or_file
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec_runtime.plan import DraftPlan

PLAN = "Draft plan"
OWN_NAME = "selfspec.json"

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
    HeadKind | None,
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
WholePlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="JSON|@FILE",
        help='A whole plan, such as {"source": {"kind": "suffix"}}.',
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
    whole_plan: WholePlanOption = None
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

        if self.whole_plan is not None:
            return self._whole(self.whole_plan)
        source, controller = self._asked_source().spec(stored), self._controller(stored)
        if self.draft == "none":
            return PLAIN
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

    def _whole(self, text: str) -> DraftPlan:
        from selfspec_runtime.plan import DraftPlan

        if self.max_extra_memory is not None:
            message = "--max-extra-memory chooses a plan of a calibration file, and --plan says one. Leave one out."
            raise UsageError(message)
        parts = ("draft", "exit_layer", "head", "skip_attention", "skip_mlp", "num_draft_tokens", "draft_threshold")
        for name in parts:
            if getattr(self, name) is not None:
                message = f"--plan says all of a plan: write --{name.replace('_', '-')} into it, or leave --plan out."
                raise UsageError(message)
        return _validated(DraftPlan, json_object(text_or_file(text, "--plan"), "--plan"), whole=True)

    def _asked_source(self) -> AskedSource:
        return AskedSource(
            draft=self.draft,
            exit_layer=self.exit_layer,
            head=self.head,
            skip_attention=self.skip_attention,
            skip_mlp=self.skip_mlp,
        )

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


def _validated(plan_class: type[DraftPlan], parts: dict[str, Any], *, whole: bool = False) -> DraftPlan:
    from pydantic import ValidationError

    try:
        return plan_class.model_validate(parts)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        named = f"--plan: {place}" if whole else _option_of(str(fault["loc"][-1]))
        if fault["type"] == "missing":
            raise UsageError(f"{named} is missing. Add it.") from error
        reason = f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
        raise UsageError(f"{named} cannot be {fault['input']!r:.60}: {reason}.") from error


def _option_of(field: str) -> str:
    return {"draft_confidence_threshold": "--draft-threshold"}.get(field, f"--{field.replace('_', '-')}")
