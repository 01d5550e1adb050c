"""The rows of the table: which model, in which format, and what drafts for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.support.planted_folders import save, write_prompts
from tests.support.saved_models import save_model
from tests.support.tiny_models import build_model, hopeless, planted, prompt_ids, tiny_config

from selfspec_calibrate.interleave import shuffled
from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.prompts.split import split_held_out
from selfspec_calibrate.prompts.template import render
from selfspec_runtime.calibration_store import load_calibration
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.draft_head import RANKS_NAME
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.loading import LoadedModel, load_model
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.random_weights import random_model

if TYPE_CHECKING:
    from benchmarks.scale import Scale
    from torch import Tensor

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
DEMO_PROMPTS = ROOT / "recipes" / "demo" / "prompts.jsonl"
BEST = ROOT / "demo" / "best.json"
NGRAM_PLAN = DraftPlan.model_validate(
    {
        "source": {"kind": "ngram", "max_match": 4, "min_match": 1},
        "controller": {"kind": "fixed", "num_draft_tokens": 7},
    }
)
PLANTED_EXIT = 6
PLANTED_DRAFTS, LARGE_DRAFTS = 5, 4
LARGE_ACCEPTANCE = 0.9
LARGE_PROMPT = 32


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, its files on disk, nothing loaded.

    Attributes:
        title: For people.
        spec: What to load.
        plan: What drafts.
        plan_name: What the plan is called.
        arrays: What the plan may need.
        exit_layer: Layer of transformers' early exit, or None where the weights mean nothing.
        has_gguf: Whether llama.cpp has this model.
        acceptance: The scripted acceptance, or None for decoding.
        prompts: Prompt file, or None for random ids.
        is_searched: Whether the plan was chosen on the search half of the file, as `make demo` does; the held-out half
            is decoded then.
        num_prompts: Prompts to decode.
        tokens: New tokens a run.
    """

    title: str
    spec: ModelSpec
    plan: DraftPlan
    plan_name: str
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    exit_layer: int | None = None
    has_gguf: bool = False
    acceptance: float | None = None
    prompts: Path | None = None
    is_searched: bool = False
    num_prompts: int
    tokens: int

    def load(self, *, packed: bool) -> LoadedModel:
        """The model as selfspec decodes it, or as transformers has it, with its fastest stock attention."""
        changes = {"pack": packed} if packed else {"pack": False, "attn_implementation": "sdpa"}
        load = load_model if self.acceptance is None else random_model
        return load(self.spec.model_copy(update=changes))

    def measured_prompts(self, loaded: LoadedModel) -> list[MeasuredPrompt]:
        """Prompts of all kinds in turn, or random ids."""
        if self.prompts is None:
            size = int(loaded.model.config.vocab_size)
            ids = (prompt_ids(LARGE_PROMPT, seed=seed, vocab_size=size) for seed in range(self.num_prompts))
            return [MeasuredPrompt(f"random-{number}", "random", tuple(each)) for number, each in enumerate(ids)]
        found = list(read_prompts(self.prompts).prompts)
        if self.is_searched:
            found = split_held_out(found)[1]
        rendered = [MeasuredPrompt(each.id, each.kind, render(each, loaded.tokenizer).token_ids) for each in found]
        return shuffled(rendered, seed=0)[: self.num_prompts]


def demo_row(dtype: str, quantization: str) -> Callable[[Path, Scale], Row]:
    """The demo model in one format."""

    def row(work: Path, scale: Scale) -> Row:
        folder = _once(work / "tiny", _save_tiny) if scale.is_quick else DEMO_MODEL
        plan, name, arrays = best_plan()
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        four_bit = quantization != "none"
        return Row(
            title=f"{'tiny' if scale.is_quick else 'SmolLM2-135M'}, {'NF4' if four_bit else dtype}",
            spec=ModelSpec.model_validate({"model": str(folder), "dtype": dtype, "quantization": quantization}),
            plan=plan,
            plan_name=name,
            arrays=arrays,
            exit_layer=shape["num_hidden_layers"] * 4 // 5,
            has_gguf=not scale.is_quick,
            prompts=folder / "prompts.jsonl" if scale.is_quick else DEMO_PROMPTS,
            is_searched=not scale.is_quick,
            num_prompts=scale.prompts,
            tokens=scale.tokens,
        )

    return row


