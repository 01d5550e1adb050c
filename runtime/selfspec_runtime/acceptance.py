"""Which drafted tokens stand, and which token follows them: pure functions of laws, ids and noise.

Rejection sampling is that of Leviathan et al., "Fast inference from transformers via speculative decoding"
(ICML 2023): a drafted token is accepted with probability min(1, target / draft); at the first rejection the
token is drawn from the normalised positive part of target - draft, and if all stand, a bonus token is drawn
from the target. Greedy and match keep drafted tokens while they equal the target's own choice.

A position is the absolute index in the sequence of the token that is decided. An id outside of 0..V-1, -1
above all, says "nothing was drafted here": it is rejected, never used as an index, and the token is drawn
from the target itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfspec_runtime.errors import NumericalError
from selfspec_runtime.noise import Stream, gumbel, gumbel_at, uniform_scalar


@dataclass(frozen=True)
class Verdict:
    """What a verification decided.

    Attributes:
        num_accepted: How many drafted tokens stand, 0..g, an accepted branch's included.
        token_id: The token after them: the correction, or the bonus if all stand.
        branch: Number of the side branch that the last token that stands belongs to, or None for the chain.
    """

    num_accepted: int
    token_id: int
    branch: int | None = None

    @property
    def num_on_chain(self) -> int:
        """How many of the chain's own tokens stand."""
        return self.num_accepted - (self.branch is not None)


def greedy_accept(draft_token_ids: Tensor, target_token_ids: Tensor) -> Verdict:
    """Keep drafted tokens while they are the target's own.

    Args:
        draft_token_ids: int64 ``[g]``.
        target_token_ids: int64 ``[g + 1]``, the target's choice after each prefix.

    Returns:
        The length of the common prefix, and the target's token after it.
    """
    matches = draft_token_ids == target_token_ids[:-1]
    num_accepted = int(matches.long().cumprod(dim=0).sum())
    return Verdict(num_accepted, int(target_token_ids[num_accepted]))


def match_accept(draft_token_ids: Tensor, target_sampled_ids: Tensor) -> Verdict:
    """Keep drafted tokens while they equal what the target samples; arguments as in `greedy_accept`.

    Lossless for any draft whatever, since only tokens that the target sampled are emitted.
    """
    return greedy_accept(draft_token_ids, target_sampled_ids)


def rejection_accept(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    seed: int,
    first_position: int,
) -> Verdict:
    """Accept or correct a chain of drafted tokens so that what is emitted follows the target's law.

    Args:
        draft_token_ids: int64 ``[g]``, g >= 0; with g = 0 this is plain decoding.
        draft_probs: ``[g, V]``, the very laws that the tokens were sampled from; None if the draft chose its
            tokens without chance.
        target_probs: ``[g + 1, V]``, the target's laws after each prefix.
        seed: Key of the noise.
        first_position: Position of the first drafted token.

    Returns:
        The verdict.

    Raises:
        NumericalError: A target law without finite, positive mass.
    """
    wanted = accept_probs(draft_token_ids, draft_probs, target_probs).tolist()
    num_accepted = 0
    for prob in wanted:
        if uniform_scalar(seed, first_position + num_accepted, Stream.ACCEPT) >= prob:
            break
        num_accepted += 1
    law = target_probs[num_accepted]
    if num_accepted < len(wanted):
        draft_row = None if draft_probs is None else draft_probs[num_accepted]
        law = residual_probs(draft_row, int(draft_token_ids[num_accepted]), law)
    return Verdict(num_accepted, plain_token(law, seed=seed, position=first_position + num_accepted))


def accept_probs(draft_token_ids: Tensor, draft_probs: Tensor | None, target_probs: Tensor) -> Tensor:
    """Return the probability with which each drafted token is accepted, given that it is reached.

    Args:
        draft_token_ids: int64 ``[g]``; ids outside of 0..V-1 get 0.
        draft_probs: ``[g, V]``, or None for a draft that chose its tokens without chance. Rows are read as
            laws whatever they sum to; a row without finite, positive mass gets 0.
        target_probs: ``[g + 1, V]``; the last row is not read.

    Returns:
        float64 ``[g]``, min(1, target / draft) at the drafted ids.
    """
    vocab_size = target_probs.shape[-1]
    drafted = (draft_token_ids >= 0) & (draft_token_ids < vocab_size)
    ids = draft_token_ids.clamp(0, vocab_size - 1)[:, None]
    ratio = _law_at(target_probs[:-1], ids)
    if draft_probs is not None:
        proposed = _law_at(draft_probs, ids)
        drafted = drafted & (proposed > 0)
        ratio = ratio / proposed
    usable = drafted & ~ratio.isnan()
    return torch.where(usable, ratio.clamp(max=1.0), torch.zeros_like(ratio))


