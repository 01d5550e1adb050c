"""Options that several commands share, as data: a command takes a group, the terminal sees its single options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options.

    Each parameter whose type is a dataclass is replaced, in the signature that typer sees, by one option per field;
    the command is called with the dataclass.

    Args:
        command: A function with typer annotations.

    Returns:
        A function with the flat signature.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        built = {name: _build(group, values) for name, group in groups.items()}
        command(**values, **built)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters.extend(_members(groups[name]))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flat.__doc__ = _unwrapped(command.__doc__ or "")
    return flat


def _unwrapped(text: str) -> str:
    """One line per paragraph: a terminal breaks lines where it is wide, not where the source is."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _build(group: Any, values: dict[str, Any]) -> Any:
    return group(**{member.name: values.pop(member.name) for member in fields(group)})


def _members(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            member.name, inspect.Parameter.KEYWORD_ONLY, default=member.default, annotation=hints[member.name]
        )
        for member in fields(group)
    ]
