"""What a person says about the model to load, before anything is read."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from selfspec_runtime.executors.executor import ExecutorName


class ModelSpec(BaseModel):
    """Which model to load, and how.

    Attributes:
        model: A folder in Hugging Face format, a ``.gguf`` file, or a hub id.
        revision: Branch, tag or commit, for a hub id.
        dtype: Number format of the weights; ``auto`` is the checkpoint's own where the device is fast in it.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``xpu``, ``mps``; ``auto`` is the first of cuda, xpu, mps, cpu.
        quantization: Quantise the linear weights while loading.
        adapter_path: Folder of a PEFT adapter to apply.
        attn_implementation: Name of a transformers attention function; None takes selfspec's own.
        trust_remote_code: Run Python code that comes with the checkpoint.
        pack: Repack the weights for fast decoding on a CPU; outputs are the same up to rounding.
        executor: What runs rounds: ``eager`` pass by pass, ``cuda_graph`` recorded; ``auto`` is what fits the device.
        gguf_file: Name of a GGUF file inside ``model``, where ``model`` is a folder or a hub id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: str = "auto"
    quantization: Literal["none", "bnb-4bit", "bnb-8bit"] = "none"
    adapter_path: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    pack: bool = True
    executor: ExecutorName = "auto"
    gguf_file: str | None = None
