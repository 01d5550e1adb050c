"""A model with its plan: what `selfspec.load` gives back."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from selfspec.measured_sampling import hotter_than_measured
from selfspec.request import DEFAULT_MAX_NEW_TOKENS, GenerationOptions, Request, make_options, make_request
from selfspec.result import Result
from selfspec_runtime.decoder import RunRecord
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation_defaults import GenerationDefaults, resolve_generation_defaults
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from selfspec.conversation import Conversation
    from selfspec.prompt_ids import PromptLike
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.calibration import Calibration
    from selfspec_runtime.loading import LoadedModel
    from selfspec_runtime.step import SpeculativeStep
    from selfspec_runtime.stopping import Criterion
    from selfspec_runtime.token_trace import TokenTrace


class SpeculativeModel:
    """Decodes with a plan; what it says is what the model says without one.

    Args:
        loaded: Model and tokenizer.
        plan: What drafts; plain decoding by default.
        arrays: Fitted arrays that the plan may name.
        calibration: Where the plan comes from, or None.
        notices: What the user should know about how it was opened, one sentence each.

    Raises:
        PlanError: The plan does not fit the model.
        UnsupportedModelError: The model cannot be decoded losslessly.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        plan: DraftPlan = PLAIN,
        *,
        arrays: Mapping[str, Tensor] | None = None,
        calibration: Calibration | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.loaded = loaded
        self.calibration = calibration
        self.notices = notices
        self.engine = Engine(Target(loaded.model), loaded.tokenizer, plan, arrays or {}, loaded.spec.executor)

    @property
    def plan(self) -> DraftPlan:
        """What drafts."""
        return self.engine.plan

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, unchanged."""
        return self.loaded.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return self.loaded.tokenizer

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """What the model's generation config asks for."""
        return resolve_generation_defaults(self.model, self.tokenizer)

    @cached_property
    def plain_engine(self) -> Engine:
        """The same model without a draft, for comparison; it shares the weights."""
        if self.plan.is_plain:
            return self.engine
        return Engine(self.engine.target, self.tokenizer, executor=self.loaded.spec.executor)

    def generate(
        self,
        prompt: PromptLike,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int = 0,
        mode: Literal["rejection", "match"] = "rejection",
        stop: str | Sequence[str] = (),
        criteria: Criterion | Sequence[Criterion] = (),
        system: str | None = None,
        raw: bool = False,
        skip_special_tokens: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        **unsupported: object,
    ) -> Result:
        """Generates to the end.

        Args:
            prompt: Text (one user message where the tokenizer has a chat template), a list of messages
                ``{"role": ..., "content": ...}``, or a list of token ids.
            max_new_tokens: Most tokens to generate.
            temperature: 0 is greedy; None takes the model's own generation config.
            top_p: Smallest set of likeliest tokens that holds this much probability.
            top_k: Only the k likeliest tokens; 0 for all.
            min_p: Only tokens at least this likely relative to the likeliest one.
            seed: Same seed, same text.
            mode: ``rejection``, or ``match`` for the very text that plain decoding with this seed gives.
            stop: Strings that end the text; the text includes the one that did.
            criteria: Functions of all token ids that end the text when they return True.
            system: A system message, for prompts that have none.
            raw: Take text as it is, without the chat template.
            skip_special_tokens: Whether markers such as ``<|im_end|>`` are left out of the text.
            template_kwargs: Further variables of the chat template, such as ``enable_thinking``.
            **unsupported: Options of transformers' generate, refused with what to do instead.

        Raises:
            UsageError: The prompt or an option cannot be used: several prompts, beam search, ...
            CapacityError: The prompt fills the model's context.
        """
        options = make_options(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            mode=mode,
            stop=stop,
            criteria=criteria,
            system=system,
            raw=raw,
            skip_special_tokens=skip_special_tokens,
            template_kwargs=template_kwargs,
            **unsupported,
        )
        return self.run(self.request(prompt, options))

    def stream(self, prompt: PromptLike, **options: Any) -> Iterator[SpeculativeStep]:
        """Generates round by round; the texts of all steps add up to the result's text.

        Args:
            prompt: As for :meth:`generate`.
            **options: As for :meth:`generate`.

        Returns:
            One step per round: what was drafted, what was accepted, the text that it completed, its seconds.
        """
        return self.steps(self.request(prompt, make_options(**options)))

    def trace(
        self,
        prompt: PromptLike,
        *,
        num_candidates: int = 3,
        on_step: Callable[[SpeculativeStep], None] | None = None,
        **options: Any,
    ) -> TokenTrace:
        """Generates to the end and records, for every token, how it came about and how many layers it needed.

        Args:
            prompt: As for :meth:`generate`.
            num_candidates: Likeliest tokens kept per layer and token.
            on_step: Told of every round as it comes, for text that streams.
            **options: As for :meth:`generate`.
        """
        from selfspec_runtime.tracing import trace_generation

        request = self.request(prompt, make_options(**options))
        return trace_generation(
            self.engine, request.prompt_ids, request.settings, top_k=num_candidates, on_step=on_step
        )

    def chat(self, *, system: str | None = None, **options: Any) -> Conversation:
        """A conversation, whose key/value cache is kept from turn to turn.

        Args:
            system: What the model is to be told first.
            **options: As for :meth:`generate`, for every reply.
        """
        from selfspec.conversation import Conversation

        return Conversation(self, system=system, options=make_options(**options))

    def request(self, prompt: PromptLike, options: GenerationOptions) -> Request:
        """Renders the prompt and settles the options; errors as for :meth:`generate`."""
        request = make_request(prompt, options, self.loaded, self.defaults)
        sampling = request.settings.sampling
        hotter = None if self.calibration is None else hotter_than_measured(sampling, self.calibration)
        return replace(request, notices=(*self.defaults.notices, *request.notices, *filter(None, (hotter,))))

    def steps(
        self,
        request: Request,
        *,
        engine: Engine | None = None,
        cache: KVCache | None = None,
        record: RunRecord | None = None,
    ) -> Iterator[SpeculativeStep]:
        """Runs a request round by round.

        Args:
            request: What to generate.
            engine: Another engine of this model than its plan's.
            cache: A cache that holds a beginning of the prompt.
            record: Receives counts and seconds.
        """
        prompt_ids = list(request.prompt_ids)
        return (engine or self.engine).stream(prompt_ids, request.settings, cache=cache, record=record)

    def run(self, request: Request, *, engine: Engine | None = None, cache: KVCache | None = None) -> Result:
        """Runs a request to the end; arguments as for :meth:`steps`."""
        record = RunRecord()
        steps = list(self.steps(request, engine=engine, cache=cache, record=record))
        return Result.of(request, steps, record)
