"""From a prompt to token ids, in one step.

A rendered template is never tokenised a second time: that would give it two beginning-of-text tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jinja2

from selfspec_calibrate.prompts.prompt import Message, Prompt
from selfspec_calibrate.prompts.turns import alternate, without_system
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_TEMPLATE = "The tokenizer has no chat template; the turns are given as plain text."
TURNS_MERGED = "The chat template wants alternating roles; adjacent turns were merged, first answers left out."
SYSTEM_MERGED = "The chat template takes no system turn; it was put before the first user turn."
SYSTEM_UNUSED = "A raw text takes no system turn; it was left out."

_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
_RESERVED = frozenset({"conversation", "tokenize", "return_dict", "return_tensors", "add_generation_prompt"})
# A template is a program: whatever it does wrong, endless recursion included, is its own fault.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as the model gets it.

    Args:
        token_ids: The ids, with all special tokens; at least one.
        notices: What was changed to satisfy the template, one sentence each.
    """

    token_ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


def render(
    prompt: Prompt,
    tokenizer: PreTrainedTokenizerBase,
    *,
    system: str | None = None,
    template_kwargs: Mapping[str, Any] = _NO_KWARGS,
) -> RenderedPrompt:
    """Render a prompt of a file.

    Args:
        prompt: The prompt.
        tokenizer: The model's tokenizer.
        system: A system turn for conversations that have none of their own.
        template_kwargs: Further variables for the chat template, such as ``enable_thinking``.

    Returns:
        The ids, and what was changed.

    Raises:
        UsageError: The template refuses the conversation; the message names the prompt's line.
    """
    try:
        if prompt.messages is None:
            return _render_raw(prompt.text or "", tokenizer, system)
        messages = prompt.messages
        if system and all(message.role != "system" for message in messages):
            messages = (Message("system", system), *messages)
        return render_messages(messages, tokenizer, template_kwargs=template_kwargs)
    except UsageError as error:
        raise UsageError(f"Prompt of line {prompt.line}: {error}") from error


def render_messages(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    *,
    add_generation_prompt: bool = True,
    template_kwargs: Mapping[str, Any] = _NO_KWARGS,
) -> RenderedPrompt:
    """Render a conversation with the tokenizer's chat template.

    A template that refuses the conversation gets it again with alternating roles, and then with the system
    turn merged into the first user turn. Without a template, the contents are joined by blank lines.

    Args:
        messages: The conversation.
        tokenizer: The model's tokenizer.
        add_generation_prompt: End with the head of the model's answer.
        template_kwargs: Further variables for the chat template.

    Returns:
        The ids, and what was changed.

    Raises:
        UsageError: The template refuses the conversation in every form.
    """
    reserved = sorted(_RESERVED & template_kwargs.keys())
    if reserved:
        raise UsageError(f"The template variable {reserved[0]} is set by selfspec. Leave it out.")
    if not tokenizer.chat_template and "chat_template" not in template_kwargs:
        plain = "\n\n".join(message.content for message in messages)
        rendered = _render_raw(plain, tokenizer, None)
        return replace(rendered, notices=(NO_TEMPLATE,))
    fixed = {"tokenize": True, "return_dict": True, "add_generation_prompt": add_generation_prompt}
    options = {**template_kwargs, **fixed}
    refusal: Exception | None = None
    for form, notices in _forms(tuple(messages)):
        try:
            encoded = tokenizer.apply_chat_template(_as_dicts(form), **options)
        except _TEMPLATE_ERRORS as error:
            refusal = error
        else:
            return _rendered(encoded["input_ids"], notices)
    raise UsageError(
        f"The chat template refuses the conversation ({refusal}). "
        "Correct its roles, or give another template with --chat-template."
    ) from refusal


def _forms(messages: tuple[Message, ...]) -> Iterator[tuple[tuple[Message, ...], tuple[str, ...]]]:
    """Give the conversation as it is, and then ever more changed, each form once."""
    yield messages, ()
    alternating = alternate(messages)
    if alternating != messages:
        yield alternating, (TURNS_MERGED,)
    if any(message.role == "system" for message in messages):
        merged = without_system(messages)
        strict = alternate(merged)
        yield strict, (SYSTEM_MERGED,) if strict == merged else (SYSTEM_MERGED, TURNS_MERGED)


def _as_dicts(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _render_raw(text: str, tokenizer: PreTrainedTokenizerBase, system: str | None) -> RenderedPrompt:
    bos = tokenizer.bos_token
    # A text that brings its beginning-of-text token gets no second one.
    encoded = tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))
    return _rendered(encoded["input_ids"], (SYSTEM_UNUSED,) if system else ())


def _rendered(token_ids: Iterable[int], notices: tuple[str, ...]) -> RenderedPrompt:
    ids = tuple(int(token_id) for token_id in token_ids)
    if not ids:
        raise UsageError("The rendered prompt has no tokens. Give a prompt that holds text.")
    return RenderedPrompt(ids, notices)