def planted_row(work: Path, scale: Scale) -> Row:
    """Layers of which the last ones change nothing: an exit that equals the model."""
    folder = _once(work / "planted", lambda path: _save_planted(path, scale.planted))
    source = EarlyExitSpec(exit_layer=PLANTED_EXIT)
    shape = f"{scale.planted['num_hidden_layers']} layers of {scale.planted['hidden_size']}"
    return Row(
        title=f"planted, {shape}, bfloat16",
        spec=ModelSpec(model=str(folder), dtype="bfloat16"),
        plan=DraftPlan(source=source, controller=FixedSpec(num_draft_tokens=PLANTED_DRAFTS)),
        plan_name="",
        exit_layer=PLANTED_EXIT,
        prompts=folder / "prompts.jsonl",
        num_prompts=scale.prompts,
        tokens=scale.tokens,
    )


def large_row(work: Path, scale: Scale) -> Row:
    """A 1.5B shape with random weights and an NF4 copy of itself as its draft; acceptance is scripted."""
    folder = _once(work / "large", lambda path: tiny_config("qwen2", **_large_values(scale)).save_pretrained(path))
    source = QuantizedSpec(quantize_head=True, vocab_size=scale.reduced_vocabulary)
    return Row(
        title=f"{'tiny' if scale.is_quick else '1.5B'} shape, bfloat16, random weights",
        spec=ModelSpec(model=str(folder), dtype="bfloat16"),
        plan=DraftPlan(source=source, controller=FixedSpec(num_draft_tokens=LARGE_DRAFTS)),
        plan_name=f"synthetic acceptance {LARGE_ACCEPTANCE}",
        arrays={RANKS_NAME: torch.arange(scale.large["vocab_size"], dtype=torch.int32)},
        acceptance=LARGE_ACCEPTANCE,
        num_prompts=scale.large_prompts,
        tokens=scale.large_tokens,
    )


ROWS: dict[str, Callable[[Path, Scale], Row]] = {
    "demo-float32": demo_row("float32", "none"),
    "demo-bfloat16": demo_row("bfloat16", "none"),
    "demo-4bit": demo_row("bfloat16", "bnb-4bit"),
    "planted": planted_row,
    "large": large_row,
}
"""Rows by name: each makes its files in a folder, once, and says what is in them."""


def best_plan() -> tuple[DraftPlan, str, Mapping[str, Tensor]]:
    """The demo's calibrated plan, or, where nothing was calibrated, lookups."""
    if not BEST.is_file():
        return NGRAM_PLAN, "not calibrated here", {}
    stored = load_calibration(BEST)
    step = stored.calibration.steps[stored.calibration.chosen]
    return step.plan, f"calibrated in {stored.calibration.model.dtype}", stored.arrays


def _once(folder: Path, make: Callable[[Path], object]) -> Path:
    if not (folder / "config.json").is_file():
        make(folder)
    return folder


def _save_tiny(folder: Path) -> None:
    save_model(folder, "llama", intermediate_size=128, num_hidden_layers=4)
    write_prompts(folder / "prompts.jsonl", count=4, length=12)


def _save_planted(folder: Path, shape: Mapping[str, Any]) -> None:
    model = build_model(tiny_config("llama", **shape), attention="sdpa")
    save(planted(hopeless(model), exit_layer=PLANTED_EXIT), folder)


def _large_values(scale: Scale) -> dict[str, Any]:
    width = scale.large["hidden_size"] // scale.large["num_attention_heads"]
    return {**scale.large, "head_dim": width, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
