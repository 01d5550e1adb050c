"""Acceptance rules without host reads: the laws and decisions of :mod:`selfspec_runtime.rules` as tensors.

Where a rule raises on the host, these set a flag that is read with the outcome. The rules here are torch's operators;
`kernel_rules` has those by kernels, and says where which of them serve.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from selfspec_runtime.acceptance import accept_probs
from selfspec_runtime.executors.device_law import device_law, not_numbers, sample_tokens
from selfspec_runtime.executors.device_noise import device_gumbel, device_uniforms
from selfspec_runtime.law import argmax_tokens
from selfspec_runtime.noise import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sampling import SamplingSettings


@dataclass(frozen=True)
class DeviceVerdict:
    """What a verification decided, on the device.

    Attributes:
        num_accepted: ``[1]`` int64.
        token: The token after the accepted ones, ``[1]`` int64.
        broken: Whether the target's logits were not numbers, ``[1]`` bool; the rest is then meaningless.
    """

    num_accepted: Tensor
    token: Tensor
    broken: Tensor


class LawPart(NamedTuple):
    """One of the tensors that a draft token's law is kept in: a row for each token.

    Attributes:
        width: Entries of a row.
        dtype: Of the entries.
    """

    width: int
    dtype: torch.dtype


class DeviceRule(ABC):
    """Draws draft tokens and decides which stand.

    Args:
        settings: Temperature and filters; the seed is not read, it is in ``key``.
        key: The two words of the seed, ``[2]`` int64.
    """

    def __init__(self, settings: SamplingSettings, key: Tensor) -> None:
        self.settings = settings
        self.key = key

    @staticmethod
    def law_parts(vocab_size: int) -> tuple[LawPart, ...]:
        """What is kept of the law that a draft token was drawn from, to decide about it; nothing without chance.

        Args:
            vocab_size: Number of logits.
        """
        del vocab_size
        return ()

    @abstractmethod
    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Draws the next draft token.

        Args:
            logits: ``[1, vocab]``.
            position: Of the token, ``[1]`` int64.
            round_start: Position of the round's first drafted token, ``[1]`` int64.

        Returns:
            The token ``[1]`` int64, and the parts of the law that it was drawn from, each ``[1, width]``.
        """

    @abstractmethod
    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Decides about a block.

        Args:
            drafted: ``[g]`` int64.
            laws: The parts of their laws, each of at least ``g`` rows; none for tokens chosen without chance.
            logits: ``[g + 1, vocab]`` of the target.
            position: Of the first drafted token, ``[1]`` int64.
        """


class DeviceGreedy(DeviceRule):
    """The likeliest token; a draft token stands if it is the target's likeliest."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Takes the likeliest."""
        del position, round_start
        return argmax_tokens(logits), ()

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with the target's likeliest."""
        del laws, position
        largest = logits.amax(dim=-1)
        broken = (largest.isnan() | largest.isneginf()).any().reshape(1)
        return _common_prefix(drafted, argmax_tokens(logits), broken)


class DeviceRejection(DeviceRule):
    """Speculative sampling (Leviathan et al. 2211.17192)."""

    @staticmethod
    def law_parts(vocab_size: int) -> tuple[LawPart, ...]:
        """The law itself."""
        return (LawPart(vocab_size, torch.float32),)

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Draws with the draft's own stream, salted with the round."""
        law = device_law(logits, self.settings)
        noise = device_uniforms(self.key, position, Stream.DRAFT, salt=round_start)
        return sample_tokens(law, noise), (law,)

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Accepts with probability min(1, target / draft), and draws the correction or the bonus."""
        count = drafted.shape[0]
        target_probs = device_law(logits, self.settings)
        if count == 0:
            return self._drawn(target_probs, position.new_zeros(1), position, logits)
        draft_probs = laws[0][:count] if laws else None
        places = torch.arange(count, device=drafted.device)
        noise = device_uniforms(self.key, position + places, Stream.ACCEPT)
        stands = noise < accept_probs(drafted, draft_probs, target_probs)
        num_accepted = stands.long().cumprod(dim=0).sum().reshape(1)
        row = target_probs.index_select(0, num_accepted)
        rejected = num_accepted.clamp(max=count - 1)
        law_row = None if draft_probs is None else draft_probs.index_select(0, rejected)
        residual = _residual(row, law_row, drafted.index_select(0, rejected))
        law = torch.where((num_accepted < count)[:, None], residual, row.double())
        return self._drawn(law, num_accepted, position, logits)

    def _drawn(self, law: Tensor, num_accepted: Tensor, position: Tensor, logits: Tensor) -> DeviceVerdict:
        noise = device_uniforms(self.key, position + num_accepted, Stream.RESIDUAL)
        return DeviceVerdict(num_accepted, sample_tokens(law, noise), not_numbers(logits).any().reshape(1))


class DeviceMatch(DeviceRule):
    """Draft and target share a position's Gumbel noise."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Draws with the shared noise of the position."""
        del round_start
        return self._shared(logits, position), ()

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with what the target draws with the same noise."""
        del laws
        places = torch.arange(logits.shape[0], device=logits.device)
        return _common_prefix(drafted, self._shared(logits, position + places), not_numbers(logits).any().reshape(1))

    def _shared(self, logits: Tensor, positions: Tensor) -> Tensor:
        noise = device_gumbel(self.key, positions, Stream.SHARED, logits.shape[-1])
        return (device_law(logits, self.settings).log() + noise).argmax(dim=-1)


def device_rule(settings: SamplingSettings, key: Tensor) -> DeviceRule:
    """The rule that the settings ask for."""
    if settings.greedy:
        return DeviceGreedy(settings, key)
    return (DeviceMatch if settings.mode == "match" else DeviceRejection)(settings, key)


def without_seed(settings: SamplingSettings) -> SamplingSettings:
    """What of the settings is fixed in a recorded step."""
    return replace(settings, seed=0)


def _common_prefix(drafted: Tensor, chosen: Tensor, broken: Tensor) -> DeviceVerdict:
    num_accepted = (drafted == chosen[:-1]).long().cumprod(dim=0).sum().reshape(1)
    return DeviceVerdict(num_accepted, chosen.index_select(0, num_accepted), broken)


def _residual(target_row: Tensor, law_row: Tensor | None, token: Tensor) -> Tensor:
    """The normalised positive part of target - draft, ``[1, vocab]`` float64."""
    target = _normalised(target_row)
    if law_row is None:
        residual = target.scatter(1, token[:, None], 0.0)
    else:
        residual = (target - _normalised(law_row)).clamp(min=0.0)
    mass = residual.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, residual / mass, target)


def _normalised(rows: Tensor) -> Tensor:
    exact = rows.double()
    return exact / exact.sum(dim=-1, keepdim=True)
