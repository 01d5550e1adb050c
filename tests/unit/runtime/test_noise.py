"""Philox against its published vectors, and the noise made of it: open intervals, disjoint streams, right laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from selfspec_runtime.noise import (
    Stream,
    gumbel,
    gumbel_at,
    gumbel_from_words,
    philox,
    uniform_from_words,
    uniform_scalar,
    uniforms,
)

# The known-answer vectors of Random123 (D. E. Shaw Research), philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
FALSE_ALARM = 1e-6

words = st.integers(0, 2**32 - 1)
seeds = st.integers(-(2**63), 2**64 - 1)
positions = st.integers(0, 2**32 - 1)
streams = st.sampled_from(Stream)
derandomised = settings(deadline=None, derandomize=True, max_examples=60)


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers_on_integers_and_on_tensors(counter: str, key: str, expected: str) -> None:
    assert philox(_words(counter), _words(key)) == _words(expected)
    tensors = tuple(torch.tensor([word, word]) for word in _words(counter))
    drawn = philox(tensors, _words(key))
    assert [word.tolist() for word in drawn] == [[word, word] for word in _words(expected)]


@derandomised
@given(counter=st.tuples(words, words, words, words), key=st.tuples(words, words))
def test_integer_and_tensor_arithmetic_agree_where_products_overflow(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> None:
    drawn = philox(tuple(torch.tensor(word) for word in counter), key)
    assert tuple(int(word) for word in drawn) == philox(counter, key)


@derandomised
@given(seed=seeds, position=positions, stream=streams, salt=words)
def test_scalar_and_tensor_uniforms_are_bit_equal(seed: int, position: int, stream: Stream, salt: int) -> None:
    drawn = uniforms(seed, torch.tensor([position]), stream, salt=salt)
    assert drawn.dtype == torch.float64
    assert float(drawn[0]) == uniform_scalar(seed, position, stream, salt=salt)
    assert 0.0 < float(drawn[0]) < 1.0


def test_the_extreme_words_stay_inside_the_open_interval_and_finite() -> None:
    extremes = torch.tensor([0, 2**32 - 1])
    assert uniform_from_words(extremes, extremes).tolist() == [2.0**-53, 1 - 2.0**-53]
    noise = gumbel_from_words(extremes)
    assert noise.dtype == torch.float32
    assert noise.tolist() == pytest.approx([-math.log(33 * math.log(2)), 33 * math.log(2)])


@derandomised
@given(seed=seeds, position=positions, stream=streams, size=st.integers(1, 40), salt=words)
def test_gumbel_noise_of_a_token_depends_on_the_token_alone(
    seed: int, position: int, stream: Stream, size: int, salt: int
) -> None:
    noise = gumbel(seed, position, stream, size, salt=salt)
    longer = gumbel(seed, position, stream, size + 5, salt=salt)
    assert noise.shape == (size,)
    assert torch.equal(noise, longer[:size])
    token_ids = torch.tensor([size - 1, 0])
    assert torch.equal(gumbel_at(seed, position, stream, token_ids, salt=salt), noise[token_ids])


def test_no_two_streams_positions_salts_seeds_or_kinds_share_a_number() -> None:
    where = torch.arange(500)
    drawn = [
        uniforms(seed, where, stream, salt=salt) for seed in (0, 1, 2**32, -1) for stream in Stream for salt in (0, 1)
    ]
    everything = torch.cat(drawn)
    assert everything.unique().numel() == everything.numel()
    # The words behind Gumbel noise, tokens 0 and 1 of which would else be those behind the uniform number.
    assert uniform_scalar(3, 9, Stream.DRAFT) != pytest.approx(
        float(torch.exp(-torch.exp(-gumbel(3, 9, Stream.DRAFT, 1).double()))[0]), abs=1e-4
    )


@pytest.mark.parametrize("stream", Stream)
def test_uniforms_are_uniform_and_streams_uncorrelated(stream: Stream) -> None:
    where = torch.arange(20_000)
    drawn = uniforms(7, where, stream)
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > FALSE_ALARM
    for other in Stream:
        lag = 1 if other == stream else 0
        pairs = torch.stack([drawn[lag:], uniforms(7, where, other)[: 20_000 - lag]])
        # 5 standard errors of a correlation of independent numbers: a false alarm of 6e-7 each.
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 5 / math.sqrt(20_000)


def test_gumbel_noise_follows_the_gumbel_law_over_tokens_and_over_positions() -> None:
    over_tokens = gumbel(11, 5, Stream.SHARED, 20_000)
    over_positions = torch.cat([gumbel(11, position, Stream.SHARED, 1) for position in range(2_000)])
    assert stats.kstest(over_tokens.numpy(), "gumbel_r").pvalue > FALSE_ALARM
    assert stats.kstest(over_positions.numpy(), "gumbel_r").pvalue > FALSE_ALARM


def test_noise_is_computed_on_the_asked_device_without_reading_a_value() -> None:
    # The meta device has no values: any host read would raise.
    assert gumbel(1, 2, Stream.SHARED, 10, device="meta").shape == (10,)
    assert uniforms(1, torch.arange(3, device="meta"), Stream.ACCEPT, device="meta").device.type == "meta"
    assert gumbel_at(1, 2, Stream.SHARED, torch.arange(3, device="meta")).shape == (3,)
