"""Rules on the device decide as the rules on the host do, bit for bit, and by the kernels' operators as well."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.capture_guards import capture_guard
from tests.support.device_steps import SAMPLING, STEPS, meta_model, step_world
from tests.support.tiny_models import tiny_config

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.executors.device_noise import device_gumbel, device_uniforms
from selfspec_runtime.executors.device_rules import DeviceRule, device_rule
from selfspec_runtime.executors.kernel_rules import kernel_rule
from selfspec_runtime.noise import Stream, gumbel, uniforms
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence

VOCAB_SIZE = 37
SEEDS = st.integers(0, 2**64 - 1)
FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.6, 1.0, 1.7]),
        "top_k": st.sampled_from([None, 1, 5, 100]),
        "top_p": st.sampled_from([None, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([None, 0.05]),
        "mode": st.sampled_from(["rejection", "match"]),
    }
)


def key_of(seed: int) -> torch.Tensor:
    return torch.tensor([seed & 0xFFFFFFFF, seed >> 32])


def rules_of(settings: SamplingSettings) -> list[DeviceRule]:
    key = key_of(settings.seed)
    return [device_rule(settings, key), kernel_rule(settings, key)]


@given(SEEDS, st.integers(0, 2**32 - 200), st.integers(0, 2**32 - 1))
def test_noise_is_the_host_s(seed: int, position: int, salt: int) -> None:
    positions = torch.arange(position, position + 3)
    numbers = device_uniforms(key_of(seed), positions, Stream.DRAFT, salt=torch.tensor([salt]))
    assert torch.equal(numbers, uniforms(seed, positions, Stream.DRAFT, salt=salt))
    rows = device_gumbel(key_of(seed), positions, Stream.SHARED, VOCAB_SIZE)
    for place, row in zip(positions.tolist(), rows, strict=True):
        assert torch.equal(row, gumbel(seed, place, Stream.SHARED, VOCAB_SIZE))


@given(FILTERS, SEEDS, st.integers(0, 6), st.booleans(), st.integers(0, 2**31))
def test_a_block_is_decided_as_on_the_host(
    filters: dict[str, object], seed: int, count: int, drawn: bool, data: int
) -> None:
    settings = SamplingSettings(seed=seed, **filters)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(data)
    target = 3 * torch.randn(count + 1, VOCAB_SIZE, generator=generator)
    # Near the target, so that some tokens are accepted.
    drafts = target[:count] + torch.randn(count, VOCAB_SIZE, generator=generator)
    sequence, host = Sequence(list(range(20)), device=torch.device("cpu")), make_rule(settings, Processors())
    position = torch.tensor([len(sequence)])
    for rule in rules_of(settings):
        draft, laws = Draft(), []
        for place in range(count):
            choice = host.choose(drafts[place : place + 1], sequence, draft.token_ids)
            token, law = rule.draw(drafts[place : place + 1], position + place, round_start=position)
            assert token.tolist() == [choice.token_id]
            draft.append(choice.token_id, choice.probs if drawn else None)
            laws.append(law)
        kept = tuple(torch.cat(parts) for parts in zip(*laws, strict=True)) if drawn else ()
        wanted = host.decide(draft, target, sequence)
        verdict = rule.decide(torch.tensor(draft.token_ids, dtype=torch.long), kept, target, position)
        assert (int(verdict.num_accepted), int(verdict.token)) == (wanted.num_accepted, wanted.token_id)
        assert not bool(verdict.broken)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_logits_that_are_no_numbers_set_the_flag(sampling: str, value: float) -> None:
    for rule in rules_of(SAMPLING[sampling]):
        logits = torch.zeros(3, VOCAB_SIZE)
        logits[1] = value
        verdict = rule.decide(torch.tensor([1, 2]), None, logits, torch.tensor([9]))
        assert bool(verdict.broken)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_kernels_operators_read_nothing_on_the_host(sampling: str) -> None:
    world = step_world(meta_model(tiny_config("llama"), attention="selfspec"))
    for confidence in (False, True):
        steps = world.steps(sampling=SAMPLING[sampling], confidence=confidence, make_rule=kernel_rule)
        with torch.no_grad(), capture_guard("meta"):
            for step in STEPS.values():
                step(steps)
