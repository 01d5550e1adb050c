"""A saved conversation: ``{"settings": ..., "messages": [...]}``, which is a prompt file too."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from selfspec.prompt_ids import read_messages
from selfspec.saved_settings import SavedSettings, settings_of, with_settings
from selfspec_runtime.atomic import write_atomically
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from selfspec.request import GenerationOptions
    from selfspec_calibrate.prompts.prompt import Message


def write_conversation_file(path: Path, messages: Sequence[Message], options: GenerationOptions) -> None:
    """Writes a conversation.

    Args:
        path: The file; an old one is replaced.
        messages: What was said.
        options: How replies were generated.

    Raises:
        SelfspecError: It cannot be written; an old file is unchanged.
    """
    content = {"settings": settings_of(options), "messages": [asdict(message) for message in messages]}
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


def read_conversation_file(path: Path, options: GenerationOptions) -> tuple[tuple[Message, ...], GenerationOptions]:
    """Reads a conversation.

    Args:
        path: The file.
        options: What applies where the file has no settings.

    Returns:
        The messages, and the options with the file's settings.

    Raises:
        UsageError: The file cannot be read, or is not a conversation.
    """
    content = _parse(path)
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        _fail(f'{path} holds no conversation: there is no list "messages" in it', "Pass a file that /save wrote")
    try:
        return read_messages(messages), _with_settings(options, content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        _fail(f"There is no file {path}", "Pass a file that /save wrote")
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        _fail(f"{path} cannot be read ({error})", "Pass a file that /save wrote")
    except json.JSONDecodeError as error:
        _fail(f"{path}:{error.lineno}: {error.msg.lower()}", "Restore the file")


def _with_settings(options: GenerationOptions, content: Any) -> GenerationOptions:
    settings = content.get("settings") if isinstance(content, dict) else None
    if not isinstance(settings, dict):
        return options
    known = {name: value for name, value in settings.items() if name in SavedSettings.model_fields}
    return with_settings(options, known)


def _fail(fault: str, remedy: str) -> NoReturn:
    raise UsageError(f"{fault}. {remedy}.")
