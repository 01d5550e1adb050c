"""The options of calibrate, and how they, a recipe and a file become settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfspec.cli.durations import parse_duration
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError

    from selfspec_calibrate.settings import CalibrationSettings

SEARCH, FILES = "Search", "Files"

PromptsOption = Annotated[
    Path | None,
    typer.Option("--prompts", "-p", help="Prompt file: jsonl, json, csv, txt, ...", rich_help_panel=FILES),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="The calibration file to write (default selfspec.json).", rich_help_panel=FILES
    ),
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", help="A packaged recipe; see selfspec recipes.", rich_help_panel=FILES)
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-C", help="A YAML or TOML file of settings.", rich_help_panel=FILES)
]
StorageOption = Annotated[
    str | None,
    typer.Option("--storage", help="SQLAlchemy URL of the Optuna study.", rich_help_panel=FILES),
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Begin anew instead of going on.", rich_help_panel=FILES)
]
PromptFieldOption = Annotated[
    str | None,
    typer.Option("--prompt-field", help="Field that holds the prompt.", rich_help_panel=FILES),
]
SkipBadLinesOption = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Count broken rows and go on.", rich_help_panel=FILES)
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Most prompts to use.", rich_help_panel=FILES)]
HeldOutOption = Annotated[
    float | None,
    typer.Option("--held-out", help="Share of prompts that only the verdict sees.", rich_help_panel=FILES),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="10m|600s|1h", help="Time to take (default 10m).", rich_help_panel=SEARCH),
]
TrialsOption = Annotated[int | None, typer.Option("--trials", help="Most plans to time.", rich_help_panel=SEARCH)]
FamiliesOption = Annotated[
    str | None,
    typer.Option("--families", metavar="ngram,quantized,...", help="Kinds of draft to search.", rich_help_panel=SEARCH),
]
MaxDraftTokensOption = Annotated[
    int | None, typer.Option("--max-draft-tokens", help="Longest draft to consider.", rich_help_panel=SEARCH)
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-extra-memory",
        metavar="500MB|30%",
        help="Memory that the chosen plan may hold beyond the model.",
        rich_help_panel=SEARCH,
    ),
]
AlsoTemperatureOption = Annotated[
    str | None,
    typer.Option(
        "--also-temperature",
        metavar="0.7,1.0",
        help="Further temperatures to measure the chosen plan at.",
        rich_help_panel=SEARCH,
    ),
]
RequireSpeedupOption = Annotated[
    float | None,
    typer.Option("--require-speedup", help="End with exit code 3 below this speedup.", rich_help_panel=SEARCH),
]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What is read and written."""

    prompts: PromptsOption = None
    output: OutputOption = None
    recipe: RecipeOption = None
    config: ConfigOption = None
    storage: StorageOption = None
    restart: RestartOption = False
    prompt_field: PromptFieldOption = None
    skip_bad_lines: SkipBadLinesOption = False
    limit: LimitOption = None
    held_out: HeldOutOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of `CalibrationSettings`."""
        values = {
            "prompts": self.prompts,
            "output": self.output,
            "storage": self.storage,
            "restart": self.restart or None,
            "prompt_field": self.prompt_field,
            "skip_bad_lines": self.skip_bad_lines or None,
            "limit": self.limit,
            "held_out_fraction": self.held_out,
        }
        return {name: value for name, value in values.items() if value is not None}

    def read(self) -> dict[str, Path | None]:
        """The files that are read beside the prompts, by what each is."""
        return {"the file of settings": self.config}


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What is searched, and for how long."""

    budget: BudgetOption = None
    trials: TrialsOption = None
    families: FamiliesOption = None
    max_draft_tokens: MaxDraftTokensOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of `CalibrationSettings`.

        Raises:
            UsageError: A list or a time cannot be read.
        """
        values = {
            "budget_s": None if self.budget is None else parse_duration(self.budget),
            "max_trials": self.trials,
            "families": None if self.families is None else _words(self.families),
            "max_draft_tokens": self.max_draft_tokens,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class VerdictOptions:
    """What the chosen plan may cost and must reach; a comparison chooses none."""

    max_extra_memory: MemoryOption = None
    also_temperature: AlsoTemperatureOption = None
    require_speedup: RequireSpeedupOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of `CalibrationSettings`.

        Raises:
            UsageError: A list cannot be read.
        """
        values = {
            "max_extra_memory": self.max_extra_memory,
            "also_temperatures": None if self.also_temperature is None else _numbers(self.also_temperature),
            "require_speedup": self.require_speedup,
        }
        return {name: value for name, value in values.items() if value is not None}


def merge_settings(*layers: Mapping[str, Any]) -> CalibrationSettings:
    """Puts settings together.

    Args:
        *layers: Fields of `CalibrationSettings`, a later layer before an earlier one; ``model`` is merged field by
            field, and may be a name alone.

    Raises:
        UsageError: A field is missing, unknown, or has no such value.
    """
    from pydantic import ValidationError

    from selfspec_calibrate.settings import CalibrationSettings

    merged: dict[str, Any] = {}
    model: dict[str, Any] = {}
    for layer in layers:
        named = layer.get("model", {})
        model |= {"model": named} if isinstance(named, str) else named
        merged |= {name: value for name, value in layer.items() if name != "model"}
    try:
        return CalibrationSettings.model_validate({**merged, "model": model})
    except ValidationError as error:
        raise UsageError(_fault(error)) from error


def file_layers(files: FileOptions) -> tuple[Mapping[str, Any], ...]:
    """The settings of the recipe and of the file, the file's before the recipe's.

    Raises:
        UsageError: One of them cannot be read.
    """
    from selfspec.recipe import read_recipe, read_settings_file

    recipe = {} if files.recipe is None else read_recipe(files.recipe).settings
    config = {} if files.config is None else read_settings_file(files.config)
    return recipe, config.get("settings", config)


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "missing":
        wanted = {"model": "--model MODEL", "prompts": "--prompts FILE"}.get(path[-1], _option(path))
        return f"{wanted} is needed: on the command line, in the recipe or in the file."
    if fault["type"] == "extra_forbidden":
        return f"There is no setting {'.'.join(path)!r}. Correct it in the recipe or in the file."
    return f"{_option(path)} cannot be {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}."


def _option(path: list[str]) -> str:
    from selfspec_calibrate.settings import option_of

    return option_of(path[1] if path[0] == "model" and len(path) > 1 else path[0])


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().replace("-", "_") for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise UsageError(f"--also-temperature is {text!r}. Write numbers, such as 0.7,1.0.") from error
