"""Which device's acceptance decides a request: the kernels on CUDA, the torch reference everywhere else.

The decode rules ask `KernelAcceptance.serves` before every draw and every decision. It says no for anything but
CUDA tensors, so that nothing on a CPU depends on the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.kernels.layout import MAX_VOCAB
from selfspec_runtime.kernels.row_law import has_top_k, has_top_p, law_params
from selfspec_runtime.kernels.triton_status import has_triton
from selfspec_runtime.law import greedy_tokens, token_probs

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.drafts.draft import Draft
    from selfspec_runtime.processors import Processors
    from selfspec_runtime.sampling import SamplingSettings


@dataclass(frozen=True)
class KernelLaw:
    """The law that one draft token was drawn from, as kernels read it.

    Attributes:
        logits: ``[1, vocab]`` of the draft.
        laws: int64 ``[1, law_width(vocab)]``, made of these logits.
    """

    logits: Tensor
    laws: Tensor

    def to(self, device: torch.device | str) -> KernelLaw:
        """Return the law on another device."""
        return KernelLaw(self.logits.to(device), self.laws.to(device))


class KernelAcceptance:
    """Draws draft tokens and decides blocks of one request by the custom operators.

    Args:
        settings: Temperature, filters, seed, mode.
        processors: Those that apply on top.
    """

    def __init__(self, settings: SamplingSettings, processors: Processors) -> None:
        self._settings = settings
        self._is_plain = processors.is_empty
        self._numbers: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def serves(self, logits: Tensor, draft: Draft | None = None) -> bool:
        """Whether the kernels decide here: on CUDA, without processors, with laws that the kernels have drawn from.

        Args:
            logits: Those to draw from or to decide by.
            draft: The draft to decide, if it is there already.
        """
        if logits.device.type != "cuda" or not self._is_plain or logits.shape[-1] > MAX_VOCAB or not has_triton():
            return False
        return draft is None or not any(isinstance(law, torch.Tensor) for law in draft.probs)

    def draw(self, logits: Tensor, position: int, *, round_start: int) -> tuple[int, KernelLaw | None]:
        """Draw a draft token, as the rule of the settings does.

        Args:
            logits: ``[1, vocab]``.
            position: Position of the token.
            round_start: Position of the round's first drafted token.

        Returns:
            The token, and its law in rejection mode.
        """
        from selfspec_runtime.kernels import operators

        logits = _rows(logits)
        if self._settings.greedy:
            return int(operators.greedy_tokens(logits)), None
        params, seed = self._numbers_on(logits.device)
        filters = has_top_k(self._settings), has_top_p(self._settings)
        # One copy to the device for both.
        places = torch.tensor([position, round_start], dtype=torch.int64, device=logits.device)
        if self._settings.mode == "match":
            return int(operators.shared_tokens(logits, params, seed, places[:1], *filters)), None
        token, laws = operators.draft_token(logits, params, seed, places[:1], places[1:], *filters)
        # A copy, because the buffer that a model returns its logits in may be written again before the verdict.
        return int(token), KernelLaw(logits.clone(), laws)

    def decide(self, draft: Draft, logits: Tensor, position: int) -> Verdict:
        """Decide a block.

        Args:
            draft: ``g`` tokens, their laws drawn by `draw` or None.
            logits: ``[g + 1, vocab]`` of the target.
            position: Position of the first drafted token.

        Raises:
            NumericalError: A target row is no law.
        """
        logits = _rows(logits)
        ids = torch.tensor(draft.token_ids, dtype=torch.long, device=logits.device)
        num_accepted, token_id, is_broken = self._verdict(draft, ids, logits, position).tolist()
        if is_broken:
            self._complain(logits)
        return Verdict(num_accepted, token_id)

    def _verdict(self, draft: Draft, ids: Tensor, logits: Tensor, position: int) -> Tensor:
        from selfspec_runtime.kernels import operators

        verdict: Tensor
        if self._settings.greedy:
            verdict = operators.greedy_verdict(ids, logits)
            return verdict
        params, seed = self._numbers_on(logits.device)
        filters = has_top_k(self._settings), has_top_p(self._settings)
        start = torch.tensor([position], dtype=torch.int64, device=logits.device)
        if self._settings.mode == "match":
            verdict = operators.match_verdict(ids, logits, params, seed, start, *filters)
            return verdict
        laws = [law for law in draft.probs if isinstance(law, KernelLaw)]
        drawn = (
            (torch.cat([law.logits for law in laws]), torch.cat([law.laws for law in laws])) if laws else (None, None)
        )
        verdict = operators.rejection_verdict(ids, *drawn, logits, params, seed, start, *filters)
        return verdict

    def _numbers_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._numbers:
            self._numbers[device] = law_params(self._settings, device=device), seed_tensor(self._settings.seed, device)
        return self._numbers[device]

    def _complain(self, logits: Tensor) -> None:
        # The reference knows what to say.
        greedy_tokens(logits) if self._settings.greedy else token_probs(logits, self._settings)
        message = "A kernel found logits that are no numbers, and the reference did not: please report this."
        raise NumericalError(message)


def seed_tensor(seed: int, device: torch.device | str) -> Tensor:
    """Return a seed in 0..2**64 - 1 as int64 ``[1]`` with the same bits."""
    return torch.tensor([seed - (1 << 64) if seed >= 1 << 63 else seed], dtype=torch.int64, device=device)


def _rows(logits: Tensor) -> Tensor:
    return logits if logits.stride(-1) == 1 else logits.contiguous()
