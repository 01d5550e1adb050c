"""A generation, token by token: where each came from, how likely it was, how deep the model had to go for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec_runtime.errors import UsageError
from selfspec_runtime.stats import AcceptanceStats
from selfspec_runtime.token_trace_store import load_trace, save_trace
from selfspec_runtime.trace_round import FATES, TraceRound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTrace:
    """``T`` generated tokens read after each of ``L`` layers; all probabilities are at temperature 1.

    Attributes:
        prompt_ids: Token ids of the prompt.
        token_ids: int32 ``[T]``, the generated ids, an ending one included.
        pieces: The text of every id in the trace, alone; bytes that are no character as ``⟨0xF0⟩``.
        rounds: The rounds, in order; the first holds the token that the prompt's own pass gave.
        layers_agree: bool ``[L, T]``: whether the model would already have said this token after layer l + 1,
            by its own final norm and head.
        top_ids: int32 ``[L, T, k]``, the likeliest tokens there, lowest id first among equals.
        top_probs: float16 ``[L, T, k]``, their probabilities.
        target_probs: float32 ``[T]``, the full model's probability of the token.
        text: The generated text.
        finish_reason: What ended the generation.
        plan: What drafted, in words.
        exit_layer: Layers that the plan's early exit runs, or None if it has none.
        num_draft_passes: Passes of the draft.
    """

    prompt_ids: tuple[int, ...]
    token_ids: NDArray[np.int32]
    pieces: Mapping[int, str]
    rounds: tuple[TraceRound, ...]
    layers_agree: NDArray[np.bool_]
    top_ids: NDArray[np.int32]
    top_probs: NDArray[np.float16]
    target_probs: NDArray[np.float32]
    text: str
    finish_reason: str
    plan: str
    exit_layer: int | None = None
    num_draft_passes: int = 0

    def __post_init__(self) -> None:
        """Checks that the parts belong together.

        Raises:
            UsageError: They do not.
        """
        layers, tokens = self.layers_agree.shape
        candidates = self.top_ids.shape[2:]
        fits = (
            self.token_ids.shape == self.target_probs.shape == (tokens,)
            and self.top_ids.shape == self.top_probs.shape == (layers, tokens, *candidates)
            and [r.start for r in self.rounds] == [0, *np.cumsum([r.num_tokens for r in self.rounds])][:-1]
            and sum(r.num_tokens for r in self.rounds) == tokens
        )
        if not fits:
            message = f"A trace of {tokens} tokens has parts of other lengths. Record it anew."
            raise UsageError(message)

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return int(self.layers_agree.shape[0])

    @property
    def num_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.token_ids)

    @cached_property
    def settle_depth(self) -> NDArray[np.int16]:
        """int16 ``[T]``: layers after which the model says this token and never another one any more.

        ``L + 1`` where even the full model's likeliest token is another: the token was sampled, a processor
        had a say, or two logits tie within the dtype's rounding.
        """
        disagree = ~self.layers_agree[::-1]
        settled = np.where(disagree.any(axis=0), disagree.argmax(axis=0), self.num_layers)
        return (self.num_layers + 1 - settled).astype(np.int16)

    @cached_property
    def fates(self) -> tuple[str, ...]:
        """For each token one of "first", "accepted", "corrected", "bonus", "plain"."""
        return tuple(fate for each in self.rounds for fate in each.fates())

    @cached_property
    def round_of(self) -> NDArray[np.int32]:
        """int32 ``[T]``, the round that committed each token."""
        return np.repeat(np.arange(len(self.rounds)), [r.num_tokens for r in self.rounds]).astype(np.int32)

    @cached_property
    def draft_probs(self) -> NDArray[np.float32]:
        """float32 ``[T]``, the draft's probability of accepted tokens; NaN elsewhere and for looked-up drafts."""
        probs = np.full(self.num_tokens, np.nan, dtype=np.float32)
        for each in self.rounds:
            accepted = each.accepted_probs
            probs[each.start : each.start + len(accepted)] = [math.nan if p is None else p for p in accepted]
        return probs

    def piece(self, token_id: int) -> str:
        """The text of one token."""
        return self.pieces.get(int(token_id), f"⟨{token_id}⟩")

    def stats(self) -> AcceptanceStats:
        """The counts of the run, from its rounds; the first token is not one of them."""
        stats = AcceptanceStats()
        for each in self.rounds[1:]:
            stats.record(
                drafted=each.num_drafted,
                accepted=each.num_accepted,
                emitted=each.num_tokens,
                draft_passes=0,
                depth=len(each.drafted_per_place),
            )
        stats.num_draft_passes = self.num_draft_passes
        return stats

    def to_dataframe(self) -> Any:
        """A pandas data frame with one row per token: text, id, round, fate, origin, probabilities, settle depth.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            message = "A data frame needs pandas, which is not installed. Run: pip install pandas"
            raise UsageError(message) from error
        return pandas.DataFrame(self.columns())

    def columns(self) -> dict[str, Any]:
        """The same as a dictionary of columns, each ``[T]``."""
        return {
            "text": [self.piece(token) for token in self.token_ids],
            "token_id": self.token_ids,
            "round": self.round_of,
            "fate": list(self.fates),
            "origin": [self.rounds[number].origin for number in self.round_of],
            "draft_prob": self.draft_probs,
            "target_prob": self.target_probs,
            "settle_depth": self.settle_depth,
        }

    def save(self, path: Path) -> None:
        """Writes the arrays as safetensors and the rest as JSON beside them, both or neither.

        Args:
            path: Either of the two files; the other one has the same name and its own ending.

        Raises:
            SelfspecError: The files cannot be written; older ones are unchanged.
        """
        arrays = {name: getattr(self, name) for name in ARRAYS}
        content = {
            "prompt_ids": list(self.prompt_ids),
            "pieces": {str(token): piece for token, piece in self.pieces.items()},
            "rounds": [each.model_dump(mode="json") for each in self.rounds],
            **{name: getattr(self, name) for name in SCALARS},
        }
        save_trace(path, content, arrays)

    @classmethod
    def load(cls, path: Path) -> TokenTrace:
        """Reads what :meth:`save` wrote.

        Raises:
            UsageError: A file is missing, broken, or not a trace.
        """
        return cls(**load_trace(path, ARRAYS))


ARRAYS = {
    "token_ids": "int32",
    "layers_agree": "bool",
    "top_ids": "int32",
    "top_probs": "float16",
    "target_probs": "float32",
}
SCALARS = ("text", "finish_reason", "plan", "exit_layer", "num_draft_passes")

__all__ = ["FATES", "TokenTrace", "TraceRound"]
