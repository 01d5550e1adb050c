"""The page of all commands is what the command line itself says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_the_command_line_of_today(tmp_path: Path) -> None:
    made = tmp_path / "commands.md"
    command = [sys.executable, "-m", "typer", "selfspec.cli.app", "utils", "docs", "--name", "selfspec"]
    subprocess.run([*command, "--title", "Every command and option", "--output", made], check=True, capture_output=True)
    assert made.read_text() == PAGE.read_text(), "`make commands` writes the page anew"
