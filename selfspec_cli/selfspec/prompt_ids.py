"""From whatever a prompt is given as to the token ids that the model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from selfspec_calibrate.prompts.prompt import Message, Prompt
from selfspec_calibrate.prompts.template import RenderedPrompt, render, render_messages
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PromptLike = str | Sequence[Message | Mapping[str, Any]] | Sequence[int]
"""Text, a conversation, or token ids."""

_NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
_TEXT_PARTS = ("text", "input_text", "output_text")


def prompt_ids(
    prompt: PromptLike,
    tokenizer: PreTrainedTokenizerBase,
    *,
    system: str | None = None,
    raw: bool = False,
    template_kwargs: Mapping[str, Any] = _NO_VARIABLES,
) -> RenderedPrompt:
    """Renders one prompt.

    Args:
        prompt: Text becomes one user message where the tokenizer has a chat template, and is taken as it is where
            it has none; a list of messages goes through the template; token ids are used as they are.
        tokenizer: The model's tokenizer.
        system: A system message, for prompts that have none of their own.
        raw: Take text as it is in any case.
        template_kwargs: Further variables of the chat template.

    Raises:
        UsageError: The prompt is empty, several prompts in one, not text, or refused by the template.
    """
    require_text(system or "", "The system message")
    if isinstance(prompt, str):
        return _from_text(prompt, tokenizer, system=system, raw=raw, template_kwargs=template_kwargs)
    items = list(prompt) if isinstance(prompt, Sequence) else []
    if not items:
        message = "The prompt is empty, or neither text nor a list of messages nor a list of token ids."
        raise UsageError(message)
    _refuse_batch(items)
    ids = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))
    if len(ids) == len(items):
        return RenderedPrompt(ids)
    messages = read_messages(items)
    if system and all(message.role != "system" for message in messages):
        messages = (Message("system", system), *messages)
    return render_messages(messages, tokenizer, template_kwargs=template_kwargs)


def read_messages(items: Sequence[Any]) -> tuple[Message, ...]:
    """Reads messages given as mappings with ``role`` and ``content``, or as `Message`.

    Raises:
        UsageError: One of them is neither, or is not text.
    """
    return tuple(item if isinstance(item, Message) else _read(item, n) for n, item in enumerate(items, start=1))


def require_text(text: str, what: str) -> None:
    """Refuses a string that has no UTF-8 form: bytes that a terminal passed on undecoded, or half of a pair.

    Args:
        text: The string.
        what: What it is, to begin a sentence with.

    Raises:
        UsageError: It holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{what} is not text at character {error.start + 1}: its bytes are not UTF-8. Convert it to UTF-8."
        raise UsageError(message) from error


def _read(item: Any, number: int) -> Message:
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
        message = f'Message {number} is {item!r:.60}. Give it as {{"role": "user", "content": "..."}}.'
        raise UsageError(message)
    return Message(item["role"], _content(item.get("content"), number))


def _content(content: Any, number: int) -> str:
    if isinstance(content, str):
        require_text(content, f"Message {number}")
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        message = f"Message {number} holds something else than text, and selfspec decodes text only. Leave it out."
        raise UsageError(message)
    return "\n".join(str(text) for text in texts)


def _from_text(
    text: str, tokenizer: PreTrainedTokenizerBase, *, system: str | None, raw: bool, template_kwargs: Mapping[str, Any]
) -> RenderedPrompt:
    if not text:
        message = "The prompt is empty. Give at least one character."
        raise UsageError(message)
    require_text(text, "The prompt")
    if raw or not (tokenizer.chat_template or "chat_template" in template_kwargs):
        prompt = Prompt(id="", kind="text", messages=None, text=text, line=1, shape="text")
        return render(prompt, tokenizer, system=system)
    messages = (Message("system", system),) if system else ()
    return render_messages((*messages, Message("user", text)), tokenizer, template_kwargs=template_kwargs)


def _refuse_batch(items: list[Any]) -> None:
    if all(isinstance(item, str) for item in items) or all(isinstance(item, list | tuple) for item in items):
        message = (
            f"{len(items)} prompts were given at once. selfspec decodes one text at a time (batch size 1): "
            "call it once per prompt."
        )
        raise UsageError(message)
