"""A target, a plan and a tokenizer, ready to generate from token ids."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.decoder import Decoder, Round, RunRecord
from selfspec_runtime.detokenizer import Detokenizer
from selfspec_runtime.errors import CapacityError, PlanError, UsageError
from selfspec_runtime.executors.choice import make_executor
from selfspec_runtime.executors.executor import ExecutorName
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.processors import Processors, build_processors
from selfspec_runtime.rules import AcceptanceRule, make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.schedulers.scheduler import Scheduler
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.step import SpeculativeStep
from selfspec_runtime.stopping import Criterion, FinishReason, StopConditions, Stopper
from selfspec_runtime.synthetic import SyntheticRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor
    from transformers import GenerationConfig, PreTrainedTokenizerBase

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds
    from selfspec_runtime.target import Target


GREEDY = SamplingSettings()


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to generate.

    Attributes:
        max_new_tokens: Most tokens to generate.
        sampling: Temperature, filters, seed; greedy by default.
        eos_token_ids: Ids that end a generation.
        stop: Strings that end it.
        criteria: Functions of all token ids that end it.
        processors: Configuration whose history-dependent processors apply, or None for none.
        skip_special_tokens: Whether markers such as ``<|im_end|>`` are left out of the text.
        synthetic_acceptance: Probability with which each draft token stands, whatever the model says, to cost a shape
            without its weights; the text is then not the model's, and only its length ends it. None is decoding.
    """

    max_new_tokens: int = 256
    sampling: SamplingSettings = GREEDY
    eos_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    processors: GenerationConfig | None = None
    skip_special_tokens: bool = True
    synthetic_acceptance: float | None = None

    def __post_init__(self) -> None:
        """Validates.

        Raises:
            UsageError: ``max_new_tokens`` is not positive, a stop string is empty, or the synthetic acceptance is no
                probability or does not go with drawn tokens.
        """
        if self.max_new_tokens < 1:
            message = f"max_new_tokens is {self.max_new_tokens}; ask for at least 1."
            raise UsageError(message)
        if any(not stop for stop in self.stop):
            message = "A stop string is empty, which would end every text at once. Leave it out."
            raise UsageError(message)
        if self.synthetic_acceptance is not None:
            _check_synthetic(self.synthetic_acceptance, self.sampling)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A finished generation.

    Attributes:
        token_ids: Generated ids, an ending token included.
        text: Their text.
        finish_reason: What ended it.
        stats: Counts over all rounds after the first token.
        seconds: Where the time went.
        notices: What the user should know, in sentences.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stats: AcceptanceStats
    seconds: PhaseSeconds
    notices: tuple[str, ...] = ()


