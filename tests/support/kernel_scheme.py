"""The acceptance suite's scheme by kernels: the shipped ones, or copies with one line changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.support.acceptance_suite import MarkovModel, Scheme
from tests.support.changed_kernels import changed_kernels
from torch import Tensor

from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.sampling import SamplingSettings

TILE = 16


@dataclass(frozen=True)
class Kit:
    """One build of the kernels, and where they run.

    Attributes:
        row_law: Module of that name.
        verdicts: Module of that name.
        device: ``cpu`` for the interpreter, or ``cuda``.
    """

    row_law: ModuleType
    verdicts: ModuleType
    device: str

    def rows(self, logits: Tensor, settings: SamplingSettings, *, tile: int = TILE, **reduced: Tensor) -> Any:
        """Rows with their laws."""
        module, logits = self.row_law, logits.to(self.device)
        filters = {"top_k": module.has_top_k(settings), "top_p": module.has_top_p(settings)}
        params = module.law_params(settings, device=self.device)
        return self.verdicts.LawRows(logits, module.row_laws(logits, params, tile=tile, **filters), **reduced)

    def number(self, value: int) -> Tensor:
        """One int64 on the device."""
        return torch.tensor([value], device=self.device)


def shipped(device: str) -> Kit:
    """The kernels as they are shipped."""
    from selfspec_runtime.kernels import row_law, verdicts

    return Kit(row_law, verdicts, device)


def mutated(folder: Path, name: str, file: str, changes: Sequence[tuple[str, str, int]], *, device: str) -> Kit:
    """A copy of the kernels in which texts of one file are replaced.

    Args:
        folder: Where to put the copy.
        name: Name of the copy, a new one each time.
        file: Name of the file without ``.py``.
        changes: Old text, new text, and how often the old one must occur.
        device: Where the kernels run.
    """
    wanted = ("row_law", "verdicts")
    return Kit(*changed_kernels(folder, name, file=file, changes=changes, modules=wanted), device)


class KernelScheme(Scheme):
    """Rejection mode by kernels.

    Args:
        model: Its states are the last tokens.
        settings: Not greedy.
        kit: The kernels.
    """

    def __init__(self, model: MarkovModel, settings: SamplingSettings, kit: Kit) -> None:
        super().__init__(model, settings)
        self.kit = kit
        self.draft = kit.rows(model.draft_logits, settings)
        self.target = kit.rows(model.target_logits, settings)
        self.reported = self.draft

    def propose(self, state: int, *, seed: int, position: int, round_start: int) -> int | None:
        drawn = self.kit.verdicts.draft_token(
            self._at(self.draft, [state]),
            seed=self.kit.number(seed),
            position=self.kit.number(position),
            round_start=self.kit.number(round_start),
            tile=TILE,
        )
        return int(drawn)

    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        # One row more than drafted tokens, so that a kernel that reads one too many reads something wrong.
        reported = None if self.reported is None else self._at(self.reported, states)
        verdict = self.kit.verdicts.rejection_verdict(
            torch.tensor(drafted, dtype=torch.long, device=self.kit.device),
            reported,
            self._at(self.target, states),
            seeds=self.kit.number(seed),
            first_position=self.kit.number(position),
            tile=TILE,
        )
        num_accepted, token_id, is_broken = verdict.tolist()
        assert not is_broken
        return Verdict(num_accepted, token_id)

    def _at(self, rows: Any, states: list[int]) -> Any:
        return self.kit.verdicts.LawRows(rows.logits[states], rows.laws[states])


class TargetWithoutTemperature(KernelScheme):
    """The target's law is made with temperature 1."""

    def __init__(self, model: MarkovModel, settings: SamplingSettings, kit: Kit) -> None:
        super().__init__(model, settings, kit)
        self.target = kit.rows(model.target_logits, replace(settings, temperature=1.0))


class DraftReportsAnotherTemperature(KernelScheme):
    """Drafted tokens are judged by the law of another temperature than they were drawn with."""

    def __init__(self, model: MarkovModel, settings: SamplingSettings, kit: Kit) -> None:
        super().__init__(model, settings, kit)
        self.reported = kit.rows(model.draft_logits, replace(settings, temperature=1.4))


class DraftReportsNoLaw(KernelScheme):
    """Lossless, if wasteful."""

    def __init__(self, model: MarkovModel, settings: SamplingSettings, kit: Kit) -> None:
        super().__init__(model, settings, kit)
        self.reported = None


class GreedyAboveTemperatureZero(KernelScheme):
    """Blocks are decided by the likeliest tokens."""

    def decide(self, states: list[int], drafted: list[int], *, seed: int, position: int) -> Verdict:
        best = self.kit.verdicts.largest_best(self._at(self.target, states).logits, tile=TILE)
        ids = torch.tensor(drafted, dtype=torch.long, device=self.kit.device)
        num_accepted, token_id, _ = self.kit.verdicts.prefix_verdict(ids, best).tolist()
        return Verdict(num_accepted, token_id)
