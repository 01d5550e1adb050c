from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from selfspec.cli.calibrate_options import merge_settings
from selfspec.recipe import read_recipe, read_settings_file, recipe_folder, recipe_names
from selfspec_runtime.errors import UsageError
from selfspec_runtime.memory import parse_memory

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine

NEEDED = {"demo", "rtx4090-8b-4bit", "l40-14b", "cpu-nuc-bf16", "layerskip-llama"}


def test_the_needed_recipes_are_there() -> None:
    assert set(recipe_names()) >= NEEDED


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_makes_settings_and_says_when(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.when.endswith(".")
    settings = merge_settings(recipe.settings, {"model": "m", "prompts": "p.jsonl"})
    assert settings.model.model == "m"
    assert parse_memory(settings.max_extra_memory)
    assert settings.model_dump(exclude_defaults=True, exclude={"model", "prompts"}) or recipe.settings


@pytest.mark.parametrize("name", recipe_names())
def test_no_recipe_keeps_families_out(name: str) -> None:
    """What cannot work on a model is left out with its reason; a list would leave out what is added later, too."""
    assert "families" not in read_recipe(name).settings


def test_recipes_are_listed_and_shown(selfspec_command: CommandLine, tmp_path: Path) -> None:
    listed = json.loads(selfspec_command("recipes", "list", "--format", "json").out)["recipes"]["rows"]
    assert [row["name"] for row in listed] == list(recipe_names())
    shown = selfspec_command("recipes", "show", "l40-14b")
    (tmp_path / "own.yaml").write_text(shown.out)
    assert read_settings_file(tmp_path / "own.yaml")["settings"] == read_recipe("l40-14b").settings


@pytest.mark.parametrize(
    ("name", "hint"), [("l40-14", "Did you mean l40-14b?"), ("xyz", "There are cpu-nuc-bf16, demo")]
)
def test_an_unknown_recipe_is_refused(selfspec_command: CommandLine, name: str, hint: str) -> None:
    run = selfspec_command("recipes", "show", name)
    assert run.code == 2
    assert f"There is no recipe '{name}'. {hint}" in run.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [1", "a.yaml:1: "),
        ("a.yaml", "just words", "holds no settings"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "a.yaml:1: "),
        ("a.toml", "a = ", "a.toml: "),
        ("a.yaml", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        read_settings_file(tmp_path / name)


def test_toml_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('budget_s = 60\n[model]\ndtype = "float32"\n')
    assert read_settings_file(tmp_path / "a.toml") == {"budget_s": 60, "model": {"dtype": "float32"}}


def test_the_demo_prompts_lie_beside_the_recipes() -> None:
    assert (recipe_folder() / "demo" / "prompts.jsonl").is_file()


def test_recipes_are_packaged() -> None:
    """The wheel takes the folder that a checkout has at its top."""
    project = Path(__file__).parents[3]
    import tomllib

    build = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {"recipes": "selfspec/recipes"}
    assert all(yaml.safe_load(path.read_text()) for path in (project / "recipes").glob("*.yaml"))
