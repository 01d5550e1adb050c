"""The README stays short and names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from selfspec.cli.app import app

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_it_is_under_120_lines() -> None:
    assert len(README.splitlines()) < 120


def test_its_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^ {4}make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("target", ["bench", "notebooks"])
def test_what_measures_the_calibrated_plan_makes_it_first(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:.* \| demo/best\.json", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", re.findall(r"^ {4}selfspec (\w+)", README, re.MULTILINE))
def test_its_commands_exist_with_their_options(command: str) -> None:
    known = {option for parameter in COMMANDS[command].params for option in parameter.opts}
    (line,) = (line for line in README.splitlines() if line.startswith(f"    selfspec {command} "))
    assert set(re.findall(r"(?<= )--[a-z-]+", line)) <= known


@pytest.mark.parametrize("target", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_its_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
