"""Proves on the user's own model, with numbers, that selfspec's passes are the model's own.

Each check compares two ways to the same logits. A difference is a fault where it exceeds what the model's own
rounding does to the same text when transformers reads it in pieces instead of at once: nearly nothing in float32,
several per cent in bfloat16. Wherever both ways run passes of the same shapes, the difference is 0 in any dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.errors import WiringError
from selfspec_runtime.layer_skip import LayerSkipSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target

PROBE_TEXT = (
    "In 1969 three people flew to the Moon; the quick brown fox, however, stayed at home and wrote: "
    "def f(x): return 3.14 * x ** 2  # until the very end of the story, which nobody told."
)
MAX_TOKENS = 48
JUNK_TOKENS = 5

_FLOOR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
_CEILING = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, kw_only=True)
class ProbeCheck:
    """One comparison.

    Attributes:
        name: What must be equal, in words.
        difference: Root mean square of the logits' difference over that of the logits, or 0 and 1 for no and yes.
        tolerance: Largest difference that passes.
    """

    name: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; a NaN is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What was checked.

    Attributes:
        checks: The comparisons.
        num_tokens: Length of the text that was read.
        rounding: How much the model's own logits move when transformers reads the text in pieces.
    """

    checks: tuple[ProbeCheck, ...]
    num_tokens: int
    rounding: float


@torch.no_grad()
def probe(target: Target, tokenizer: PreTrainedTokenizerBase | None = None) -> ProbeReport:
    """Checks the wiring of a model; takes a dozen passes over a short text.

    Args:
        target: The model.
        tokenizer: Gives the ids of a sentence; without it ids are spread over the vocabulary.

    Raises:
        WiringError: A check failed; names each.
    """
    ids = _probe_ids(target, tokenizer)
    before = _module_tree(target)
    # The first pass may repack quantised weights, which is not to count as a difference.
    target.logits(ids, target.new_cache(), start=0)
    whole, pieces = _own_logits(target, ids), _own_logits_in_pieces(target, ids)
    rounding = relative_difference(pieces, whole)
    tolerance = _tolerance(target.dtype, rounding)
    checks = [
        ProbeCheck(name=name, difference=difference, tolerance=tolerance)
        for name, difference in _differences(target, ids, whole, pieces)
    ]
    checks.append(_skip_matters(target, ids))
    same_tree = _module_tree(target) == before
    checks.append(ProbeCheck(name="the model's modules are as before", difference=float(not same_tree), tolerance=0.0))
    failed = [check for check in checks if not check.passed]
    if failed:
        raise WiringError(_failure(target, failed))
    return ProbeReport(checks=tuple(checks), num_tokens=len(ids), rounding=rounding)


def relative_difference(first: Tensor, second: Tensor) -> float:
    """Root mean square of the difference over that of the second's logits about their mean.

    Args:
        first: Logits, ``[n, vocab]``.
        second: Logits of the same shape.
    """
    first, second = first.double(), second.double()
    spread = (second - second.mean(dim=-1, keepdim=True)).square().mean().sqrt()
    difference = (first - second).square().mean().sqrt()
    return float(difference / spread.clamp_min(torch.finfo(torch.float64).tiny))


def _probe_ids(target: Target, tokenizer: PreTrainedTokenizerBase | None) -> Tensor:
    limit = MAX_TOKENS if target.max_positions is None else min(MAX_TOKENS, target.max_positions - JUNK_TOKENS - 1)
    rows = int(target.parts.model.get_input_embeddings().weight.shape[0])
    ids = [(7919 * position) % rows for position in range(1, limit + 1)]
    if tokenizer is not None:
        ids = [i for i in tokenizer(PROBE_TEXT)["input_ids"] if i < rows][:limit] or ids
    return torch.tensor(ids, dtype=torch.long, device=target.device)


