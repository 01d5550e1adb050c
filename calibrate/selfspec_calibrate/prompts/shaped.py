"""What a row asks of the model, once its shape is known."""

from __future__ import annotations

from dataclasses import dataclass

from selfspec_calibrate.prompts.conversation import EMPTY_PROMPT, Skip, read_conversation
from selfspec_calibrate.prompts.place import Place
from selfspec_calibrate.prompts.prompt import Message

# A prompt that starts like this went through a chat template already.
_RENDERED = (
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<start_of_turn>",
    "<bos><start_of_turn>",
    "<|user|>",
    "<|system|>",
    "[INST]",
    "<s>[INST]",
)


@dataclass(frozen=True)
class Shaped:
    """A row of a known shape.

    Args:
        shape: Name of the shape that matched.
        messages: The conversation for the chat template, or None.
        text: The text to complete as it is, or None.
        notes: What was changed on the way, in a few words each.
    """

    shape: str
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    notes: tuple[str, ...] = ()


def ask(value: object, place: Place, *, shape: str) -> Shaped | Skip:
    """Make a question for the chat template.

    Args:
        value: Text, which becomes one user turn, or a list of turns.
        place: Where the row stands.
        shape: Name of the row's shape.

    Returns:
        The question. Text that already went through a chat template is kept raw, and noted.

    Raises:
        PromptFileError: The value is neither text nor a list of turns.
    """
    if isinstance(value, str):
        if not value.strip():
            return Skip(EMPTY_PROMPT)
        if value.lstrip().startswith(_RENDERED):
            return Shaped(shape, text=value, notes=("already rendered, taken as raw text",))
        return Shaped(shape, messages=(Message("user", value),))
    found = read_conversation(value, place)
    return found if isinstance(found, Skip) else Shaped(shape, messages=found.messages, notes=found.notes)


def continue_text(text: str, *, shape: str) -> Shaped | Skip:
    """Make a text to be continued without a template.

    Args:
        text: The beginning of the text.
        shape: Name of the row's shape.

    Returns:
        The text, or that it is empty.
    """
    return Shaped(shape, text=text) if text.strip() else Skip(EMPTY_PROMPT)
