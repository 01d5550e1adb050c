"""Whether weight files fit the model that a configuration describes, and where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.checkpoint_config import first_line, setting_of
from selfspec_runtime.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from selfspec_runtime.preflight import Preflight

_MAX_NAMES = 3


def require_fitting(ready: Preflight, info: dict[str, Any]) -> None:
    """Refuses a model some of whose weights would be random: it would talk nonsense without an error.

    Args:
        ready: The model.
        info: What transformers says of the loading.

    Raises:
        ModelError: The files lack weights, or hold them in another shape.
    """
    mismatched = sorted(info.get("mismatched_keys") or ())
    if mismatched:
        raise ModelError(_other_shapes(ready, mismatched))
    missing = sorted(info["missing_keys"])
    if missing:
        message = (
            f"The weight files of {ready.place.name} lack {len(missing)} weights of {ready.architecture} "
            f"({_listed(missing)}). Is this a base model without its head, or another kind of model?"
        )
        raise ModelError(message)


def unused_notice(ready: Preflight, info: dict[str, Any]) -> tuple[str, ...]:
    """Says that the files hold more than the configuration describes."""
    unused = sorted(info.get("unexpected_keys") or ())
    if not unused:
        return ()
    held = f"The weight files hold {len(unused)} weights that {ready.architecture} does not use ({_listed(unused)})"
    return (f"{held}: see whether config.json, with {ready.num_hidden_layers} layers, belongs to them",)


def load_fault(ready: Preflight, error: Exception) -> str:
    """Why weights could not be loaded; of a value that transformers does not know, the setting that it is of."""
    if not isinstance(error, KeyError) or not error.args:
        return first_line(str(error))
    value = error.args[0]
    setting = setting_of(ready.config, value)
    if setting is None:
        return first_line(str(value))
    return f"{setting} in config.json is {value!r}, which transformers does not know for {ready.architecture}."


def _other_shapes(ready: Preflight, mismatched: list[tuple[str, Iterable[int], Iterable[int]]]) -> str:
    name, stored, expected = mismatched[0]
    others = len(mismatched) - 1
    more = f" {others} more weight{'s do' if others > 1 else ' does'} not fit." if others else ""
    return (
        f"The weights of {ready.place.name} do not fit its config.json: {name} has the shape {list(stored)} in the "
        f"file, and {list(expected)} by the config.{more} Use the config.json that the weights were saved with."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