def residual_probs(draft_probs_row: Tensor | None, draft_token_id: int, target_probs_row: Tensor) -> Tensor:
    """Return the law of the token that replaces a rejected one.

    Args:
        draft_probs_row: ``[V]``, the law that the rejected token was sampled from; None if it was chosen
            without chance.
        draft_token_id: The rejected token, or -1 if there was none.
        target_probs_row: ``[V]``.

    Returns:
        float64 ``[V]``, summing to 1: the normalised positive part of target - draft. It is the target's law
        where nothing was drafted, where the draft's law is not one, and where no mass is left (then a
        rejection has probability 0 but for rounding).
    """
    target = _normalised(target_probs_row)
    if not 0 <= draft_token_id < target.shape[0]:
        return target
    if draft_probs_row is None:
        residual = target.clone()
        residual[draft_token_id] = 0.0
    else:
        residual = (target - _normalised(draft_probs_row)).clamp(min=0.0)
    mass = residual.sum()
    return residual / mass if bool(mass > 0) else target


def plain_token(probs: Tensor, *, seed: int, position: int) -> int:
    """Draw the token of a position from its law ``[V]`` as plain decoding in rejection mode does."""
    return sample_token(probs, uniform_scalar(seed, position, Stream.RESIDUAL))


def shared_token(probs: Tensor, *, seed: int, position: int) -> int:
    """Draw the token of a position from its law ``[V]`` as match mode does, for draft and target alike.

    Equals `gumbel_token` with the SHARED noise of the position, which is computed only where it can matter.
    """
    token_ids = probs.nonzero()[:, 0]
    if token_ids.numel() == 0:
        raise NumericalError(_no_law(probs))
    if 8 * token_ids.numel() > probs.shape[0]:
        noise = gumbel(seed, position, Stream.SHARED, probs.shape[0], device=probs.device)
        return gumbel_token(probs, noise)
    noise = gumbel_at(seed, position, Stream.SHARED, token_ids)
    return int(token_ids[gumbel_token(probs[token_ids], noise)])


def sample_token(probs: Tensor, u: float) -> int:
    """Draw from a law by inverting its cumulative distribution.

    Args:
        probs: ``[V]``, not negative, read as a law whatever it sums to.
        u: A uniform number; 0 and 1 are as good as any, and no value leads to a token of probability 0.

    Returns:
        The token's id.

    Raises:
        NumericalError: The row has no finite, positive mass.
    """
    cumulative = probs.cumsum(dim=0, dtype=torch.float64)
    total = float(cumulative[-1])
    if not 0 < total < float("inf"):
        raise NumericalError(_no_law(probs))
    # The first entry strictly above u * total is one that rises, which a token of probability 0 never does.
    threshold = torch.full((1,), float(u) * total, dtype=torch.float64, device=probs.device)
    token_id = int(torch.searchsorted(cumulative, threshold, right=True))
    return token_id if token_id < probs.shape[0] else int(probs.nonzero()[-1, 0])


def gumbel_token(probs: Tensor, noise: Tensor) -> int:
    """Draw from a law by the Gumbel-max rule: the token with the largest log probability plus noise.

    Args:
        probs: ``[V]``, not negative, read as a law whatever it sums to.
        noise: ``[V]``, standard Gumbel noise.

    Returns:
        The token's id; never one of probability 0.

    Raises:
        NumericalError: The row has a NaN or +inf, or no positive entry.
    """
    scores = probs.log() + noise
    token_id = int(scores.argmax())
    if not bool(scores[token_id].isfinite()):
        raise NumericalError(_no_law(probs))
    return token_id


def _law_at(probs: Tensor, ids: Tensor) -> Tensor:
    """Return each row's normalised probability of one id; ``[g, V]`` and ``[g, 1]`` to float64 ``[g]``."""
    return probs.gather(-1, ids)[:, 0].double() / probs.sum(dim=-1, dtype=torch.float64)


def _normalised(probs: Tensor) -> Tensor:
    exact = probs.double()
    return exact / exact.sum()


def _no_law(probs: Tensor) -> str:
    return (
        f"A law over {probs.shape[0]} tokens has the sum {float(probs.double().sum())}, so no token can be "
        "drawn from it. Make laws with token_probs, which checks the logits that they come from."
    )
