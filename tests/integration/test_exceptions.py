"""Whatever is thrown wherever, the model is as it was, and decoding goes on from the same cache."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.faults import CallCounter, Fault, faulty, interrupted, module_tree
from tests.support.plans import SOURCES, exit_heads, plan_of
from tests.support.tiny_models import planted, prompt_ids, tiny_model

from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.rules import GreedyRule
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.cache import KVCache

PROMPT = prompt_ids(10)
SETTINGS = GenerationSettings(max_new_tokens=8)

#: Sources that choose no token by a rule.
LOOKUPS = ("ngram", "suffix")


@pytest.fixture(scope="module")
def target() -> Target:
    """Drafts are accepted now and then."""
    return Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))


@pytest.fixture(scope="module")
def said(target: Target) -> tuple[int, ...]:
    """What plain decoding says."""
    return Engine(target).generate(PROMPT, SETTINGS).token_ids


@pytest.fixture(scope="module")
def engines(target: Target) -> dict[str, Engine]:
    """One engine per source, reused after every fault as a chat would."""
    return {source: Engine(target, plan=plan_of(source), arrays=exit_heads()) for source in SOURCES}


def assert_unharmed(engine: Engine, cache: KVCache, said: tuple[int, ...], tree: list[Any]) -> None:
    """The module tree is the old one, and decoding says the same, also over what the cache holds."""
    assert module_tree(engine.target.model) == tree
    assert Engine(engine.target).generate(PROMPT, SETTINGS).token_ids == said
    held = [*PROMPT, *said][: cache.length + 1]
    if len(held) < len(PROMPT) + len(said):
        prompt = held if len(held) > len(PROMPT) else PROMPT
        rest = GenerationSettings(max_new_tokens=len(PROMPT) + len(said) - len(prompt))
        assert (*prompt, *engine.generate(prompt, rest, cache=cache).token_ids) == (*PROMPT, *said)


def run_through(
    engine: Engine, said: tuple[int, ...], inject: Callable[[int | None], CallCounter], *, step: int = 1
) -> int:
    """Throws at every call that ``inject`` counts, one run each; returns the number of calls."""
    counter = inject(None)
    assert engine.generate(PROMPT, SETTINGS).token_ids == said
    calls = counter.count
    for number in range(0, calls, step):
        tree, cache = module_tree(engine.target.model), engine.target.new_cache()
        inject(number)
        with pytest.raises(Fault):
            engine.generate(PROMPT, SETTINGS, cache=cache)
        inject(None)
        assert_unharmed(engine, cache, said, tree)
    return calls


@pytest.mark.parametrize("part", ["layer", "attention", "mlp", "model"])
@pytest.mark.parametrize("source", SOURCES)
def test_an_exception_in_any_module_at_any_call(
    source: str, part: str, engines: dict[str, Engine], said: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines[source]
    layer = engine.target.parts.layers[0]
    modules = {"layer": layer, "attention": layer.self_attn, "mlp": layer.mlp, "model": engine.target.model}
    kind = type(modules[part])
    original = kind.forward

    def inject(fail_at: int | None) -> CallCounter:
        counter = CallCounter(fail_at)
        monkeypatch.setattr(kind, "forward", faulty(original, counter))
        return counter

    assert run_through(engine, said, inject, step=1 if part == "model" else 7) >= 5


@pytest.mark.parametrize("method", ["choose", "decide", "_processed"])
@pytest.mark.parametrize("source", SOURCES)
def test_an_exception_in_the_rule(
    source: str, method: str, engines: dict[str, Engine], said: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(GreedyRule, method)

    def inject(fail_at: int | None) -> CallCounter:
        counter = CallCounter(fail_at)
        monkeypatch.setattr(GreedyRule, method, faulty(original, counter))
        return counter

    calls = run_through(engines[source], said, inject, step=2)
    assert calls > 0 or source in LOOKUPS


@pytest.mark.parametrize("source", SOURCES)
def test_an_exception_in_a_users_criterion(
    source: str, engines: dict[str, Engine], target: Target, said: tuple[int, ...]
) -> None:
    engine = engines[source]
    for number in range(len(said)):
        tree, cache = module_tree(target.model), target.new_cache()
        counter = CallCounter(number)

        def criterion(ids: list[int], counter: CallCounter = counter) -> bool:
            counter()
            return False

        with pytest.raises(Fault):
            engine.generate(PROMPT, GenerationSettings(max_new_tokens=8, criteria=(criterion,)), cache=cache)
        assert_unharmed(engine, cache, said, tree)


@pytest.mark.parametrize("source", SOURCES)
def test_a_consumer_that_leaves_half_way(
    source: str, engines: dict[str, Engine], target: Target, said: tuple[int, ...]
) -> None:
    engine = engines[source]
    for taken in range(1, 4):
        tree, cache = module_tree(target.model), target.new_cache()
        stream = engine.stream(PROMPT, SETTINGS, cache=cache)
        got = [token for _, step in zip(range(taken), stream, strict=False) for token in step.token_ids]
        stream.close()  # type: ignore[attr-defined]
        assert tuple(got) == said[: len(got)]
        assert cache.length == len(PROMPT) + len(got) - 1
        assert_unharmed(engine, cache, said, tree)


@pytest.mark.parametrize("source", SOURCES)
def test_ctrl_c_at_any_point(source: str, engines: dict[str, Engine], target: Target, said: tuple[int, ...]) -> None:
    engine = engines[source]
    with interrupted(None) as points:
        engine.generate(PROMPT, SETTINGS)
    numbers = random.Random(source).sample(range(points[0]), 50)
    thrown = 0
    for number in numbers:
        tree, cache = module_tree(target.model), target.new_cache()
        try:
            with interrupted(number):
                engine.generate(PROMPT, SETTINGS, cache=cache)
        except KeyboardInterrupt:
            thrown += 1
        assert_unharmed(engine, cache, said, tree)
    # Python drops what is thrown while an object is deleted, so a few never arrive.
    assert thrown > 0.9 * len(numbers)
