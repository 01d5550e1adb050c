"""Applies a PEFT adapter to a loaded model."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec_runtime.checkpoint_config import first_line
from selfspec_runtime.errors import ModelError, UnsupportedModelError
from selfspec_runtime.model_place import adapter_base, similar_folders

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Adapter:
    """A PEFT adapter's files, checked.

    Attributes:
        folder: Where they are.
        base: Name of the model that the adapter was trained on, or None where it does not say.
        has_tokenizer: Whether a tokenizer lies beside the adapter, as trainers write it.
    """

    folder: Path
    base: str | None
    has_tokenizer: bool


def find_adapter(adapter_path: str) -> Adapter:
    """Checks, before the base model is read, that an adapter can be applied.

    Raises:
        ModelError: The folder is not an adapter, or peft is not installed.
        UnsupportedModelError: The adapter adds virtual tokens instead of changing weights.
    """
    folder = Path(adapter_path).expanduser()
    if not (folder / "adapter_config.json").is_file():
        similar = similar_folders(folder)
        hint = f" Did you mean {folder.parent / similar[0]}?" if similar and not folder.exists() else ""
        raise ModelError(f"{folder} is not a PEFT adapter: there is no adapter_config.json in it.{hint}")
    if importlib.util.find_spec("peft") is None:
        message = "--adapter-path needs peft, which is not installed: pip install 'selfspec[peft]'"
        raise ModelError(message)
    folder = folder.resolve()
    _require_weight_adapter(folder)
    return Adapter(folder, adapter_base(folder), (folder / "tokenizer_config.json").is_file())


def _require_weight_adapter(folder: Path) -> None:
    from peft import PeftConfig

    try:
        settings = PeftConfig.from_pretrained(str(folder))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"peft cannot read {folder / 'adapter_config.json'}: {error}") from error
    if settings.peft_type is None:
        raise ModelError(f"{folder / 'adapter_config.json'} does not say which kind of adapter it is.")
    if settings.is_prompt_learning:
        kind = getattr(settings.peft_type, "value", settings.peft_type)
        message = (
            f"{folder} is a {kind} adapter. selfspec applies adapters that change weights (such as LoRA), not "
            "ones that add virtual tokens."
        )
        raise UnsupportedModelError(message)


def apply_adapter(model: PreTrainedModel, adapter: Adapter, *, merge: bool) -> PreTrainedModel:
    """Applies an adapter to a model that was loaded for this purpose.

    Args:
        model: The base model; it must not be used afterwards otherwise than through the result.
        adapter: A checked adapter.
        merge: Add the adapter to the weights, which costs nothing per token; quantised weights cannot take it.

    Returns:
        The model with the adapter, of the same class.

    Raises:
        ModelError: The adapter does not fit the model.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            if merge:
                peft_model: Any = PeftModel.from_pretrained(model, str(adapter.folder))
                merged: PreTrainedModel = peft_model.merge_and_unload(safe_merge=True)
                return merged
            model.load_adapter(str(adapter.folder))
            return model
    except (ValueError, RuntimeError, KeyError, UserWarning, OSError) as error:
        base = f" It was trained on {adapter.base}." if adapter.base else ""
        message = f"The adapter {adapter.folder} does not fit {type(model).__name__}: {first_line(str(error))}{base}"
        raise ModelError(message) from error
