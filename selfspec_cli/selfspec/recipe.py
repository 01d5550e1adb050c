"""Recipes: calibration settings for a kind of machine or model, with a sentence on when to use them."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfspec_runtime.errors import UsageError

_PACKAGED = Path(__file__).parent / "recipes"
_CHECKOUT = Path(__file__).parents[2] / "recipes"


class Recipe(BaseModel):
    """One YAML file.

    Attributes:
        name: Name of the file, without its ending.
        when: When to use it, as a sentence.
        settings: Fields of `CalibrationSettings`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    when: str = Field(min_length=1)
    settings: dict[str, Any]


def recipe_folder() -> Path:
    """Where the recipes are: inside the installed package, or at the top of a source checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def recipe_names() -> tuple[str, ...]:
    """Names of all recipes, sorted."""
    return tuple(sorted(path.stem for path in recipe_folder().glob("*.yaml")))


def read_recipe(name: str) -> Recipe:
    """Reads a packaged recipe.

    Raises:
        UsageError: There is none of this name, or it is broken.
    """
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names) or 'none'}."
        raise UsageError(f"There is no recipe {name!r}. {hint}")
    path = recipe_folder() / f"{name}.yaml"
    try:
        return Recipe.model_validate({"name": name, **read_settings_file(path)})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UsageError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}.") from error


def read_settings_file(path: Path) -> dict[str, Any]:
    """Reads a YAML or TOML file.

    Raises:
        UsageError: It cannot be read, or is not a mapping of names to values.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from error
    content = _parse_toml(path, text) if path.suffix == ".toml" else _parse_yaml(path, text)
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings. Write one name: value per line.")
    return content


def _parse_toml(path: Path, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}.") from error


def _parse_yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"{place}: {getattr(error, 'problem', None) or error}.") from error
