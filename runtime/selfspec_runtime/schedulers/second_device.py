"""A self-draft on a second device: a copy of the model there, and a cache of its own.

After each verification the target's new keys and values are copied over, so that the draft attends to what it would
attend to beside the target.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.drafts.passes import PassSource
from selfspec_runtime.errors import PlanError
from selfspec_runtime.schedulers.preparer import Preparer, Verification
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.drafts.source import RoundContext
    from selfspec_runtime.rules import AcceptanceRule


class SecondDevicePreparer(Preparer):
    """Drafts with passes of a copied model.

    Args:
        source: A source over the copy, whose program is run.
        num_draft_tokens: The most tokens that a round can draft.
        home: The target's device.
        copied_bytes: Memory of the copy's weights.
    """

    def __init__(self, source: PassSource, num_draft_tokens: int, *, home: torch.device, copied_bytes: int = 0) -> None:
        self._source, self._home = source, home
        self._target = source.target
        self.num_draft_tokens = num_draft_tokens
        self._copied_bytes = copied_bytes
        self.reset()

    @property
    def extra_bytes(self) -> int:
        """The copied weights, and what the source adds to them."""
        return self._copied_bytes + self._source.extra_bytes

    def refusal(self, rule: AcceptanceRule) -> str | None:
        """Processors that look at the text, and laws that only kernels can read, stay on their own device."""
        if not rule.processors.is_empty:
            return (
                "Nothing was drafted on the second device: this generation's logits processors look at the text, "
                "and they live on the first one."
            )
        draws_laws = not rule.settings.greedy and rule.settings.mode == "rejection"
        if draws_laws and self._target.device.type != self._home.type:
            return (
                f"Nothing was drafted on {self._target.device}: what its kernels draw from cannot be read on "
                f"{self._home}. Sample with --mode match, or draft on a device of the same kind."
            )
        return None

    def reset(self) -> None:
        """Forgets what was copied over."""
        self._cache: KVCache | None = None
        self._verification: Verification | None = None
        self._rows: torch.Tensor | None = None

    def synchronize(self, cache: KVCache) -> None:
        """Copies the keys and values of what was committed since the last time."""
        if self._cache is None:
            self._cache = self._target.new_cache(capacity=cache.capacity)
        done, length = self._cache.length, cache.length
        if length > done:
            self._cache.begin(done, length - done)
            for index in range(self._target.num_layers):
                keys, values = (held[:, :, done:].to(self._target.device) for held in cache.layer(index))
                self._cache.update(keys, values, index)
            self._cache.length = length

    def begin(self, verification: Verification) -> None:
        """One pass over the whole block tells what the draft would say after each of its tokens."""
        self._verification = verification
        self._rows = self._logits((), keep=len(verification.drafted) + 1, extra=verification.drafted)

    def next_tokens(self, num_accepted: int, number: int) -> list[int]:
        """What the draft itself finds likeliest, but for the token that it drafted there."""
        assert self._rows is not None
        assert self._verification is not None
        rejected = self._verification.drafted[num_accepted : num_accepted + 1]
        row = self._rows[num_accepted]
        likely = row.topk(min(number + 1, row.shape[0])).indices.tolist()
        return [token for token in likely if token not in rejected][:number]

    def draft_after(self, committed: tuple[int, ...], stopped: Callable[[], bool]) -> Draft | None:
        """One pass per token, as the source itself would draft."""
        verification = self._verification
        assert verification is not None
        draft = Draft(origin=self._source.origin)
        text = Sequence([*verification.text, *committed], device=self._target.device)
        controller, rule = verification.controller, verification.rule
        budget = min(controller.budget(), self.num_draft_tokens)
        while len(draft) < budget:
            if stopped():
                return None
            logits = self._logits(committed, keep=1, extra=tuple(draft.token_ids))
            choice = rule.choose(logits, text, draft.token_ids, wants_confidence=controller.needs_confidence)
            draft.append(choice.token_id, choice.probs)
            draft.num_passes += 1
            if not controller.wants_more(len(draft), choice.confidence):
                break
        return draft

    def cut(self, draft: Draft, context: RoundContext) -> Draft:
        """Cut to the budget, its laws on the target's device."""
        kept = min(len(draft), context.budget)
        probs = [None if law is None else law.to(context.sequence.tensor().device) for law in draft.probs[:kept]]
        return Draft(draft.token_ids[:kept], probs, origin=draft.origin, num_passes=draft.num_passes)

    def _logits(self, committed: tuple[int, ...], *, keep: int, extra: tuple[int, ...]) -> torch.Tensor:
        """``[keep, vocab]`` after the last committed token, an outcome's and some more.

        The first pass for an outcome takes in all of its tokens, later ones only the newest.
        """
        verification = self._verification
        assert verification is not None
        assert self._cache is not None
        block = (verification.text[-1], *committed, *extra)
        new = block if keep > 1 or not extra else block[-1:]
        start = len(verification.text) - 1 + len(block) - len(new)
        ids = torch.tensor(new, dtype=torch.long, device=self._target.device)
        return self._target.logits(ids, self._cache, start=start, program=self._source.program, keep=keep)


def copy_to(target: Target, device_name: str) -> Target:
    """A copy of the model on another device.

    Raises:
        PlanError: There is no such device, or it is the model's own.
    """
    device = _device(device_name)
    if device.type == target.device.type and (device.index or 0) == (target.device.index or 0):
        message = (
            f"Drafting ahead on {device_name} would share the model's own device, where both only slow each other "
            "down. Name another device, or leave the scheduler out."
        )
        raise PlanError(message)
    return Target(copy.deepcopy(target.model).to(device))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        message = (
            f"Drafting ahead needs a second device for a copy of the model, and {name} is not one of this machine. "
            "Leave the scheduler out, or draft ahead with a lookup, which needs none."
        )
        raise PlanError(message) from error
    return device
