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
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan
from selfspec_runtime.processors import Processors, build_processors
from selfspec_runtime.rules import AcceptanceRule, make_rule
from selfspec_runtime.schedulers.scheduler import Scheduler
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.step import SpeculativeStep
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.synthetic import SyntheticRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target


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
