"""Skip sets that change while decoding change nothing in what is said: greedily, in law, and whatever is thrown."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.integration.test_sampling_law import (
    FAKE_PROMPT,
    SETTINGS,
    fake_p_value,
    first_tokens,
    remembered_laws,  # noqa: F401 - a fixture
)
from tests.support.acceptance_suite import FALSE_ALARM
from tests.support.dynamic_plans import DYNAMIC_SOURCES, dynamic_plan
from tests.support.fake_target import FakePrograms, FakeTarget
from tests.support.faults import CallCounter, Fault, faulty, interrupted, module_tree
from tests.support.lossless import Reference, assert_lossless, generate_reference
from tests.support.tiny_models import planted, prompt_ids, tiny_model
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec_runtime.drafts import clasp, conf_layers, swift
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import GreedyRule, make_rule
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from tests.support.fake_target import FakeProgram
    from torch import Tensor

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.source import RoundContext

PROMPT = prompt_ids(14)
NUM_TOKENS = 60
FAMILIES = ["llama", "mistral", "gemma3_text", "gpt2", "gpt_neox", "qwen3"]
NUM_SHORT = 24
SHORT = GenerationSettings(max_new_tokens=NUM_SHORT)
NUM_TEXTS = 900
THRESHOLD = FALSE_ALARM / len(DYNAMIC_SOURCES)


@cache
def half_planted(family: str) -> Target:
    """The last two layers say little, so that drafts are accepted at times."""
    return Target(planted(tiny_model(family), exit_layer=2, scale=0.3))


@cache
def reference(family: str) -> Reference:
    return generate_reference(half_planted(family).model, PROMPT, num_tokens=NUM_TOKENS)


def engine_of(source: str, family: str = "llama") -> Engine:
    return Engine(half_planted(family), plan=dynamic_plan(DYNAMIC_SOURCES[source]))


@pytest.mark.parametrize("source", DYNAMIC_SOURCES)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_generates(family: str, source: str) -> None:
    engine = engine_of(source, family)
    generation = engine.generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS))
    assert_lossless(generation.token_ids, reference(family))
    assert generation.stats.num_draft_tokens > 0
    assert engine.source is not None
    assert engine.source.overhead.num_steps >= 3


@pytest.mark.parametrize("source", DYNAMIC_SOURCES)
def test_stops_are_met_inside_a_block(source: str) -> None:
    said, tokenizer = reference("llama").token_ids, tiny_tokenizer()
    engine = replace(engine_of(source), tokenizer=tokenizer)
    for position in (20, 27, 33):
        settings = GenerationSettings(max_new_tokens=NUM_TOKENS, eos_token_ids=(said[position],))
        generation = engine.generate(PROMPT, settings)
        assert generation.token_ids == said[: said.index(said[position]) + 1]
        assert generation.finish_reason == "eos"
    text = tokenizer.decode(said)
    generation = engine.generate(PROMPT, GenerationSettings(max_new_tokens=NUM_TOKENS, stop=(text[30:35],)))
    assert generation.finish_reason == "stop"
    assert generation.token_ids == said[: len(generation.token_ids)]
    assert text[30:35] in generation.text


def set_by_token(context: RoundContext) -> LayerSkipSet:
    """Another set after every token: the past decides how is drafted."""
    return LayerSkipSet.whole({1 + context.sequence.ids[-1] % 3})


@dataclass(frozen=True)
class FakeSkips(FakePrograms):
    """Every skip set drafts from a table of its own."""

    def without(self, skip: LayerSkipSet, **_: Any) -> FakeProgram:
        return replace(super().without(skip), table=self._resembling(2 + sum(skip.positions)))


class DeepFakeTarget(FakeTarget):
    """A Markov chain with four layers to leave out."""

    num_layers = 4  # type: ignore[assignment]
    parts = SimpleNamespace(attention_name="attention", mlp_name="mlp")

    def __init__(self) -> None:
        super().__init__()
        self.programs = FakeSkips(self.table, 0.8)


@pytest.fixture
def choosing_on_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads hidden states or attention is exchanged; when to choose, and what follows, is not."""

    def replayed(target: Any, token_ids: Tensor, cache: Any, *, positions: Tensor, program: FakeProgram) -> Tensor:
        del target, cache
        assert len(positions) == len(token_ids)
        return program.table[token_ids]

    for module in (swift, clasp, conf_layers):
        monkeypatch.setattr(module, "has_room", lambda cache, rows: True)
    monkeypatch.setattr(swift, "replayed_logits", replayed)
    monkeypatch.setattr(clasp, "SkipProgramme", lambda target, units, choices: SimpleNamespace(num_rows=units + 1))
    monkeypatch.setattr(clasp.ClaspSource, "_chosen", lambda self, context: set_by_token(context))
    monkeypatch.setattr(conf_layers.ConfLayersSource, "_candidate", lambda self, context: set_by_token(context))


