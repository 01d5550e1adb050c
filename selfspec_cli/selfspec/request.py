"""One generation as it was asked for, checked and made ready to run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from selfspec.prompt_ids import prompt_ids, require_text
from selfspec_runtime.errors import UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.sampling_choice import SamplingChoice

if TYPE_CHECKING:
    from selfspec.prompt_ids import PromptLike
    from selfspec_runtime.generation_defaults import GenerationDefaults
    from selfspec_runtime.loading import LoadedModel
    from selfspec_runtime.stopping import Criterion

DEFAULT_MAX_NEW_TOKENS = 256

_REFUSALS = {
    "num_beams": "Beam search is not supported: selfspec follows one text at a time",
    "num_beam_groups": "Beam search is not supported: selfspec follows one text at a time",
    "num_return_sequences": "selfspec writes one text at a time: call it again with another seed for another text",
    "batch_size": "selfspec decodes one text at a time (batch size 1)",
    "do_sample": "Whether tokens are drawn follows from the temperature: 0 is greedy, anything above samples",
    "max_length": "The length is given without the prompt, as max_new_tokens",
    "stop_strings": "Stop strings are given as stop",
    "stopping_criteria": "Stopping criteria are given as criteria: functions of the token ids that return True to stop",
    "assistant_model": "selfspec drafts with the model itself, by its plan",
}
_HARMLESS = {"num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "batch_size": 1}


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to generate; what is None is the model's own.

    Attributes:
        max_new_tokens: Most tokens to generate.
        sampling: How tokens are chosen.
        stop: Strings that end the text, beside the model's own.
        criteria: Functions of all token ids that end the text when they return True.
        system: A system message, for prompts that have none.
        raw: Take text as it is, without the chat template.
        template_kwargs: Further variables of the chat template.
        skip_special_tokens: Whether markers such as ``<|im_end|>`` are left out of the text.
    """

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    sampling: SamplingChoice = field(default_factory=SamplingChoice)
    stop: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    system: str | None = None
    raw: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    skip_special_tokens: bool = True


@dataclass(frozen=True, kw_only=True)
class Request:
    """A generation that is ready to run.

    Attributes:
        prompt_ids: The prompt as the model gets it.
        settings: How to generate.
        notices: What was overridden or done otherwise than asked.
    """

    prompt_ids: tuple[int, ...]
    settings: GenerationSettings
    notices: tuple[str, ...] = ()


def make_request(
    prompt: PromptLike, options: GenerationOptions, loaded: LoadedModel, defaults: GenerationDefaults
) -> Request:
    """Renders the prompt and settles the options.

    Raises:
        UsageError: The prompt or an option cannot be used.
    """
    rendered = prompt_ids(
        prompt, loaded.tokenizer, system=options.system, raw=options.raw, template_kwargs=options.template_kwargs
    )
    for stop in options.stop:
        require_text(stop, f"The stop string {stop!r}")
    _require_known(rendered.token_ids, loaded)
    settings = GenerationSettings(
        max_new_tokens=options.max_new_tokens,
        sampling=options.sampling.over(defaults.sampling),
        eos_token_ids=defaults.eos_token_ids,
        stop=tuple(dict.fromkeys((*options.stop, *defaults.stop_strings))),
        criteria=options.criteria,
        processors=loaded.model.generation_config,
        skip_special_tokens=options.skip_special_tokens,
    )
    return Request(prompt_ids=rendered.token_ids, settings=settings, notices=rendered.notices)


def make_options(
    *,
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int = 0,
    mode: Literal["rejection", "match"] = "rejection",
    stop: str | Sequence[str] = (),
    criteria: Criterion | Sequence[Criterion] = (),
    system: str | None = None,
    raw: bool = False,
    skip_special_tokens: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
    **unsupported: object,
) -> GenerationOptions:
    """Gathers keyword arguments; `selfspec.SpeculativeModel.generate` says what each is.

    Raises:
        UsageError: One of them is an option that transformers' generate has and selfspec has not, or is misspelt.
    """
    for name, value in unsupported.items():
        _refuse(name, value)
    return GenerationOptions(
        max_new_tokens=max_new_tokens,
        sampling=SamplingChoice(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, mode=mode),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        criteria=(criteria,) if callable(criteria) else tuple(criteria),
        system=system,
        raw=raw,
        template_kwargs=template_kwargs or {},
        skip_special_tokens=skip_special_tokens,
    )


def _refuse(name: str, value: object) -> None:
    if value is None or (name in _HARMLESS and value == _HARMLESS[name]):
        return
    if name in _REFUSALS:
        message = f"{_REFUSALS[name]}. Leave {name} out."
        raise UsageError(message)
    known = [parameter for parameter in signature(make_options).parameters if parameter != "unsupported"]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(known)}."
    message = f"generate has no option {name!r}. {hint}"
    raise UsageError(message)


def _require_known(token_ids: tuple[int, ...], loaded: LoadedModel) -> None:
    rows = int(loaded.model.get_input_embeddings().weight.shape[0])
    unknown = next((token_id for token_id in token_ids if not 0 <= token_id < rows), None)
    if unknown is not None:
        message = (
            f"The prompt holds the token id {unknown}, and the model knows 0 to {rows - 1}. Is this its tokenizer?"
        )
        raise UsageError(message)
