"""Who decodes in ``selfspec bench``: plain decoding, the plan, and what transformers offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfspec.cli.console import Terminal
    from selfspec.cli.options import ModelOptions
    from selfspec.cli.shape_options import ShapeOptions
    from selfspec.model import SpeculativeModel
    from selfspec_calibrate.measurement import Arm
    from selfspec_calibrate.stock import StockVariant

ARM_NAMES = ("plan", "transformers", "prompt-lookup", "early-exit", "assistant")
SCRIPTED_ARM_NAMES = ("plan", "transformers")
"""What a scripted acceptance goes with: transformers cannot be told which of its own drafts stand."""
LOOKUP_TOKENS = 10
"""Draft tokens of transformers' prompt lookup, as its documentation suggests."""


def wanted_arms(against: str | None, assistant_model: str | None, shape: ShapeOptions) -> tuple[str, ...]:
    """Names of what plain decoding is compared with.

    Raises:
        UsageError: There is no such name, or an assistant without a model.
    """
    known = SCRIPTED_ARM_NAMES if shape.is_scripted else ARM_NAMES
    if against is None:
        return known
    names = tuple(name.strip() for name in against.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        message = f"--against knows {', '.join(known)}, not {(unknown or [against])[0]!r}."
        raise UsageError(message)
    if "assistant" in names and assistant_model is None:
        message = "--against assistant needs --assistant-model."
        raise UsageError(message)
    return names


def bench_arms(
    opened: SpeculativeModel,
    wanted: tuple[str, ...],
    assistant: PreTrainedModel | None,
    shape: ShapeOptions,
    terminal: Terminal,
) -> list[Arm]:
    """The arms, plain decoding first.

    Args:
        opened: Model and plan.
        wanted: Names, as `wanted_arms` gives them.
        assistant: The smaller model of transformers' assisted decoding, or None.
        shape: Whether the weights are made up.
        terminal: Where notices go.
    """
    from selfspec.benchmark import BASELINE
    from selfspec_calibrate.measurement import EngineArm
    from selfspec_calibrate.stock import StockArm

    arms: list[Arm] = [EngineArm(BASELINE, opened.plain_engine)]
    if "plan" in wanted and not opened.plan.is_plain:
        arms.append(EngineArm(f"plan: {opened.plan.describe()}", opened.engine))
    variants = _variants(opened, assistant)
    chosen = [variants[name] for name in variants if name in wanted]
    stock = _stock(opened, shape, terminal) if chosen else opened.model
    return [*arms, *(StockArm(stock, opened.tokenizer, variant, name) for name, variant in chosen)]


def load_assistant(name: str, model: ModelOptions) -> PreTrainedModel:
    """The smaller model, loaded as the large one is."""
    from selfspec_runtime.loading import load_model
    from selfspec_runtime.model_spec import ModelSpec

    spec = ModelSpec(model=name, dtype=model.dtype or "auto", device=model.device or "auto", pack=False)
    return load_model(spec).model


def _variants(opened: SpeculativeModel, assistant: PreTrainedModel | None) -> dict[str, tuple[str, StockVariant]]:
    """What transformers offers, by name: its title and its settings."""
    from selfspec_calibrate.stock import StockVariant

    exit_layer = getattr(opened.plan.source, "exit_layer", opened.engine.target.num_layers // 2)
    variants = {
        "transformers": ("transformers", StockVariant()),
        "prompt-lookup": ("transformers, prompt lookup", StockVariant(prompt_lookup_num_tokens=LOOKUP_TOKENS)),
        "early-exit": (f"transformers, exit at {exit_layer}", StockVariant(assistant_early_exit=exit_layer)),
    }
    if assistant is not None:
        variants["assistant"] = ("transformers, assistant", StockVariant(assistant_model=assistant))
    return variants


def _stock(opened: SpeculativeModel, shape: ShapeOptions, terminal: Terminal) -> PreTrainedModel:
    """The model without repacked weights."""
    from selfspec_calibrate.stock_model import stock_model

    if shape.random_weights:
        return shape.load(opened.loaded.spec.model_copy(update={"pack": False})).model
    model, notices = stock_model(opened.loaded)
    for notice in notices:
        terminal.notice(f"{notice}.")
    return model
