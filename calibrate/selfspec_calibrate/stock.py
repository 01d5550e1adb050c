"""``generate`` of transformers on the same model, measured as our own decoding is: what the user had before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from selfspec_calibrate.measurement import RunMeasurement, collected_garbage
from selfspec_runtime.errors import SelfspecError, UsageError
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec_calibrate.measurement import MeasuredPrompt
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.stopping import Criterion

_NEUTRAL = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "max_length": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "guidance_scale": None,
    "return_dict_in_generate": False,
}
"""What selfspec overrides in a generation config, here overridden alike."""

_FAILURES = (ValueError, TypeError, RuntimeError, AttributeError, LookupError, NotImplementedError)


@dataclass(frozen=True, kw_only=True)
class StockVariant:
    """Which of transformers' own ways of decoding; plain by default.

    Attributes:
        prompt_lookup_num_tokens: Draft tokens of prompt lookup, or None.
        assistant_early_exit: Layer of the early exit (LayerSkip), or None.
        assistant_model: A smaller model that drafts, or None.
    """

    prompt_lookup_num_tokens: int | None = None
    assistant_early_exit: int | None = None
    assistant_model: PreTrainedModel | None = None

    def __post_init__(self) -> None:
        """Validates.

        Raises:
            UsageError: More than one is asked for.
        """
        asked = (self.prompt_lookup_num_tokens, self.assistant_early_exit, self.assistant_model)
        if sum(each is not None for each in asked) > 1:
            message = "transformers drafts in one way at a time: give one of prompt lookup, early exit and assistant."
            raise UsageError(message)


@dataclass(frozen=True)
class StockArm:
    """``generate`` as an arm.

    The model is used as it was loaded, so its configuration may carry ``attn_implementation="selfspec"``: this
    attention is as fast as SDPA for one row, and both sides then differ in the decoding loop alone. Model, its
    generation config and an assistant's are never changed; not even transformers' heuristic schedule, which learns
    a number of draft tokens, survives a run.

    Attributes:
        model: The model, in evaluation mode.
        tokenizer: Needed for stop strings only.
        variant: Which way of decoding.
        name: Name of the arm.
        clock: Gives seconds.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    variant: StockVariant = field(default_factory=StockVariant)
    name: str = "stock"
    clock: Callable[[], float] = perf_counter

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        """Decodes one prompt once.

        Args:
            prompt: The prompt.
            settings: How to generate; seeds give other text than selfspec's, since the noise is another.

        Returns:
            The measurement. Its decode seconds are all under ``verify``, since transformers does not tell where
            they go, and only rounds and emitted tokens are counted. Where the first burst holds several tokens
            (a draft was accepted at once), none of them counts as decoded.

        Raises:
            SelfspecError: transformers cannot decode this model in this way.
        """
        stamps = _TokenStamps(self.clock)
        ids = torch.tensor([prompt.token_ids], dtype=torch.long, device=self.model.device)
        with collected_garbage():
            started = self.clock()
            output = self._generate(ids, settings, stamps)
        new_ids = tuple(output[0, ids.shape[1] :].tolist())
        return _measurement(self.name, prompt, new_ids, stamps, started)

    def _generate(self, ids: Tensor, settings: GenerationSettings, stamps: _TokenStamps) -> Tensor:
        arguments = self._arguments(ids, settings)
        devices = [ids.device] if ids.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), torch.no_grad():
                torch.manual_seed(settings.sampling.seed)
                output: Tensor = _twin(self.model).generate(ids, streamer=stamps, **arguments)
        except _FAILURES as error:
            message = f"transformers' generate cannot decode this model so ({type(error).__name__}: {error})."
            raise SelfspecError(message) from error
        return output

    def _arguments(self, ids: Tensor, settings: GenerationSettings) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "generation_config": generation_config(settings, self.variant),
            "attention_mask": torch.ones_like(ids),
        }
        if settings.stop:
            arguments["tokenizer"] = self.tokenizer
        if settings.criteria:
            arguments["stopping_criteria"] = StoppingCriteriaList([_Criteria(settings.criteria)])
        if self.variant.assistant_model is not None:
            arguments["assistant_model"] = _twin(self.variant.assistant_model, keep_config=True)
        return arguments


def generation_config(settings: GenerationSettings, variant: StockVariant) -> GenerationConfig:
    """The same law and the same end as ours, as a generation config of its own."""
    config = copy.deepcopy(settings.processors) if settings.processors is not None else GenerationConfig()
    sampling = settings.sampling
    eos = list(settings.eos_token_ids)
    values: dict[str, Any] = {
        **_NEUTRAL,
        "max_new_tokens": settings.max_new_tokens,
        "eos_token_id": eos or None,
        "pad_token_id": eos[0] if eos else 0,
        "stop_strings": list(settings.stop) or None,
        "do_sample": not sampling.greedy,
        "temperature": 1.0 if sampling.greedy else sampling.temperature,
        "top_k": (sampling.top_k or 0) if not sampling.greedy else 50,
        "top_p": (sampling.top_p or 1.0) if not sampling.greedy else 1.0,
        "min_p": sampling.min_p if not sampling.greedy else None,
        "prompt_lookup_num_tokens": variant.prompt_lookup_num_tokens,
        "assistant_early_exit": variant.assistant_early_exit,
    }
    for name, value in values.items():
        setattr(config, name, value)
    return config


class _TokenStamps(BaseStreamer):  # type: ignore[misc] # transformers is not typed
    """Notes when tokens come; the first call only brings the prompt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []
        self.counts: list[int] = []
        self.has_prompt = False

    def put(self, value: Tensor) -> None:
        """Takes new tokens, already on the host."""
        if not self.has_prompt:
            self.has_prompt = True
            return
        self.times.append(self.clock())
        self.counts.append(value.numel())

    def end(self) -> None:
        """Notes the end, after the last token's stopping criteria."""
        self.times.append(self.clock())


class _Criteria(StoppingCriteria):  # type: ignore[misc] # transformers is not typed
    """selfspec's criteria, which see a list of ids."""

    def __init__(self, criteria: tuple[Criterion, ...]) -> None:
        self.criteria = criteria

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Whether to stop, ``[1]`` bool."""
        del scores
        stop = any(criterion(input_ids[0].tolist()) for criterion in self.criteria)
        return torch.tensor([stop], device=input_ids.device)


def _twin(model: PreTrainedModel, *, keep_config: bool = False) -> PreTrainedModel:
    """The same modules and weights under another generation config.

    ``generate`` fills what is None in the given config from the model's own one, and assisted decoding writes
    into it; a twin that shares everything else keeps both from happening to the user's model.
    """
    twin = copy.copy(model)
    twin.generation_config = copy.deepcopy(model.generation_config) if keep_config else GenerationConfig()
    return twin


def _measurement(
    name: str, prompt: MeasuredPrompt, new_ids: tuple[int, ...], stamps: _TokenStamps, started: float
) -> RunMeasurement:
    first, last = stamps.times[0], stamps.times[-1]
    num_tokens = len(new_ids) - stamps.counts[0]
    to_first, decode = first - started, last - first
    return RunMeasurement(
        arm=name,
        prompt_id=prompt.prompt_id,
        kind=prompt.kind,
        num_tokens=num_tokens,
        decode_s=decode,
        time_to_first_token_s=to_first,
        stats=AcceptanceStats(num_rounds=len(stamps.counts) - 1, num_emitted_tokens=num_tokens),
        seconds=PhaseSeconds(prefill=to_first, verify=decode),
        token_ids=new_ids,
    )
