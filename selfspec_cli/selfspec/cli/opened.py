"""Opens the model that a command line names, with the plan that it names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from selfspec.opening import ChosenPlan, choose_plan, model_spec_of, open_model
from selfspec.recorded_model import require_recorded
from selfspec_runtime.errors import UsageError
from selfspec_runtime.loading import load_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec.cli.console import Terminal
    from selfspec.cli.options import ModelOptions
    from selfspec.cli.plan_options import PlanOptions
    from selfspec.model import SpeculativeModel
    from selfspec_runtime.loading import LoadedModel
    from selfspec_runtime.model_spec import ModelSpec


def open_named(
    model: ModelOptions,
    plan: PlanOptions,
    terminal: Terminal,
    *,
    load: Callable[[ModelSpec], LoadedModel] = load_model,
) -> SpeculativeModel:
    """Opens a model for a command.

    Args:
        model: Which model.
        plan: Which calibration file or plan.
        terminal: Where notices go.
        load: Makes the model of its specification; loads it by default.

    Raises:
        SelfspecError: Model, file or plan cannot be used.
    """
    chosen = chosen_plan(model, plan)
    stored = chosen.stored
    spec = model.over(None if stored is None else model_spec_of(stored.path, stored))
    require_recorded(spec, stored)
    opened = open_model(load(spec), chosen, force=plan.force, exact=plan.exact)
    for notice in (*opened.notices, *opened.defaults.notices):
        terminal.notice(notice)
    terminal.notice(f"{spec.model}: {opened.plan.describe()}")
    return opened


def chosen_plan(model: ModelOptions, plan: PlanOptions) -> ChosenPlan:
    """The plan, before any weight is read."""
    file = plan.file(model.model)
    if file is None and (plan.max_extra_memory is not None or plan.force):
        option = "--force" if plan.force else "--max-extra-memory"
        message = f"{option} chooses within a calibration file, and none is named. Pass one, or leave it out."
        raise UsageError(message)
    chosen = choose_plan(None, file=file, limit=plan.max_extra_memory)
    explicit = plan.plan(chosen.plan)
    return chosen if explicit is None else replace(chosen, plan=explicit, notices=())
