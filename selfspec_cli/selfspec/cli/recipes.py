"""``selfspec recipes``: packaged settings for calibrate."""

from __future__ import annotations

from typing import Annotated

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.options import FormatOption

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe.")]

recipes = typer.Typer(no_args_is_help=True, help="List and show recipes: settings for a kind of machine or model.")


@recipes.command(name="list")
def list_recipes(*, form: FormatOption = "table") -> None:
    """List the recipes, and when to use each."""
    from selfspec.cli.sheet import Column, Sheet, show_sheets
    from selfspec.recipe import read_recipe, recipe_names

    found = [read_recipe(name) for name in recipe_names()]
    sheet = Sheet(
        name="recipes",
        title="Recipes, for selfspec calibrate --recipe NAME",
        columns=(
            Column(key="name", title="name", is_text=True),
            Column(key="when", title="when to use it", is_text=True),
        ),
        rows=tuple({"name": recipe.name, "when": recipe.when} for recipe in found),
    )
    show_sheets((sheet,), form, Terminal())


@recipes.command()
def show(*, name: NameArgument) -> None:
    """Show a recipe; it can be saved, changed, and passed as --config."""
    import yaml

    from selfspec.recipe import read_recipe

    recipe = read_recipe(name)
    text = yaml.safe_dump(recipe.model_dump(exclude={"name"}), sort_keys=False, allow_unicode=True, width=100)
    Terminal().result(text.rstrip())