@dataclass
class Engine:
    """Generates with one plan; several engines may share a target.

    Attributes:
        target: The model.
        tokenizer: Its tokenizer; None if neither text nor stop strings are needed.
        plan: What drafts.
        arrays: Fitted arrays that the plan may name.
        executor: What runs rounds: ``eager``, ``cuda_graph``, or ``auto`` for the one that fits the device.
    """

    target: Target
    tokenizer: PreTrainedTokenizerBase | None = None
    plan: DraftPlan = PLAIN
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    executor: ExecutorName = "auto"

    def __post_init__(self) -> None:
        """Builds the source and the controller.

        Raises:
            PlanError: The plan does not fit the model, or its scheduler not the executor.
            UsageError: The executor does not fit the device.
        """
        self.plan.validate_for(self.target.num_layers)
        spec = self.plan.source
        self.source = None if spec is None else spec.build(self.target, self.arrays)
        controller = FixedController(0) if spec is None else self.plan.controller.build()
        by_pass = self.plan.scheduler is not None
        if by_pass and self.executor == "cuda_graph":
            message = (
                "A recorded round leaves nothing beside which its plan's scheduler could draft. Use --executor auto or "
                "eager, or a plan without a scheduler."
            )
            raise PlanError(message)
        executor = make_executor(
            "eager" if by_pass else self.executor,
            self.target,
            self.source,
            controller,
            max_drafts=self.plan.max_draft_tokens,
        )
        self.decoder = Decoder(self.target, self.source, controller, executor, self._scheduler())

    @property
    def extra_bytes(self) -> int:
        """Memory that the plan holds beyond the model and its cache."""
        return self.decoder.scheduler.extra_bytes + (0 if self.source is None else self.source.extra_bytes)

    def stream(
        self,
        prompt_ids: list[int],
        settings: GenerationSettings,
        *,
        cache: KVCache | None = None,
        record: RunRecord | None = None,
    ) -> Iterator[SpeculativeStep]:
        """Generates round by round.

        Args:
            prompt_ids: At least one token id.
            settings: How to generate.
            cache: A cache that holds a beginning of the prompt; a new one by default.
            record: Receives counts and seconds.

        Yields:
            One step per round; the first holds the first token, the last has a ``finish_reason``.

        Raises:
            UsageError: The prompt is empty.
            CapacityError: The prompt fills the context.
            NumericalError: The model's logits are not numbers.
        """
        sequence = self._sequence(prompt_ids)
        rule = _rule(settings, self._processors(settings, len(prompt_ids)))
        stopper = Stopper(self._conditions(settings), self.tokenizer)
        capacity = len(prompt_ids) + settings.max_new_tokens + 1 + self.plan.max_branches
        cache = cache or self.target.new_cache(capacity=capacity)
        record = RunRecord() if record is None else record
        rounds = self.decoder.run(sequence, cache, rule=rule, stopper=stopper, record=record)
        detokenizer = self._detokenizer(settings)
        for number, outcome in enumerate(rounds):
            if outcome.finish_reason == "length" and len(sequence) < len(prompt_ids) + settings.max_new_tokens:
                record.notices.append(
                    f"The text ends because the model's context of {self.target.max_positions} is full"
                )
            yield _step(number, outcome, detokenizer)

    def generate(
        self, prompt_ids: list[int], settings: GenerationSettings, *, cache: KVCache | None = None
    ) -> Generation:
        """Generates to the end; arguments and errors as for :meth:`stream`."""
        record = RunRecord()
        steps = list(self.stream(prompt_ids, settings, cache=cache, record=record))
        finish = steps[-1].finish_reason
        assert finish is not None
        return Generation(
            token_ids=tuple(token for step in steps for token in step.token_ids),
            text="".join(step.text for step in steps),
            finish_reason=finish,
            stats=record.stats,
            seconds=record.seconds,
            notices=tuple(record.notices),
        )

    def _scheduler(self) -> Scheduler:
        if self.plan.scheduler is None or self.source is None:
            return Scheduler()
        return self.plan.scheduler.build(self.target, self.source, self.plan, self.arrays)

    def _sequence(self, prompt_ids: list[int]) -> Sequence:
        if not prompt_ids:
            message = "The prompt is empty: give at least one token."
            raise UsageError(message)
        limit = self.target.max_positions
        if limit is not None and len(prompt_ids) >= limit:
            message = (
                f"The prompt has {len(prompt_ids)} tokens, which fills the model's context of {limit}. Shorten it."
            )
            raise CapacityError(message)
        return Sequence(prompt_ids, device=self.target.device)

    def _processors(self, settings: GenerationSettings, prompt_length: int) -> Processors:
        if settings.processors is None:
            return Processors()
        config = copy.copy(settings.processors)
        config.max_new_tokens = settings.max_new_tokens  # a forced ending token is forced at this length
        return build_processors(
            config,
            prompt_length=prompt_length,
            eos_token_ids=settings.eos_token_ids,
            device=self.target.device,
            greedy=settings.sampling.greedy,
        )

    def _conditions(self, settings: GenerationSettings) -> StopConditions:
        if settings.synthetic_acceptance is not None:
            return StopConditions(max_new_tokens=settings.max_new_tokens, max_positions=self.target.max_positions)
        return StopConditions(
            eos_token_ids=settings.eos_token_ids,
            stop=settings.stop,
            criteria=settings.criteria,
            max_new_tokens=settings.max_new_tokens,
            max_positions=self.target.max_positions,
        )

    def _detokenizer(self, settings: GenerationSettings) -> Detokenizer | None:
        if self.tokenizer is None:
            return None
        return Detokenizer(self.tokenizer, skip_special_tokens=settings.skip_special_tokens)


def _rule(settings: GenerationSettings, processors: Processors) -> AcceptanceRule:
    if settings.synthetic_acceptance is None:
        return make_rule(settings.sampling, processors)
    return SyntheticRule(settings.sampling, processors, acceptance=settings.synthetic_acceptance)


def _check_synthetic(acceptance: float, sampling: SamplingSettings) -> None:
    if not 0 <= acceptance <= 1:
        message = f"The synthetic acceptance is {acceptance}, and it is a probability: give a number from 0 to 1."
        raise UsageError(message)
    if not sampling.greedy:
        message = "A synthetic acceptance goes with greedy decoding only. Set the temperature to 0."
        raise UsageError(message)


def _step(number: int, outcome: Round, detokenizer: Detokenizer | None) -> SpeculativeStep:
    text = ""
    if detokenizer is not None:
        text = detokenizer.push(list(outcome.token_ids))
        text += detokenizer.finish() if outcome.finish_reason is not None else ""
    prefix = outcome.draft.prefix
    return SpeculativeStep(
        round=number,
        token_ids=outcome.token_ids,
        text=text,
        drafted_ids=tuple(outcome.draft.node_ids),
        num_accepted=outcome.num_accepted,
        origin=outcome.draft.origin if len(outcome.draft) else "none",
        exit_depth=prefix.exit_layer if prefix is not None else None,
        draft_s=outcome.draft_s,
        verify_s=outcome.verify_s,
        host_s=outcome.host_s,
        finish_reason=outcome.finish_reason,
        branch_places=tuple(branch.place for branch in outcome.draft.branches),
        accepted_branch=outcome.branch,
    )
