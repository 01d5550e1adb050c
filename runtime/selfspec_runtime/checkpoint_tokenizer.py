"""Loads the tokenizer that belongs to a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.checkpoint_config import FETCH_ERRORS, fetch_arguments, first_line
from selfspec_runtime.errors import ModelError
from selfspec_runtime.families import text_config
from selfspec_runtime.gguf_tokenizer import restore_pre_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from selfspec_runtime.adapter import Adapter
    from selfspec_runtime.model_place import ModelPlace
    from selfspec_runtime.model_spec import ModelSpec


def load_tokenizer(
    spec: ModelSpec, place: ModelPlace, adapter: Adapter | None, config: Any
) -> tuple[PreTrainedTokenizerBase, tuple[str, ...]]:
    """The tokenizer of a model, or of its adapter where one lies beside that, and notices about it.

    Raises:
        ModelError: There is none, or it cannot be loaded.
    """
    notices: tuple[str, ...] = ()
    if adapter is not None and adapter.has_tokenizer:
        tokenizer = _from_pretrained(str(adapter.folder), {"trust_remote_code": spec.trust_remote_code})
        notices = ("The tokenizer is the one that lies beside the adapter",)
    else:
        tokenizer = _from_pretrained(place.name, fetch_arguments(spec, place))
        if place.folder is not None and place.gguf_file is not None:
            restore_pre_tokenizer(tokenizer, place.folder / place.gguf_file)
    rows = int(text_config(config).vocab_size)
    if len(tokenizer) > rows:
        notices += (f"The tokenizer has {len(tokenizer)} tokens and the model {rows} embeddings",)
    return tokenizer, notices


def _from_pretrained(name: str, arguments: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **arguments)
    except FETCH_ERRORS as error:
        message = f"The tokenizer in {name} cannot be loaded: {first_line(str(error))}"
        raise ModelError(f"{message} Copy the base model's tokenizer files (tokenizer.json, ...) there.") from error
    if len(tokenizer) == 0:
        raise ModelError(f"The tokenizer in {name} has no tokens. Copy the base model's tokenizer files there.")
    return tokenizer
