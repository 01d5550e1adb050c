"""One suite for every implementation of acceptance: the reference, a kernel, and rules that are wrong on purpose.

An implementation of the whole (how a draft draws, how a block is decided) is a `Scheme`; `joint_p_value` decodes
with it from a small Markov model and compares the joint law of the first tokens with the enumerated one. An
implementation that exposes its acceptance probabilities and residuals is checked exactly by `emitted_law`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from scipy import stats
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from selfspec_runtime.acceptance import (
    Verdict,
    gumbel_token,
    match_accept,
    rejection_accept,
    sample_token,
)
from selfspec_runtime.law import token_probs
from selfspec_runtime.noise import Stream, gumbel, uniform_scalar
from selfspec_runtime.sampling import SamplingSettings

FALSE_ALARM = 1e-6
"""Probability with which a right scheme fails one G-test (to the accuracy of the chi-square approximation)."""

START = 0
FIRST_POSITION = 17
NUM_TOKENS = 3

AcceptProbs = Callable[[Tensor, Tensor | None, Tensor], Tensor]
ResidualProbs = Callable[[Tensor | None, int, Tensor], Tensor]


@dataclass(frozen=True)
class MarkovModel:
    """Logits that depend on the last token alone; float32 ``[V, V]`` each, row = last token."""

    draft_logits: Tensor
    target_logits: Tensor


def markov_model(vocab_size: int = 6, *, seed: int = 0, spread: float = 1.0) -> MarkovModel:
    """Build a target and a draft that resembles it; ``spread`` is the scale of what sets them apart."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(vocab_size, vocab_size, generator=generator)
    noise = torch.randn(vocab_size, vocab_size, generator=generator)
    return MarkovModel(target + spread * noise, target)


class Scheme:
    """How tokens are drafted and decided; this one does it by the shipped functions, in rejection mode.

    Args:
        model: Its states are the last tokens.
        settings: Not greedy.
    """

    def __init__(self, model: MarkovModel, settings: SamplingSettings) -> None:
        self.model, self.settings = model, settings
        self.target_probs = token_probs(model.target_logits, settings)
        self.draft_probs = token_probs(model.draft_logits, settings)
        self.reported_probs: Tensor | None = self.draft_probs

    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        """Draft the token after ``state``; None ends the round's draft."""
        u = uniform_scalar(seed, position, Stream.DRAFT, salt=round_start)
        return sample_token(self.draft_probs[state], u)

    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        """Decide a block: ``states[i]`` is the token before row i, one more than drafted tokens."""
        reported = None if self.reported_probs is None else self.reported_probs[states[:-1]]
        target = self.target_probs[states]
        return rejection_accept(
            torch.tensor(drafted, dtype=torch.long), reported, target, seed=seed, first_position=position
        )

    def observe(self, dropped: list[int]) -> None:
        """Learn which drafted tokens a verdict threw away, as a draft that adapts would."""


class MatchScheme(Scheme):
    """Match mode by the shipped functions."""

    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        return self._token(self.draft_probs[state], seed=seed, position=position)

    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        chosen = [
            self._token(self.target_probs[state], seed=seed, position=position + i) for i, state in enumerate(states)
        ]
        return match_accept(torch.tensor(drafted, dtype=torch.long), torch.tensor(chosen))

    def _token(self, probs: Tensor, *, seed: int, position: int) -> int:
        return gumbel_token(probs, _shared_noise(seed, position, probs.shape[0]))


@lru_cache(maxsize=64)
def _shared_noise(seed: int, position: int, size: int) -> Tensor:
    return gumbel(seed, position, Stream.SHARED, size)


