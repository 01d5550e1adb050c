"""The split into prompts that are searched on and prompts that the verdict is measured on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

from selfspec_calibrate.prompts.prompt import Prompt
from selfspec_runtime.errors import UsageError


def split_held_out(
    prompts: Sequence[Prompt], *, fraction: float = 0.5, seed: int = 0
) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts within each kind, by a hash of their content.

    The order of the file does not matter, and one more prompt moves at most one other prompt across.
    A kind with two or more prompts is on both sides. The only prompt of its kind is searched on; but where
    every kind has a single prompt, the kinds are split as if they were one, so that something is held out.

    Args:
        prompts: The prompts, each content once.
        fraction: Share of each kind that is held out, rounded down, strictly between 0 and 1.
        seed: Another seed gives another split.

    Returns:
        The search prompts and the held-out prompts. In both lists the kinds are interleaved in proportion, so
        that a beginning of the list is a fair sample of it.

    Raises:
        UsageError: The fraction is not between 0 and 1.
    """
    if not 0.0 < fraction < 1.0:
        raise UsageError(f"The held-out fraction is {fraction}. Give a number between 0 and 1, such as 0.5.")
    groups = _groups(prompts, seed)
    search: list[list[Prompt]] = []
    held_out: list[list[Prompt]] = []
    for group in groups:
        count = _held_out_count(len(group), fraction)
        held_out.append(group[:count])
        search.append(group[count:])
    return _interleave(search), _interleave(held_out)


def _groups(prompts: Iterable[Prompt], seed: int) -> list[list[Prompt]]:
    ordered = sorted(prompts, key=lambda prompt: _rank(prompt, seed))
    kinds = sorted({prompt.kind for prompt in ordered})
    if len(kinds) == len(ordered):
        return [ordered]
    return [[prompt for prompt in ordered if prompt.kind == kind] for kind in kinds]


def _rank(prompt: Prompt, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{prompt.id}".encode()).hexdigest()


def _held_out_count(size: int, fraction: float) -> int:
    # A product such as 0.1 * 30 falls just short of the whole number that is meant.
    wanted = math.floor(size * fraction + 1e-9)
    return 0 if size < 2 else min(max(wanted, 1), size - 1)


def _interleave(groups: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    placed = [
        ((index + 0.5) / len(group), number, prompt)
        for number, group in enumerate(groups)
        for index, prompt in enumerate(group)
    ]
    return [prompt for *_, prompt in sorted(placed, key=lambda entry: entry[:2])]
