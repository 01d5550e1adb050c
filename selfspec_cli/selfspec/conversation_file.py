"""A saved conversation: ``{"settings": ..., "messages": [...]}``, which is a prompt file too."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from selfspec.prompt_ids import read_messages
from selfspec.request import DEFAULT_MAX_NEW_TOKENS
from selfspec.sampling_choice import SamplingChoice
from selfspec_runtime.atomic import write_atomically
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from selfspec.request import GenerationOptions
    from selfspec_calibrate.prompts.prompt import Message


class SavedSettings(BaseModel):
    """The settings part of the file.

    Attributes:
        max_new_tokens: Most tokens per reply.
        stop: Strings that end a reply.
        temperature: 0 is greedy; None for the model's own.
        top_k: Only the k likeliest tokens.
        top_p: Smallest set of likeliest tokens that holds this much probability.
        min_p: Only tokens at least this likely relative to the likeliest one.
        seed: Same seed, same text.
        mode: ``rejection`` or ``match``.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    mode: Literal["rejection", "match"] = "rejection"


def write_conversation_file(path: Path, messages: Sequence[Message], options: GenerationOptions) -> None:
    """Writes a conversation.

    Args:
        path: The file; an old one is replaced.
        messages: What was said.
        options: How replies were generated.

    Raises:
        SelfspecError: It cannot be written; an old file is unchanged.
    """
    settings = SavedSettings(max_new_tokens=options.max_new_tokens, stop=options.stop, **asdict(options.sampling))
    content = {"settings": settings.model_dump(mode="json"), "messages": [asdict(message) for message in messages]}
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
    try:
        saved = SavedSettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"settings.{first['loc'][0]}: {first['msg']}") from error
    sampling = SamplingChoice(**saved.model_dump(exclude={"max_new_tokens", "stop"}))
    return replace(options, max_new_tokens=saved.max_new_tokens, stop=saved.stop, sampling=sampling)


def _fail(fault: str, remedy: str) -> NoReturn:
    raise UsageError(f"{fault}. {remedy}.")
