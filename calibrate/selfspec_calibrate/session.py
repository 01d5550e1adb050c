"""Everything that the phases of one calibration share: model, prompts, settings of the measured runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from selfspec_calibrate.folded_engine import FoldedEngine
from selfspec_calibrate.plan_parts import array_names
from selfspec_calibrate.prompt_set import PromptSet, load_prompt_set
from selfspec_runtime.engine import Engine
from selfspec_runtime.fingerprint import ModelFingerprint, fingerprint
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.generation_defaults import GenerationDefaults, resolve_generation_defaults
from selfspec_runtime.loading import LoadedModel, load_model
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.probe import probe
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sampling_choice import SamplingChoice
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from selfspec_calibrate.measurement import PlanEngine
    from selfspec_calibrate.settings import CalibrationSettings

#: Positions kept free for a generation before its length is known.
RESERVED_POSITIONS = 48


@dataclass
class Session:
    """A loaded model with its prompts.

    Attributes:
        settings: What the user asked for.
        loaded: Model and tokenizer.
        target: The model as the runtime sees it.
        fingerprint: What the model is.
        defaults: What its generation config asks for.
        prompts: Search and held-out prompts.
        generation: How measured runs generate.
        notices: What the user should know, one sentence each.
        arrays: Fitted arrays that plans may name; filled in by the exit-head phase.
        fold_arrays: The same, and each fold's, fitted on the other folds of the search prompts.
        fold_of: The fold of each search prompt, by its token ids.
    """

    settings: CalibrationSettings
    loaded: LoadedModel
    target: Target
    fingerprint: ModelFingerprint
    defaults: GenerationDefaults
    prompts: PromptSet
    generation: GenerationSettings
    notices: tuple[str, ...]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    fold_arrays: dict[str, Tensor] = field(default_factory=dict)
    fold_of: dict[tuple[int, ...], int] = field(default_factory=dict)

    def engine(self, plan: DraftPlan = PLAIN) -> Engine:
        """An engine for a plan, on the shared target."""
        return self._engine(plan, self.arrays)

    def search_engine(self, plan: DraftPlan = PLAIN) -> PlanEngine:
        """The same for search prompts: each is decoded with arrays that were fitted on others."""
        if not array_names(plan):
            return self.engine(plan)
        return FoldedEngine(partial(self._engine, plan), self.fold_arrays, self.fold_of)

    def _engine(self, plan: DraftPlan, arrays: Mapping[str, Tensor]) -> Engine:
        return Engine(self.target, self.loaded.tokenizer, plan, arrays, self.settings.model.executor)

    def generation_at(self, temperature: float) -> GenerationSettings:
        """The measured runs' settings at another temperature."""
        return replace(self.generation, sampling=replace(self.generation.sampling, temperature=temperature))

    @property
    def verdict_generations(self) -> tuple[GenerationSettings, ...]:
        """What the verdict is measured at: the session's own settings, and each further temperature once."""
        own = self.generation.sampling.temperature
        further = (other for other in self.settings.also_temperatures if other != own)
        return (self.generation, *(self.generation_at(other) for other in further))


def open_session(settings: CalibrationSettings) -> Session:
    """Loads and probes the model, and reads the prompts.

    Raises:
        SelfspecError: The model or the prompts cannot be used; the message says why and what to do.
    """
    loaded = load_model(settings.model)
    target = Target(loaded.model)
    probe(target)
    defaults = resolve_generation_defaults(loaded.model, loaded.tokenizer)
    reserve = settings.max_new_tokens or RESERVED_POSITIONS
    prompts = load_prompt_set(settings, loaded.tokenizer, max_positions=target.max_positions, reserve=reserve)
    generation = GenerationSettings(
        max_new_tokens=reserve,
        sampling=resolve_sampling(settings, defaults),
        eos_token_ids=defaults.eos_token_ids,
        processors=loaded.model.generation_config,
    )
    return Session(
        settings=settings,
        loaded=loaded,
        target=target,
        fingerprint=fingerprint(loaded),
        defaults=defaults,
        prompts=prompts,
        generation=generation,
        notices=(*loaded.notices, *defaults.notices, *prompts.notices),
    )


def resolve_sampling(settings: CalibrationSettings, defaults: GenerationDefaults) -> SamplingSettings:
    """The user's sampling settings, the model's own where the user is silent: the law that `generate` would use."""
    choice = SamplingChoice(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        seed=settings.seed,
    )
    return choice.over(defaults.sampling)
