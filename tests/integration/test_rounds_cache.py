"""After any rounds whatever, the shared cache holds what a fresh prefill of the same tokens holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.device_steps import EXPERT_FAMILIES, step_world
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import FAMILIES, VOCAB_SIZE, tiny_target

from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.executors.steps import DraftProgram
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.verifier import Verifier

if TYPE_CHECKING:
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

pytestmark = pytest.mark.usefixtures("torch_only")
NUM_ROUNDS = 200
MAX_DRAFTS = 4
#: No two passes compute a sum in the same order; 1e-5 of what keys and values measure.
TOLERANCE = 1e-5
CONTEXT = 480


class ForcedRounds:
    """Rounds whose drafted tokens and accepted lengths are drawn at random, whatever the model says.

    Args:
        target: The model.
        seed: Of what is drawn.
    """

    def __init__(self, target: Target, seed: int = 0) -> None:
        self.target = target
        self.draw = random.Random(seed)
        self.verifier = Verifier(target)
        self.exits = {k: target.programs.exit_at(k) for k in (1, 3)}
        self.skips = [target.programs.without(LayerSkipSet.whole(layers)) for layers in ([1], [0, 2])]

    def run(self, sequence: Sequence, cache: KVCache) -> None:
        """Runs rounds until the context is nearly full, then starts over from a shorter text: a longer rollback."""
        for _ in range(NUM_ROUNDS):
            if len(sequence) > CONTEXT - MAX_DRAFTS - 2:
                kept = self.draw.randint(5, 40)
                del sequence.ids[kept:]
                cache.length = kept - 1
            self._round(sequence, cache)

    def _round(self, sequence: Sequence, cache: KVCache) -> None:
        draft = self._draft(sequence, cache, self.draw.randint(0, MAX_DRAFTS))
        self.verifier.verify(sequence, draft, cache)
        accepted = self.draw.randint(0, len(draft))
        for token in (*draft.token_ids[:accepted], self._token()):
            sequence.append(token)
        cache.length = len(sequence) - 1

    def _draft(self, sequence: Sequence, cache: KVCache, count: int) -> Draft:
        """Passes of an exit or of a skip set, over tokens drawn at random."""
        exit_layer = self.draw.choice([None, *self.exits])
        program, out = (self.draw.choice(self.skips), None) if exit_layer is None else self.exits[exit_layer]
        tokens, hidden = [self._token() for _ in range(count)], []
        for place, token in enumerate([*sequence.ids[-1:], *tokens[:-1]][:count]):
            ids = torch.tensor([token])
            self.target.logits(ids, cache, start=sequence.last_position + place, program=program, keep=1)
            hidden += [] if out is None or out.hidden is None else [out.hidden]
        prefix = ExactPrefix(exit_layer, torch.cat(hidden, dim=1)) if exit_layer is not None and hidden else None
        return Draft(tokens, [None] * count, prefix=prefix)

    def _token(self) -> int:
        return self.draw.randrange(4, VOCAB_SIZE)


def assert_as_prefilled(target: Target, sequence: Sequence, cache: KVCache) -> None:
    fresh = target.new_cache(capacity=CONTEXT)
    target.logits(sequence.tensor()[: cache.length], fresh, start=0, keep=1)
    fresh.length = cache.length
    for index in range(target.num_layers):
        for held, expected in zip(cache.layer(index), fresh.layer(index), strict=True):
            scale = float(expected.abs().max())
            assert float((held - expected).abs().max()) <= TOLERANCE * max(scale, 1.0), f"layer {index}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_after_200_rounds_is_that_of_a_fresh_prefill(family: str) -> None:
    target = tiny_target(family)
    sequence, cache = Sequence([5, 6, 7, 8], device=target.device), target.new_cache(capacity=16)
    target.logits(sequence.tensor()[:-1], cache, start=0, keep=1)
    cache.length = len(sequence) - 1
    ForcedRounds(target).run(sequence, cache)
    assert_as_prefilled(target, sequence, cache)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_so_is_the_cache_after_rounds_on_the_device(family: str) -> None:
    assert family not in EXPERT_FAMILIES
    world, draw = step_world(tiny_target(family).model), random.Random(1)
    steps = world.steps(extent=96)
    sequence = world.write(10)
    programs = [DraftProgram(*world.target.programs.exit_at(k), k) for k in (1, 3)]
    programs.append(DraftProgram(world.target.programs.without(LayerSkipSet.whole([1]))))
    for _ in range(60):
        count, accepted = draw.randint(1, 4), draw.randint(0, 4)
        world.state.place(sequence, 0)
        steps.whole(draw.choice(programs), count)
        drafted = [int(token) for token in world.state.window[1 : count + 1]]
        for token in (*drafted[:accepted], draw.randrange(4, VOCAB_SIZE)):
            sequence.append(token)
        if len(sequence) > 80:
            del sequence.ids[draw.randint(5, 40) :]
        world.state.forget()
    world.cache.length = min(len(sequence) - 1, 79)
    assert_as_prefilled(world.target, sequence, world.cache)


def test_the_comparison_notices_a_row_that_the_draft_wrote() -> None:
    target = tiny_target("llama")
    sequence, cache = Sequence([5, 6, 7, 8], device=target.device), target.new_cache()
    target.logits(sequence.tensor()[:-1], cache, start=0, keep=1)
    target.logits(sequence.tensor()[-1:], cache, start=3, program=target.programs.without(LayerSkipSet.whole([1])))
    cache.length = 4
    with pytest.raises(AssertionError, match="layer"):
        assert_as_prefilled(target, sequence, cache)