@pytest.mark.usefixtures("remembered_laws", "choosing_on_the_fake")
@pytest.mark.parametrize(("source", "settings"), list(zip(DYNAMIC_SOURCES, SETTINGS, strict=True)))
def test_the_joint_law_is_the_targets_while_sets_change(source: str, settings: str) -> None:
    spec = {**DYNAMIC_SOURCES[source], "interval": 2 if source == "conf_layers" else 1}
    plan = dynamic_plan(spec, num_draft_tokens=2)
    decoder = Engine(cast("Target", DeepFakeTarget()), plan=plan).decoder
    assert fake_p_value(decoder, SETTINGS[settings], num_texts=NUM_TEXTS) > THRESHOLD


@pytest.mark.usefixtures("choosing_on_the_fake")
@pytest.mark.parametrize("source", DYNAMIC_SOURCES)
def test_the_fake_target_makes_sets_change(source: str) -> None:
    engine = Engine(cast("Target", DeepFakeTarget()), plan=dynamic_plan(DYNAMIC_SOURCES[source], num_draft_tokens=1))
    used = set()
    for seed in range(40):
        rule = make_rule(replace(SETTINGS["plain"], seed=seed), Processors())
        first_tokens(engine.decoder, rule, FAKE_PROMPT, 10)
        used.add(engine.source.skip)  # type: ignore[union-attr]
    assert len(used) >= 2


def assert_unharmed(engine: Engine, cache: KVCache, tree: list[Any]) -> None:
    """The model is as it was, and decoding says the same, also over what the cache holds."""
    said = reference("llama").token_ids[:NUM_SHORT]
    assert module_tree(engine.target.model) == tree
    held = [*PROMPT, *said][: cache.length + 1]
    prompt = held if len(PROMPT) < len(held) < len(PROMPT) + len(said) else PROMPT
    rest = GenerationSettings(max_new_tokens=len(PROMPT) + len(said) - len(prompt))
    assert (*prompt, *engine.generate(prompt, rest, cache=cache).token_ids) == (*PROMPT, *said)


@pytest.mark.parametrize("place", ["layer", "mlp", "choose", "decide"])
@pytest.mark.parametrize("source", DYNAMIC_SOURCES)
def test_an_exception_at_any_call_harms_nothing(source: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(source)
    layer = engine.target.parts.layers[0]
    owners = {"layer": (type(layer), "forward"), "mlp": (type(layer.mlp), "forward")}
    owner, name = owners.get(place, (GreedyRule, place))
    original = getattr(owner, name)
    counter = CallCounter()
    monkeypatch.setattr(owner, name, faulty(original, counter))
    assert engine.generate(PROMPT, SHORT).token_ids == reference("llama").token_ids[:NUM_SHORT]
    assert engine.source is not None
    assert engine.source.overhead.num_steps > 0
    for number in range(1, counter.count, max(counter.count // 5, 1)):
        tree, cache = module_tree(engine.target.model), engine.target.new_cache()
        monkeypatch.setattr(owner, name, faulty(original, CallCounter(number)))
        with pytest.raises(Fault):
            engine.generate(PROMPT, SHORT, cache=cache)
        monkeypatch.setattr(owner, name, original)
        assert_unharmed(engine, cache, tree)


@pytest.mark.parametrize("source", DYNAMIC_SOURCES)
def test_ctrl_c_at_any_point_harms_nothing(source: str) -> None:
    engine = engine_of(source)
    with interrupted(None) as points:
        engine.generate(PROMPT, SHORT)
    thrown = 0
    for number in random.Random(source).sample(range(points[0]), 12):
        tree, cache = module_tree(engine.target.model), engine.target.new_cache()
        try:
            with interrupted(number):
                engine.generate(PROMPT, SHORT, cache=cache)
        except KeyboardInterrupt:
            thrown += 1
        assert_unharmed(engine, cache, tree)
    assert thrown >= 9
