"""How bitsandbytes is to quantise a model's linear weights while they load, or run weights quantised before."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from selfspec_runtime.bitsandbytes_log import hush_missing_kernel
from selfspec_runtime.errors import UnsupportedModelError, UsageError
from selfspec_runtime.native.library import native_status

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel

    from selfspec_runtime.model_spec import ModelSpec

hush_missing_kernel()  # before anything imports bitsandbytes, transformers included

PACKED_ROWS = 32
PACKED_COLUMNS = 64


@dataclass(frozen=True)
class QuantizedLoading:
    """What to pass to ``from_pretrained`` so that weights load quantised.

    Attributes:
        config: The model's configuration, with the compute dtype set where it carries a quantisation of its own.
        quantization_config: Settings for quantising while loading, or None.
        name: ``none``, ``bnb-4bit``, ``bnb-8bit``, or the name of the checkpoint's own method.
        notices: What was decided, in sentences.
    """

    config: Any
    quantization_config: BitsAndBytesConfig | None = None
    name: str = "none"
    notices: tuple[str, ...] = field(default=())


def check_quantization(spec: ModelSpec, device: torch.device, *, stored: str | None, from_gguf: bool) -> None:
    """Refuses, before anything large is read, a quantisation that cannot work.

    Args:
        spec: What was asked for.
        device: Where the model is to run.
        stored: Name of the checkpoint's own quantisation, or None.
        from_gguf: Whether the weights come from a GGUF file.

    Raises:
        UsageError: With the remedy.
    """
    wanted = spec.quantization if spec.quantization != "none" else None
    used = wanted or stored
    if wanted is not None and stored not in (None, wanted):
        raise UsageError(f"The checkpoint is quantised already ({stored}). Leave out --quantization {wanted}.")
    if wanted is not None and from_gguf:
        message = f"A GGUF file cannot be loaded with --quantization {wanted}. Convert it to a folder first: "
        raise UsageError(message + "selfspec_runtime.demo_model.convert_gguf(gguf_file, folder).")
    if used in ("bnb-4bit", "bnb-8bit"):
        _check_bitsandbytes(used, device)


def _check_bitsandbytes(name: str, device: torch.device) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(f"{name} needs bitsandbytes, which is not installed: pip install 'bitsandbytes>=0.50'")
    if name == "bnb-8bit" and device.type != "cuda":
        message = f"bnb-8bit runs on CUDA only, and the device is {device}. Use bnb-4bit or no quantisation."
        raise UsageError(message)
    if device.type not in ("cpu", "cuda", "xpu"):
        raise UsageError(f"{name} does not run on {device}. Use --device cpu or no quantisation.")


def stored_quantization(config: Any) -> str | None:
    """Name of the quantisation that a checkpoint carries, or None."""
    settings = _stored_settings(config)
    if not settings:
        return None
    if settings.get("load_in_4bit"):
        return "bnb-4bit"
    return "bnb-8bit" if settings.get("load_in_8bit") else str(settings.get("quant_method") or "unknown")


def quantized_loading(
    spec: ModelSpec, config: Any, model_class: type[PreTrainedModel] | None, *, device: torch.device, dtype: torch.dtype
) -> QuantizedLoading:
    """Decides how weights are quantised while loading.

    Args:
        spec: What was asked for.
        config: The model's configuration; never changed, a copy is returned where it must differ.
        model_class: The model's class, or None where it comes with the checkpoint as code.
        device: Where the model is to run.
        dtype: Dtype of what is not quantised, and of the products.

    Raises:
        UnsupportedModelError: The checkpoint is quantised to 4 bits in shapes that this CPU cannot run.
    """
    stored = stored_quantization(config)
    if stored is not None and stored != "bnb-4bit":
        return QuantizedLoading(config, name=stored)
    if stored is None and spec.quantization == "none":
        return QuantizedLoading(config)
    if stored is None and spec.quantization == "bnb-8bit":
        from transformers import BitsAndBytesConfig

        return QuantizedLoading(config, BitsAndBytesConfig(load_in_8bit=True), "bnb-8bit")
    notices = () if _runs_natively(spec, device) else _slow_notices(device, dtype)
    if stored is not None:
        _require_packable(config, model_class, device)
        return QuantizedLoading(_with_compute_dtype(config, dtype), name=stored, notices=notices)
    return _four_bit(config, model_class, device=device, dtype=dtype, notices=notices)


def _runs_natively(spec: ModelSpec, device: torch.device) -> bool:
    """Whether the own kernels take the weights over once they are loaded."""
    return spec.pack and device.type == "cpu" and native_status().kernels is not None


def _require_packable(config: Any, model_class: type[PreTrainedModel] | None, device: torch.device) -> None:
    if not packs_weights(device):
        return
    kept_whole = _stored_settings(config).get("llm_int8_skip_modules") or []
    _, unfit = unpackable_modules(config, model_class)
    quantized = [name for name in unfit if not any(kept in name for kept in kept_whole)]
    if quantized:
        message = (
            f"bitsandbytes cannot run {quantized[0]} in 4 bits on this CPU: its shape is not a multiple of "
            f"{PACKED_ROWS} x {PACKED_COLUMNS}. Load the unquantised checkpoint."
        )
        raise UnsupportedModelError(message)


def _four_bit(
    config: Any,
    model_class: type[PreTrainedModel] | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    notices: tuple[str, ...],
) -> QuantizedLoading:
    from transformers import BitsAndBytesConfig

    whole, unfit = unpackable_modules(config, model_class) if packs_weights(device) else ([], [])
    if unfit:
        shapes = f"shapes that are not multiples of {PACKED_ROWS} x {PACKED_COLUMNS}"
        notices += (f"{len(unfit)} linear weights stay unquantised: bitsandbytes cannot pack {shapes} on this CPU",)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=False,
        llm_int8_skip_modules=[*whole, *unfit] if unfit else None,
    )
    return QuantizedLoading(config, settings, "bnb-4bit", notices)


def packs_weights(device: torch.device) -> bool:
    """Whether bitsandbytes repacks 4-bit weights at the first pass, which it can for some shapes only."""
    if device.type != "cpu":
        return False
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())


def unpackable_modules(config: Any, model_class: type[PreTrainedModel] | None) -> tuple[list[str], list[str]]:
    """Names of the output head, and of linear modules whose shape the CPU kernel cannot pack."""
    if model_class is None:
        return [], []
    with torch.device("meta"):
        model = model_class(copy.deepcopy(config))
    head = model.get_output_embeddings()
    shapes = {name: _linear_shape(m) for name, m in model.named_modules() if m is not head}
    unfit = [name for name, shape in shapes.items() if shape is not None and not _packs(*shape)]
    return [name for name, m in model.named_modules() if m is head], unfit


def _linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """Rows and columns of a linear module; GPT-2's Conv1D stores them the other way round."""
    if type(module) is nn.Linear:
        return module.out_features, module.in_features
    if type(module).__name__ == "Conv1D":
        weight = module.get_parameter("weight")
        return weight.shape[1], weight.shape[0]
    return None


def _packs(rows: int, columns: int) -> bool:
    return rows % PACKED_ROWS == 0 and columns % PACKED_COLUMNS == 0


def _slow_notices(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    if device.type == "cpu" and (not packs_weights(device) or dtype != torch.bfloat16):
        return ("4-bit weights are unpacked whole at every pass here: slower than no quantisation, not faster",)
    return ("4-bit products run in float32 here, which is slow",) if dtype == torch.float32 else ()


def _with_compute_dtype(config: Any, dtype: torch.dtype) -> Any:
    """A copy whose products are not left in float32, bitsandbytes' slow default."""
    changed = copy.deepcopy(config)
    changed.quantization_config = {**_stored_settings(config), "bnb_4bit_compute_dtype": str(dtype).split(".")[-1]}
    return changed


def _stored_settings(config: Any) -> dict[str, Any]:
    settings = getattr(config, "quantization_config", None) or {}
    return dict(settings if isinstance(settings, dict) else settings.to_dict())
