"""Prompt files that tests write, and what was read from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec_calibrate.prompts.prompt import Prompt
    from selfspec_calibrate.prompts.reader import PromptFile

ROWS = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}]


class Folder:
    """Writes files.

    Args:
        path: Where they go.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, name: str, content: str | bytes) -> Path:
        """Writes one file and gives its path."""
        path = self.path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def last_text(prompt: Prompt) -> str:
    return prompt.messages[-1].content if prompt.messages else prompt.text or ""


def asked(found: PromptFile) -> list[str]:
    return [last_text(prompt) for prompt in found.prompts]


def lines(*rows: object) -> str:
    return "\n".join(json.dumps(row) for row in rows)
