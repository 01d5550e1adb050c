"""Logits processors of a generation config, applied to a block so that each row sees its own drafted prefix.

Repetition penalties, n-gram bans and forced tokens depend on what stands before a position. In a block of
drafted tokens every row has another past, so the processors run once per row, with exactly the ids that plain
decoding would have shown them. The classes are transformers' own, in the order of ``generate``; which
attribute asks for which class is a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from selfspec_runtime.law import Warper


@dataclass(frozen=True)
class Processors:
    """What a generation config does to the logits before and after the sampling law.

    Attributes:
        history: Applied to the logits by calling this object; transformers processors in order.
        warpers: Filters that belong after temperature, top-k, top-p and min-p and need no history (typical,
            epsilon, eta): to be passed to `token_probs`. Greedy decoding ignores them, as ``generate`` does.
    """

    history: tuple[Callable[[Tensor, Tensor], Tensor], ...] = ()
    warpers: tuple[Warper, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the config asks for neither processors nor further warpers."""
        return not self.history and not self.warpers

    def __call__(self, logits: Tensor, prefix_ids: Tensor, block_ids: Tensor) -> Tensor:
        """Process a block of logits, each row with its own past.

        Args:
            logits: ``[n, V]`` in any floating dtype.
            prefix_ids: int64 ``[1, m]``, every committed token, the last one included.
            block_ids: int64 ``[n - 1]``, drafted tokens: row i sees the prefix and ``block_ids[:i]``. Ids
                outside of the vocabulary are shown as the last committed token; the rows after them are never
                used, because such an id is always rejected.

        Returns:
            float32 ``[n, V]``, or ``logits`` as they are if there is nothing to apply.
        """
        if not self.history:
            return logits
        outside = (block_ids < 0) | (block_ids >= logits.shape[-1])
        shown = torch.where(outside, prefix_ids[0, -1], block_ids)
        past = torch.cat([prefix_ids, shown[None]], dim=1)
        start = prefix_ids.shape[1]
        chain = LogitsProcessorList(self.history)
        rows = [chain(past[:, : start + i], logits[i : i + 1].float()) for i in range(logits.shape[0])]
        return torch.cat(rows)


class _Context(NamedTuple):
    """What constructors need beside the attribute's value."""

    config: GenerationConfig
    prompt_length: int
    eos: Tensor | None
    device: torch.device | str


class _Entry(NamedTuple):
    """One row of the table: an attribute, whether a value of it has an effect, and what it builds."""

    attribute: str
    has_effect: Callable[[Any, _Context], bool]
    build: Callable[[Any, _Context], Any]


def build_processors(
    generation_config: GenerationConfig,
    *,
    prompt_length: int,
    eos_token_ids: list[int] | tuple[int, ...],
    device: torch.device | str,
    greedy: bool = False,
) -> Processors:
    """Build what ``generate`` would apply for this config; the config is only read.

    Args:
        generation_config: The model's or the user's config; temperature, top_k, top_p and min_p are not read,
            they are `SamplingSettings`.
        prompt_length: Number of tokens in the prompt.
        eos_token_ids: Ids that end a text; may be empty.
        device: Where the logits are.
        greedy: Whether nothing is drawn; what only changes a law is then ignored, as by ``generate``.

    Returns:
        The processors.

    Raises:
        UsageError: The config asks for something that cannot be applied to a block of drafted tokens, or for
            a processor whose arguments are wrong.
    """
    _refuse_unsupported(generation_config, greedy=greedy)
    eos = torch.tensor(list(eos_token_ids), dtype=torch.int64, device=device) if eos_token_ids else None
    context = _Context(generation_config, prompt_length, eos, device)
    return Processors(history=_build(_HISTORY, context), warpers=_build(_WARPERS, context))


def _build(table: tuple[_Entry, ...], context: _Context) -> tuple[Any, ...]:
    built = []
    for entry in table:
        value = getattr(context.config, entry.attribute, None)
        if value is None or not entry.has_effect(value, context):
            continue
        try:
            built.append(entry.build(value, context))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{entry.attribute} is {value!r} in the generation config and cannot be applied: {error}"
            ) from error
    return tuple(built)


def _refuse_unsupported(config: GenerationConfig, *, greedy: bool) -> None:
    refused = _UNSUPPORTED if greedy else _UNSUPPORTED | _UNSUPPORTED_WARPERS
    for attribute, neutral in refused.items():
        value = getattr(config, attribute, None)
        if value is not None and value not in neutral:
            raise UsageError(
                f"{attribute} is {value!r} in the generation config, which speculative decoding cannot "
                "honour: remove it, or use transformers' generate."
            )


def _always(_value: Any, _context: _Context) -> bool:
    return True


def _is_true(value: Any, _context: _Context) -> bool:
    return value is True


def _is_positive(value: Any, _context: _Context) -> bool:
    return bool(value > 0)


def _is_not_one(value: Any, _context: _Context) -> bool:
    return bool(value != 1.0)


def _is_below_one(value: Any, _context: _Context) -> bool:
    return bool(value < 1.0)


