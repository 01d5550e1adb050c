"""Rules by the Triton kernels, for steps that are recorded on CUDA.

The kernels read seed, position and round on the device, so that a replay draws fresh noise. They draw and decide as the
loop does that runs pass by pass, from the very laws: a law has the same bits whatever kernel reads it.

Torch's operators stay where kernels cannot serve: away from CUDA and without Triton, and for sampling from more tokens
than the kernels' whole-number weights can be added up for (`MAX_VOCAB`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from selfspec_runtime.executors.device_rules import DeviceRule, DeviceVerdict, LawPart, device_rule
from selfspec_runtime.kernels import operators
from selfspec_runtime.kernels.layout import MAX_VOCAB, law_width
from selfspec_runtime.kernels.row_law import has_top_k, has_top_p, law_params
from selfspec_runtime.kernels.triton_status import has_triton

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.sampling import SamplingSettings


class KernelGreedy(DeviceRule):
    """The likeliest token, in two launches a draft and two a verification."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Takes the likeliest."""
        del position, round_start
        return operators.greedy_tokens(logits.contiguous()), ()

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with the target's likeliest."""
        del laws, position
        return _verdict(operators.greedy_verdict(drafted, logits.contiguous()))


class _KernelSampling(DeviceRule):
    """What rules that sample have in common.

    Args:
        settings: Temperature and filters.
        key: The two words of the seed, ``[2]`` int64.
    """

    def __init__(self, settings: SamplingSettings, key: Tensor) -> None:
        super().__init__(settings, key)
        self._params = law_params(settings, device=key.device)
        self._filters = has_top_k(settings), has_top_p(settings)

    def _seed(self) -> Tensor:
        return self.key[:1] | (self.key[1:] << 32)


class KernelRejection(_KernelSampling):
    """Speculative sampling: four launches a draft and six a verification, more with top-k and top-p."""

    @staticmethod
    def law_parts(vocab_size: int) -> tuple[LawPart, ...]:
        """The draft's logits, which float32 holds exactly, and what kernels made of them."""
        return LawPart(vocab_size, torch.float32), LawPart(law_width(vocab_size), torch.int64)

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Draws with the draft's own stream, salted with the round."""
        rows = logits.contiguous()
        token, laws = operators.draft_token(rows, self._params, self._seed(), position, round_start, *self._filters)
        return token, (rows.float(), laws)

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Accepts with probability min(1, target / draft), and draws the correction or the bonus."""
        draft_logits, draft_laws = laws if laws and drafted.shape[0] else (None, None)
        block = drafted, draft_logits, draft_laws, logits.contiguous()
        return _verdict(operators.rejection_verdict(*block, self._params, self._seed(), position, *self._filters))


class KernelMatch(_KernelSampling):
    """Draft and target share a position's Gumbel noise."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Draws with the shared noise of the position."""
        del round_start
        rows = logits.contiguous()
        return operators.shared_tokens(rows, self._params, self._seed(), position, *self._filters), ()

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        """Compares with what the target draws with the same noise."""
        del laws
        rows = logits.contiguous()
        return _verdict(operators.match_verdict(drafted, rows, self._params, self._seed(), position, *self._filters))


def kernels_serve(device: torch.device, settings: SamplingSettings, vocab_size: int) -> bool:
    """Whether recorded steps draw and decide by the kernels.

    Args:
        device: The model's.
        settings: Temperature and filters.
        vocab_size: Number of logits.
    """
    return device.type == "cuda" and has_triton() and (settings.greedy or vocab_size <= MAX_VOCAB)


def kernel_rule(settings: SamplingSettings, key: Tensor) -> DeviceRule:
    """The rule that the settings ask for, by kernels; ``key`` holds the two words of the seed, ``[2]`` int64."""
    if settings.greedy:
        return KernelGreedy(settings, key)
    return (KernelMatch if settings.mode == "match" else KernelRejection)(settings, key)


def fitting_rule(settings: SamplingSettings, key: Tensor, *, vocab_size: int) -> DeviceRule:
    """The rule that the settings ask for, by kernels where they serve.

    Args:
        settings: Temperature and filters.
        key: The two words of the seed, ``[2]`` int64, on the model's device.
        vocab_size: Number of logits.
    """
    make = kernel_rule if kernels_serve(key.device, settings, vocab_size) else device_rule
    return make(settings, key)


def _verdict(packed: Tensor) -> DeviceVerdict:
    return DeviceVerdict(packed[:1], packed[1:2], packed[2:] != 0)
