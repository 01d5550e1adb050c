"""What every draft source and every controller must do; a new one is tested by subclassing these."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from tests.support.faults import CallCounter, Fault, faulty, module_tree
from tests.support.plans import exit_heads
from tests.support.tiny_models import VOCAB_SIZE, prompt_ids, tiny_target

from selfspec_runtime.controllers.fixed import FixedController
from selfspec_runtime.drafts.source import RoundContext
from selfspec_runtime.errors import PlanError
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import AcceptanceRule, make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.rules import Choice

SAMPLED = SamplingSettings(temperature=1.0, seed=3)
#: Repeats itself, so that a lookup finds something; the last token is not in the cache yet.
COMMITTED = [*prompt_ids(7), *prompt_ids(7), prompt_ids(7)[0]]
#: How sure a draft may be of its tokens: never, always, and falling.
CONFIDENCES = [[0.0] * 80, [1.0] * 80, [1.0 - index / 80 for index in range(80)]]


class NotingRule(AcceptanceRule):
    """Another rule, with every choice that it was asked for kept.

    Args:
        rule: What chooses.
        counter: Counts the choices, and throws at one of them.
    """

    def __init__(self, rule: AcceptanceRule, counter: CallCounter | None = None) -> None:
        super().__init__(rule.settings, rule.processors)
        self._rule = rule
        self._counter = counter or CallCounter()
        self.choices: list[Choice] = []

    def choose(
        self, logits: Tensor, sequence: Sequence, drafted: list[int], *, wants_confidence: bool = False
    ) -> Choice:
        """Chooses as the rule does."""
        self._counter()
        choice = self._rule.choose(logits, sequence, drafted, wants_confidence=wants_confidence)
        self.choices.append(choice)
        return choice

    def _scores(self, logits: Tensor, position: int) -> Tensor:
        return self._rule._scores(logits, position)

    def _draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, Tensor | None]:
        return self._rule._draw(logits, position, round_start=round_start)

    def _decide(self, draft: Draft, logits: Tensor, position: int) -> Any:
        return self._rule._decide(draft, logits, position)


class UnreadableSequence(Sequence):
    """Throws as soon as a token is read."""

    @property
    def ids(self) -> list[int]:
        """Throws."""
        raise Fault

    def tensor(self) -> Tensor:
        """Throws."""
        raise Fault


def round_context(
    settings: SamplingSettings = SAMPLED, *, ids: list[int] = COMMITTED, budget: int = 4, room: int = 20
) -> RoundContext:
    """The middle of a generation: everything but the last token is in the cache."""
    target = tiny_target("llama")
    sequence = Sequence(ids, device=target.device)
    cache = target.new_cache()
    target.logits(sequence.tensor()[:-1], cache, start=0, keep=1)
    cache.length = len(sequence) - 1
    rule = NotingRule(make_rule(settings, Processors()))
    return RoundContext(sequence, cache, rule, FixedController(64), budget, room)


def contents(cache: KVCache) -> list[Tensor]:
    """Copies of the committed keys and values."""
    return [held.clone() for index in range(4) for held in cache.layer(index)]


def same(first: Draft, second: Draft) -> bool:
    """Whether two drafts have the same tokens and laws."""
    if first.token_ids != second.token_ids:
        return False
    pairs = zip(first.probs, second.probs, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


class DraftSourceContract:
    """Subclass it as ``TestSomething``.

    Attributes:
        source: The plan entry, as in a file.
        draws: Whether the source draws tokens from laws of its own.
        impossible: Entries that a model of four layers cannot run.
        malformed: Changes of the entry that are refused when it is read.
    """

    source: ClassVar[dict[str, Any]]
    draws: ClassVar[bool] = True
    impossible: ClassVar[list[dict[str, Any]]] = []
    malformed: ClassVar[list[dict[str, Any]]]

    @classmethod
    @cache
    def built(cls) -> DraftSource:
        """The source, built once."""
        spec = cls.plan().source
        assert spec is not None
        return spec.build(tiny_target("llama"), exit_heads())

    @classmethod
    def plan(cls) -> DraftPlan:
        """The plan that names it."""
        return DraftPlan.model_validate({"source": cls.source})

    @pytest.mark.parametrize(("budget", "room"), [(1, 20), (2, 20), (5, 20), (3, 3), (1, 1)])
    def test_at_most_the_budget_is_drafted_and_something_is(self, budget: int, room: int) -> None:
        draft = self.built().propose(round_context(budget=budget, room=room))
        assert 1 <= len(draft) <= budget
        assert len(draft.token_ids) == len(draft.probs)
        assert all(0 <= token < VOCAB_SIZE for token in draft.token_ids)
        assert draft.origin in str(self.source)

    def test_each_law_is_the_one_that_its_token_was_drawn_from(self) -> None:
        context = round_context()
        draft = self.built().propose(context)
        choices = context.rule.choices  # type: ignore[attr-defined]
        if not self.draws:
            assert not choices
            assert draft.probs == [None] * len(draft)
            return
        assert draft.token_ids == [choice.token_id for choice in choices], "a token that was drawn must be kept"
        for probs, choice in zip(draft.probs, choices, strict=True):
            assert probs is choice.probs
            assert probs is not None
            assert probs.shape == (VOCAB_SIZE,)
            assert probs.dtype == torch.float32
            assert probs.min() >= 0
            assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
            assert probs[choice.token_id] > 0

    @pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(temperature=1.0, mode="match")])
    def test_no_law_stands_behind_a_choice_without_randomness(self, settings: SamplingSettings) -> None:
        draft = self.built().propose(round_context(settings))
        assert draft.probs == [None] * len(draft)

    def test_the_controller_may_end_the_draft_and_the_last_token_is_kept(self) -> None:
        draft = self.built().propose(replace(round_context(budget=4), controller=FixedController(2)))
        assert len(draft) == (2 if self.draws else 4)

    def test_what_is_committed_and_the_model_stay_untouched(self) -> None:
        source, context = self.built(), round_context()
        model = tiny_target("llama").model
        tree, before = module_tree(model), contents(context.cache)
        source.propose(context)
        assert module_tree(model) == tree
        assert context.cache.length == len(COMMITTED) - 1
        assert context.sequence.ids == COMMITTED
        assert all(map(torch.equal, before, contents(context.cache)))

    @pytest.mark.parametrize("place", ["sequence", "first choice", "third choice", "first layer", "third layer"])
    def test_an_exception_changes_nothing(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        source, context = self.built(), round_context()
        model = tiny_target("llama").model
        expected = source.propose(context)
        tree, before = module_tree(model), contents(context.cache)
        with monkeypatch.context() as patch:
            faulted = self._faulted(context, place, patch)
            if self.draws or place == "sequence":
                with pytest.raises(Fault):
                    source.propose(faulted)
        assert module_tree(model) == tree
        assert context.cache.length == len(COMMITTED) - 1
        assert all(map(torch.equal, before, contents(context.cache)))
        assert same(source.propose(context), expected)

    def _faulted(self, context: RoundContext, place: str, patch: pytest.MonkeyPatch) -> RoundContext:
        counter = CallCounter(2 if place.startswith("third") else 0)
        if place == "sequence":
            return replace(context, sequence=UnreadableSequence(COMMITTED, device=torch.device("cpu")))
        if place.endswith("choice"):
            return replace(context, rule=NotingRule(context.rule, counter))
        kind = type(tiny_target("llama").parts.layers[0].input_layernorm)
        patch.setattr(kind, "forward", faulty(kind.forward, counter))
        return context

    def test_after_a_reset_the_same_is_drafted_again(self) -> None:
        source, context = self.built(), round_context()
        source.reset()
        first = source.propose(context)
        source.observe(first, num_accepted=1)
        source.propose(round_context(ids=prompt_ids(5, seed=9)))
        source.reset()
        assert same(source.propose(context), first)

    def test_it_describes_itself(self) -> None:
        spec = self.plan().source
        assert spec is not None
        assert spec.describe().strip() == spec.describe() != ""
        assert self.plan().describe().startswith(spec.describe())

    def test_the_plan_survives_a_file(self) -> None:
        plan = self.plan()
        assert DraftPlan.model_validate_json(plan.model_dump_json()) == plan

    def test_it_fits_a_model_that_has_what_it_names(self) -> None:
        self.plan().validate_for(4)

    def test_what_does_not_exist_is_refused(self) -> None:
        for entry in self.impossible:
            plan = DraftPlan.model_validate({"source": entry})
            with pytest.raises(PlanError, match="model has"):
                plan.validate_for(4)

    def test_a_malformed_entry_is_refused(self) -> None:
        for change in [*self.malformed, {"unknown": 1}]:
            with pytest.raises(ValidationError):
                DraftPlan.model_validate({"source": {**self.source, **change}})

    def test_extra_memory_is_a_number_of_bytes(self) -> None:
        assert self.built().extra_bytes >= 0


class ControllerContract:
    """Subclass it as ``TestSomething``.

    Attributes:
        controller: The plan entry, as in a file.
        malformed: Changes of the entry that are refused when it is read.
    """

    controller: ClassVar[dict[str, Any]]
    malformed: ClassVar[list[dict[str, Any]]]

    @classmethod
    def plan(cls) -> DraftPlan:
        """A plan that names it."""
        return DraftPlan.model_validate({"source": {"kind": "ngram"}, "controller": cls.controller})

    def test_the_budget_keeps_to_the_promised_maximum(self) -> None:
        spec = self.plan().controller
        controller = spec.build()
        for accepted in (0, 1, spec.max_draft_tokens, 0):
            assert 0 <= controller.budget() <= spec.max_draft_tokens
            controller.observe(num_drafted=spec.max_draft_tokens, num_accepted=accepted)
        assert self.plan().max_draft_tokens == spec.max_draft_tokens

    @pytest.mark.parametrize("confidences", CONFIDENCES)
    def test_a_draft_ends_at_the_maximum_however_sure_it_is(self, confidences: list[float]) -> None:
        spec = self.plan().controller
        assert decisions(spec.build(), confidences).count(True) < spec.max_draft_tokens

    @pytest.mark.parametrize("confidences", CONFIDENCES)
    def test_confidence_decides_only_where_it_was_asked_for(self, confidences: list[float]) -> None:
        controller = self.plan().controller.build()
        if not controller.needs_confidence:
            assert decisions(controller, confidences) == decisions(controller, [1.0] * 80)

    @pytest.mark.parametrize("confidences", CONFIDENCES)
    def test_after_a_reset_it_decides_as_when_new(self, confidences: list[float]) -> None:
        spec = self.plan().controller
        used = spec.build()
        decisions(used, confidences)
        used.observe(num_drafted=1, num_accepted=0)
        used.reset()
        assert used.budget() == spec.build().budget()
        assert decisions(used, confidences) == decisions(spec.build(), confidences)

    def test_it_describes_itself(self) -> None:
        spec = self.plan().controller
        assert str(spec.max_draft_tokens) in spec.describe()
        assert self.plan().describe().endswith(spec.describe())

    def test_the_plan_survives_a_file(self) -> None:
        plan = self.plan()
        assert DraftPlan.model_validate_json(plan.model_dump_json()) == plan

    def test_a_malformed_entry_is_refused(self) -> None:
        for change in [*self.malformed, {"unknown": 1}]:
            with pytest.raises(ValidationError):
                DraftPlan.model_validate({"controller": {**self.controller, **change}})


def decisions(controller: Any, confidences: list[float]) -> list[bool]:
    """What a controller says after each token of a draft, up to its first no."""
    said = []
    for number, confidence in enumerate(confidences, start=1):
        said.append(controller.wants_more(number, confidence))
        if not said[-1]:
            break
    return said