def _pieces(ids: Tensor) -> list[Tensor]:
    """A long piece, two single tokens, then the rest: a prompt, two plain steps and a verification."""
    half = max(len(ids) // 2, 1)
    ends = sorted({half, min(half + 1, len(ids)), min(half + 2, len(ids)), len(ids)})
    return [ids[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


def _own_logits(target: Target, ids: Tensor) -> Tensor:
    logits: Tensor = target.model(input_ids=ids[None], use_cache=False).logits[0]
    return logits


def _own_logits_in_pieces(target: Target, ids: Tensor) -> Tensor:
    """The model's own forward, with transformers' own cache."""
    rows: list[Tensor] = []
    name = target.parts.cache_argument
    arguments: dict[str, Any] = {}
    for piece in _pieces(ids):
        output = target.model(input_ids=piece[None], use_cache=True, **arguments)
        rows.append(output.logits[0])
        arguments = {name: output[name] if name in output else output.past_key_values}
    return torch.cat(rows)


def _differences(target: Target, ids: Tensor, whole: Tensor, pieces: Tensor) -> Iterator[tuple[str, float]]:
    full, _ = _read(target, ids)
    yield "a pass over the shared cache equals a pass without cache", relative_difference(full, whole)
    read = torch.cat(list(_read_in_pieces(target, ids)))
    yield "steps over the shared cache equal steps over transformers' cache", relative_difference(read, pieces)
    for exit_layer in sorted({1, target.num_layers // 2, target.num_layers - 1} - {0, target.num_layers}):
        name = f"an exit after layer {exit_layer}, resumed, equals the full pass"
        yield name, relative_difference(_exit_and_resume(target, ids, exit_layer), full)
    yield "going on after a rollback equals a fresh start", _rollback(target, ids)
    again, _ = _read(target, ids)
    yield "the full pass is the same again after all of these", relative_difference(again, full)


def _read(target: Target, ids: Tensor) -> tuple[Tensor, KVCache]:
    cache = target.new_cache()
    return target.logits(ids, cache, start=0), cache


def _read_in_pieces(target: Target, ids: Tensor) -> Iterator[Tensor]:
    cache, start = target.new_cache(), 0
    for piece in _pieces(ids):
        yield target.logits(piece, cache, start=start)
        start += len(piece)


def _exit_and_resume(target: Target, ids: Tensor, exit_layer: int) -> Tensor:
    cache = target.new_cache()
    program, out = target.programs.exit_at(exit_layer)
    target.advance(ids, cache, start=0, program=program)
    program, into = target.programs.resume_at(exit_layer)
    into.hidden = out.hidden
    return target.logits(ids, cache, start=0, program=program)


def _rollback(target: Target, ids: Tensor) -> float:
    first, rest = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    cache = target.new_cache()
    target.logits(first, cache, start=0)
    target.logits(rest.flip(0)[:JUNK_TOKENS], cache, start=len(first))
    after = target.logits(rest, cache, start=len(first))
    fresh = target.new_cache()
    target.logits(first, fresh, start=0)
    return relative_difference(after, target.logits(rest, fresh, start=len(first)))


def _skip_matters(target: Target, ids: Tensor) -> ProbeCheck:
    """A sub-layer that is left out changes the logits, unless the model gives it no weight in any layer."""
    full, _ = _read(target, ids)
    layers = range(target.num_layers)
    roles = {"attention": target.parts.attention_name, "mlp": target.parts.mlp_name}
    silent = [role for role, name in roles.items() if name and all(_same(target, ids, full, role, i) for i in layers)]
    name = f"leaving {' and '.join(silent) or 'a sub-layer'} out changes the logits"
    return ProbeCheck(name=name, difference=float(bool(silent)), tolerance=0.0)


def _same(target: Target, ids: Tensor, full: Tensor, role: str, layer: int) -> bool:
    skip = LayerSkipSet.model_validate({role: [layer]})
    cache = target.new_cache()
    return torch.equal(target.logits(ids, cache, start=0, program=target.programs.without(skip)), full)


def _module_tree(target: Target) -> list[tuple[str, int]]:
    return [(name, id(module)) for name, module in target.model.named_modules()]


def _tolerance(dtype: torch.dtype, rounding: float) -> float:
    low, high = (table.get(dtype, table[torch.bfloat16]) for table in (_FLOOR, _CEILING))
    # Rounding is a random walk; twice its size is not reached by chance on thousands of logits.
    return min(max(low, 2 * rounding), high)


def _failure(target: Target, failed: list[ProbeCheck]) -> str:
    lines = [
        f"  it is not so that {check.name} (difference {check.difference:.2g}, tolerance {check.tolerance:.2g})"
        for check in failed
    ]
    family = type(target.model).__name__
    head = f"The wiring probe failed for {family} in {str(target.dtype).removeprefix('torch.')}:"
    tail = "Plans would change what this model says. Please report this with the model's name; until then use generate."
    return "\n".join([head, *lines, tail])