def _is_cutoff(value: Any, _context: _Context) -> bool:
    return bool(0.0 < value < 1.0)


def _delays_eos(value: Any, context: _Context) -> bool:
    return bool(value > 0) and context.eos is not None


def _min_length_counts(value: Any, context: _Context) -> bool:
    # As in ``generate``, min_new_tokens takes the place of min_length.
    return _delays_eos(value, context) and context.config.min_new_tokens is None


def _max_length(context: _Context) -> int:
    if context.config.max_new_tokens is not None:
        return context.prompt_length + int(context.config.max_new_tokens)
    if context.config.max_length is None:
        raise ValueError("forced_eos_token_id needs max_new_tokens or max_length in the generation config")
    return int(context.config.max_length)


def _decay(value: Any, context: _Context) -> Any:
    if context.eos is None:
        raise ValueError("a length penalty needs a token that ends the text, and none is known")
    return hf.ExponentialDecayLengthPenalty(value, context.eos, context.prompt_length)


class _ByPrompt:
    """A processor made of the prompt, once it is known; of a decoder-only model the prompt is what it encodes."""

    def __init__(self, make: Callable[[Tensor], Callable[[Tensor, Tensor], Tensor]], prompt_length: int) -> None:
        make(torch.zeros(1, 1, dtype=torch.int64))  # wrong arguments are told now
        self._make, self._prompt_length = make, prompt_length
        self._made: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._made is None:
            self._made = self._make(input_ids[:, : self._prompt_length])
        return self._made(input_ids, scores)


def _encoder_penalty(value: Any, context: _Context) -> Any:
    return _ByPrompt(lambda ids: hf.EncoderRepetitionPenaltyLogitsProcessor(value, ids), context.prompt_length)


def _encoder_ngrams(value: Any, context: _Context) -> Any:
    return _ByPrompt(lambda ids: hf.EncoderNoRepeatNGramLogitsProcessor(value, ids), context.prompt_length)


def _suppress_at_begin(value: Any, context: _Context) -> Any:
    forced_first = context.prompt_length <= 1 and context.config.forced_bos_token_id is not None
    begin = context.prompt_length + int(forced_first)
    return hf.SuppressTokensAtBeginLogitsProcessor(value, begin, device=context.device)


_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "guidance_scale": (1, 1.0),
    "watermarking_config": (),
    "constraints": (),
    "force_words_ids": (),
}
"""Attribute -> values that change nothing."""

_UNSUPPORTED_WARPERS: dict[str, tuple[object, ...]] = {"top_h": ()}
"""The same for what applies to a law only."""

_HISTORY = (
    _Entry("sequence_bias", _always, lambda v, _: hf.SequenceBiasLogitsProcessor(sequence_bias=v)),
    _Entry("encoder_repetition_penalty", _is_not_one, _encoder_penalty),
    _Entry("repetition_penalty", _is_not_one, lambda v, _: hf.RepetitionPenaltyLogitsProcessor(v)),
    _Entry("no_repeat_ngram_size", _is_positive, lambda v, _: hf.NoRepeatNGramLogitsProcessor(v)),
    _Entry("encoder_no_repeat_ngram_size", _is_positive, _encoder_ngrams),
    _Entry("bad_words_ids", _always, lambda v, c: hf.NoBadWordsLogitsProcessor(v, c.eos)),
    _Entry("min_length", _min_length_counts, lambda v, c: hf.MinLengthLogitsProcessor(v, c.eos, device=c.device)),
    _Entry(
        "min_new_tokens",
        _delays_eos,
        lambda v, c: hf.MinNewTokensLengthLogitsProcessor(c.prompt_length, v, c.eos, device=c.device),
    ),
    _Entry("forced_bos_token_id", _always, lambda v, _: hf.ForcedBOSTokenLogitsProcessor(v)),
    _Entry(
        "forced_eos_token_id",
        _always,
        lambda v, c: hf.ForcedEOSTokenLogitsProcessor(_max_length(c), v, device=c.device),
    ),
    _Entry("remove_invalid_values", _is_true, lambda _v, _c: hf.InfNanRemoveLogitsProcessor()),
    _Entry("exponential_decay_length_penalty", _always, _decay),
    _Entry("suppress_tokens", _always, lambda v, c: hf.SuppressTokensLogitsProcessor(v, device=c.device)),
    _Entry("begin_suppress_tokens", _always, _suppress_at_begin),
    # Last before the law instead of after the warpers: a shift by a constant changes no law, and greedy
    # decoding has no warpers.
    _Entry("renormalize_logits", _is_true, lambda _v, _c: hf.LogitNormalization()),
)

_WARPERS = (
    _Entry("typical_p", _is_below_one, lambda v, _: hf.TypicalLogitsWarper(mass=v)),
    _Entry("epsilon_cutoff", _is_cutoff, lambda v, _: hf.EpsilonLogitsWarper(epsilon=v)),
    _Entry("eta_cutoff", _is_cutoff, lambda v, c: hf.EtaLogitsWarper(epsilon=v, device=c.device)),
)