def decode(scheme: Scheme, *, num_draft_tokens: int, seed: int, num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """Decode by rounds from START at FIRST_POSITION and return the first tokens."""
    emitted: list[int] = []
    while len(emitted) < num_tokens:
        position = FIRST_POSITION + len(emitted)
        states = [emitted[-1] if emitted else START]
        while len(states) <= num_draft_tokens:
            token = scheme.propose(states[-1], seed=seed, position=position + len(states) - 1, round_start=position)
            if token is None:
                break
            states.append(token)
        verdict = scheme.decide(states, states[1:], seed=seed, position=position)
        emitted += [*states[1 : 1 + verdict.num_accepted], verdict.token_id]
        scheme.observe(states[1 + verdict.num_accepted :])
    return tuple(emitted[:num_tokens])


def joint_p_value(
    scheme: Scheme, *, num_draft_tokens: int, num_texts: int = 2_500, num_tokens: int = NUM_TOKENS
) -> float:
    """Decode many texts, one per seed, and return the p-value of their joint law under the target's."""
    counts = Counter(
        decode(scheme, num_draft_tokens=num_draft_tokens, seed=seed, num_tokens=num_tokens) for seed in range(num_texts)
    )
    return g_test(counts, exact_joint(scheme.model.target_logits, scheme.settings, num_tokens=num_tokens))


def exact_joint(
    target_logits: Tensor, settings: SamplingSettings, *, num_tokens: int = NUM_TOKENS
) -> dict[tuple[int, ...], float]:
    """Enumerate the target's law of the first tokens by transformers' warpers, float64."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(settings.temperature))])
    if settings.top_k is not None:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        warpers.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p is not None:
        warpers.append(MinPLogitsWarper(settings.min_p))
    no_ids = torch.empty((target_logits.shape[0], 0), dtype=torch.long)
    rows = warpers(no_ids, target_logits.double()).softmax(dim=-1).tolist()
    joint: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(len(rows)), repeat=num_tokens):
        prob = 1.0
        for before, token in zip((START, *tokens), tokens, strict=False):
            prob *= rows[before][token]
        joint[tokens] = prob
    return joint


def g_test(counts: Counter[tuple[int, ...]], probs: dict[tuple[int, ...], float]) -> float:
    """Return the likelihood-ratio test's p-value; cells that expect fewer than 5 are pooled.

    A text that the law says cannot occur gives 0 at once.
    """
    total = counts.total()
    if any(probs[cell] == 0 for cell in counts):
        return 0.0
    large = [cell for cell, prob in probs.items() if prob * total >= 5]
    observed = [float(counts[cell]) for cell in large]
    expected = [probs[cell] * total for cell in large]
    rest = total - sum(expected)
    if rest >= 5:
        observed.append(total - sum(observed))
        expected.append(rest)
    # Scaled because what is left in a pool too small to test would else make the sums differ.
    scale = sum(observed) / sum(expected)
    result = stats.power_divergence(observed, [scale * cell for cell in expected], lambda_="log-likelihood")
    return float(result.pvalue)


def emitted_law(
    accept_probs: AcceptProbs,
    residual_probs: ResidualProbs,
    draft_row: Tensor | None,
    target_row: Tensor,
    *,
    draft_token_id: int | None = None,
) -> Tensor:
    """Return the law of the token that a one-token draft leads to, float64 ``[V]``.

    Sum over the drafted token x of draft(x) (accept(x) [x] + (1 - accept(x)) residual), which is the target's law
    if the rule is lossless.

    Args:
        accept_probs: The implementation's function, as in `selfspec_runtime.acceptance`.
        residual_probs: Likewise.
        draft_row: ``[V]``; None for a draft that always proposes ``draft_token_id``.
        target_row: ``[V]``.
        draft_token_id: The token of a draft without chance.
    """
    law = torch.zeros(target_row.shape[0], dtype=torch.float64)
    if draft_row is None:
        proposals = [(int(draft_token_id or 0), 1.0)]
    else:
        exact = draft_row.double() / draft_row.double().sum()
        proposals = [(int(token), float(exact[token])) for token in exact.nonzero()[:, 0]]
    target = torch.stack([target_row, target_row])
    for token, prob in proposals:
        draft = None if draft_row is None else draft_row[None]
        accept = float(accept_probs(torch.tensor([token]), draft, target)[0])
        law[token] += prob * accept
        law += prob * (1 - accept) * residual_probs(draft_row, token, target_row)
    return law
