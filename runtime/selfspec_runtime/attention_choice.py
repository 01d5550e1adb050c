"""Which attention function to load a model with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OWN_ATTENTION = "selfspec"


def attention_candidates(model_class: type[PreTrainedModel] | None, requested: str | None) -> tuple[str, ...]:
    """Names of attention implementations to try, the preferred one first.

    Args:
        model_class: The model's class, or None where it comes with the checkpoint as code.
        requested: What the user asked for; it is then the only candidate.
    """
    if requested is not None:
        _register(requested)
        return (requested,)
    if model_class is not None and model_class.is_backend_compatible() and _register(OWN_ATTENTION):
        return (OWN_ATTENTION, "sdpa", "eager")
    return ("eager",)


def _register(name: str) -> bool:
    """Makes selfspec's own attention known to transformers; whether it is there to be used."""
    if name != OWN_ATTENTION:
        return True
    try:
        module = importlib.import_module("selfspec_runtime.attention")
    except ModuleNotFoundError:
        return False
    module.register_attention()
    return True


def is_about_attention(error: Exception) -> bool:
    """Whether transformers refused the attention implementation, and not something else."""
    message = str(error).lower()
    return "attn_implementation" in message or "attention" in message
