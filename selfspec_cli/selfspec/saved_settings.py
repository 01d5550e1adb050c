"""Generation options as plain data: what ``/set`` changes and what a saved conversation holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from selfspec.request import DEFAULT_MAX_NEW_TOKENS, GenerationOptions
from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling_choice import SamplingChoice


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _require_text(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        kind, message = "stop", "an empty string would end every reply at once; stop=[] takes all stop strings away"
        raise PydanticCustomError(kind, message)
    return stops


class SavedSettings(BaseModel):
    """The options that can be written down.

    Attributes:
        max_new_tokens: Most tokens per reply.
        stop: Strings that end a reply.
        temperature: 0 is greedy; None for the model's own.
        top_k: Only the k likeliest tokens; 0 for all.
        top_p: Smallest set of likeliest tokens that holds this much probability.
        min_p: Only tokens at least this likely relative to the likeliest one.
        seed: Same seed, same text.
        mode: ``rejection`` or ``match``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_list), AfterValidator(_require_text)] = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    mode: Literal["rejection", "match"] = "rejection"


def settings_of(options: GenerationOptions) -> dict[str, Any]:
    """The options that can be written down, as JSON values."""
    settings = SavedSettings(max_new_tokens=options.max_new_tokens, stop=options.stop, **asdict(options.sampling))
    return settings.model_dump(mode="json")


def with_settings(options: GenerationOptions, changes: Mapping[str, Any]) -> GenerationOptions:
    """Changes options by name.

    Args:
        options: The options as they are.
        changes: New values, by the names of `SavedSettings`.

    Raises:
        UsageError: There is no such setting, or not with such a value.
    """
    try:
        saved = SavedSettings.model_validate(settings_of(options) | dict(changes))
    except ValidationError as error:
        raise UsageError(_fault(error)) from error
    sampling = SamplingChoice(**saved.model_dump(exclude={"max_new_tokens", "stop"}))
    return replace(options, max_new_tokens=saved.max_new_tokens, stop=saved.stop, sampling=sampling)


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return f"There is no setting {name!r}: the settings are {', '.join(SavedSettings.model_fields)}."
    return f"The setting {name} cannot be {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}."
