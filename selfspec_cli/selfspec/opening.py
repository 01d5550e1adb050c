"""Opens a model with its plan: from a calibration file, from a model's name, or around a model already loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfspec.loading_options import loading_changes, refuse_unknown
from selfspec.model import SpeculativeModel
from selfspec.recorded_model import recorded_model, require_recorded
from selfspec_runtime.calibration_store import LoadedCalibration, check_fingerprint, load_calibration
from selfspec_runtime.errors import UsageError
from selfspec_runtime.exactness import require_exact
from selfspec_runtime.families import check_family
from selfspec_runtime.loading import LoadedModel, load_model
from selfspec_runtime.memory import choose_step, parse_memory
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.precision import choose_device
from selfspec_runtime.quantized_loading import stored_quantization

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec_runtime.executors.executor import ExecutorName

CALIBRATION_NAME = "selfspec.json"
"""A calibration file of this name in a model's folder is found without being asked for."""

PlanLike = DraftPlan | Mapping[str, Any] | str | Path
"""A plan, the same as plain data, or the path of a calibration file."""


@dataclass(frozen=True, kw_only=True)
class ChosenPlan:
    """A plan and where it comes from.

    Attributes:
        plan: What drafts.
        arrays: Fitted arrays that it may name.
        stored: The calibration file, or None.
        notices: Why it is not what the file's best would be.
    """

    plan: DraftPlan = PLAIN
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    stored: LoadedCalibration | None = None
    notices: tuple[str, ...] = ()


