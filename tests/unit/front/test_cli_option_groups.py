from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from selfspec.cli.option_groups import grouped

ColourOption = Annotated[str | None, typer.Option("--colour", help="A colour.")]


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: ColourOption = None
    coats: Annotated[int, typer.Option("--coats")] = 2


def test_a_group_becomes_single_options_and_arrives_as_a_group() -> None:
    seen = []

    def paint(*, wall: Annotated[str, typer.Argument()], paint: Paint, dry: bool = False) -> None:
        """Paint a wall
        carefully.

        And
        dry it.
        """
        seen.append((wall, paint, dry))

    flat = grouped(paint)
    assert list(inspect.signature(flat).parameters) == ["wall", "colour", "coats", "dry"]
    assert flat.__doc__ == "Paint a wall carefully.\n\nAnd dry it."
    app = typer.Typer()
    app.command()(flat)
    result = CliRunner().invoke(app, ["north", "--colour", "red", "--dry"])
    assert result.exit_code == 0, result.output
    assert seen == [("north", Paint(colour="red"), True)]