def load(
    source: str | Path | ModelSpec | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    plan: PlanLike | None = None,
    max_extra_memory: str | int | None = None,
    device: str | None = None,
    executor: ExecutorName | None = None,
    dtype: str | torch.dtype | None = None,
    quantization: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool | None = None,
    force: bool = False,
    exact: bool = False,
    **unsupported: object,
) -> SpeculativeModel:
    """Opens a model with its plan.

    Args:
        source: A calibration file (``best.json``), a model's folder or hub id, a `ModelSpec`, or a model that is
            loaded already. A model's folder may hold a calibration of its own, ``selfspec.json``.
        tokenizer: The tokenizer of a model that is loaded already.
        plan: What drafts, in place of the file's; or a calibration file for a model given otherwise.
        max_extra_memory: Memory that the plan may hold beyond the model, such as ``"500MB"`` or ``"30%"``; by
            default what was allowed at calibration.
        device: Where to run; by default where the model was calibrated, or the fastest there is.
        executor: What runs rounds: ``eager`` pass by pass, ``cuda_graph`` recorded; by default what fits the device.
        dtype: Number format of the weights: ``"auto"``, ``"float32"``, ``"float16"`` or ``"bfloat16"``, or torch's own;
            by default the calibration's, or what suits checkpoint and device.
        quantization: ``"bnb-4bit"``, ``"bnb-8bit"`` or ``"none"``: how the weights are quantised while loading.
        revision: Branch, tag or commit, for a hub id.
        trust_remote_code: Run Python code that comes with the checkpoint.
        force: Use a plan that was made for other weights of the same architecture.
        exact: Refuse unless a verification has the very bits of single steps here, whatever the dtype.
        **unsupported: Any other option, refused with what to do instead; a `ModelSpec` takes the rarer ones.

    Returns:
        The model, ready to generate.

    Raises:
        UsageError: The request, the plan or the calibration file cannot be used.
        ModelError: There is no such model, or it cannot be decoded losslessly.
    """
    refuse_unknown(unsupported)
    limit = None if max_extra_memory is None else str(max_extra_memory)
    how = loading_changes(
        device=device,
        executor=executor,
        dtype=dtype,
        quantization=quantization,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    if not isinstance(source, str | Path | ModelSpec):
        return open_model(_around(source, tokenizer, how), choose_plan(plan, limit=limit), force=force, exact=exact)
    if tokenizer is not None:
        message = "A tokenizer is only given together with a model that is loaded already. Leave it out."
        raise UsageError(message)
    file = calibration_of(source)
    chosen = choose_plan(plan, file=file, limit=limit)
    spec = model_spec_of(source, chosen.stored, device=device).model_copy(update=how)
    require_recorded(spec, chosen.stored)
    return open_model(load_model(spec), chosen, force=force, exact=exact)


def calibration_of(source: str | Path | ModelSpec) -> Path | None:
    """The calibration file that a source is or holds, or None."""
    path = Path(source.model if isinstance(source, ModelSpec) else source).expanduser()
    if path.suffix == ".json" and not path.is_dir():
        return path
    inside = path / CALIBRATION_NAME
    return inside if inside.is_file() else None


def choose_plan(plan: PlanLike | None, *, file: Path | None = None, limit: str | None = None) -> ChosenPlan:
    """Settles what drafts.

    Args:
        plan: Given explicitly, or None.
        file: A calibration file, or None; an explicit plan is used in place of the file's.
        limit: Extra memory allowed, or None for what was allowed at calibration.
    """
    if isinstance(plan, str | Path):
        file, plan = Path(plan), None
    stored = None if file is None else load_calibration(file)
    arrays = {} if stored is None else stored.arrays
    if plan is not None:
        given = plan if isinstance(plan, DraftPlan) else plan_from(plan)
        return ChosenPlan(plan=given, arrays=arrays, stored=stored)
    if stored is None:
        return ChosenPlan()
    steps, chosen = stored.calibration.steps, stored.calibration.chosen
    step = steps[chosen if limit is None else choose_step(steps, parse_memory(limit))]
    if step.enabled:
        return ChosenPlan(plan=step.plan, arrays=arrays, stored=stored)
    return ChosenPlan(arrays=arrays, stored=stored, notices=(f"Decoding without a draft: {step.reason}",))


def plan_from(data: Mapping[str, Any]) -> DraftPlan:
    """Reads a plan given as plain data.

    Raises:
        UsageError: It is not a plan.
    """
    from pydantic import ValidationError

    try:
        return DraftPlan.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"The plan is not one: {place}: {first['msg']}. See help(selfspec.DraftPlan)."
        raise UsageError(message) from error


def model_spec_of(
    source: str | Path | ModelSpec, stored: LoadedCalibration | None, *, device: str | None = None
) -> ModelSpec:
    """What to load: as it was named, and for the rest as the calibration file was made.

    Args:
        source: A calibration file, a model's name, or a whole specification, which stands as it is.
        stored: The calibration file, or None.
        device: Where to run, or None for where the file was made.
    """
    changes = {} if device is None else {"device": device}
    if isinstance(source, ModelSpec):
        return source.model_copy(update=changes)
    if stored is None:
        return ModelSpec(model=str(source), **changes)
    spec = stored.calibration.model
    if Path(source).expanduser() == stored.path:
        named: dict[str, str | None] = {"model": recorded_model(stored)}
    else:
        named = {"model": str(source), "revision": None, "gguf_file": None}
    return spec.model_copy(update={**named, "device": _device(spec), **changes})


def open_model(
    loaded: LoadedModel, chosen: ChosenPlan, *, force: bool = False, exact: bool = False
) -> SpeculativeModel:
    """Puts a loaded model and a plan together, if the plan is for this model; ``exact`` as in :func:`load`."""
    notices = (*loaded.notices, *chosen.notices)
    calibration = None if chosen.stored is None else chosen.stored.calibration
    if calibration is not None:
        notices += check_fingerprint(calibration, loaded, force=force)
    opened = SpeculativeModel(loaded, chosen.plan, arrays=chosen.arrays, calibration=calibration, notices=notices)
    if exact:
        require_exact(opened.engine)
    return opened


def _remedy(name: str) -> str:
    if name == "device":
        return "Move it with model.to(device), and leave device out."
    return f"Leave {name} out, or give the model's name in the place of the model."


def _around(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, how: Mapping[str, Any]) -> LoadedModel:
    if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
        message = (
            f"A {type(model).__name__} is no transformers model. Pass a calibration file, a model's name or a model."
        )
        raise UsageError(message)
    if tokenizer is None:
        message = "A loaded model needs its tokenizer: selfspec.load(model, tokenizer)."
        raise UsageError(message)
    said = next((name for name in how if name != "executor"), None)
    if said is not None:
        message = f"A loaded model stays as it is: {said} is chosen when it is loaded. {_remedy(said)}"
        raise UsageError(message)
    if model.training:
        message = "The model is in training mode, where dropout changes what it says. Call model.eval() first."
        raise UsageError(message)
    check_family(model.config)
    stored = stored_quantization(model.config)
    quantization = stored if stored in ("bnb-4bit", "bnb-8bit") else "none"
    named = {"model": str(model.config._name_or_path or "model"), "quantization": quantization}
    spec = ModelSpec.model_validate(named).model_copy(update=how)
    return LoadedModel(model, tokenizer, spec)


def _device(spec: ModelSpec) -> str:
    try:
        choose_device(spec.device)
    except UsageError:
        return "auto"
    return spec.device
