"""Measured blocks in a file, so that final measurements survive an interruption as trials do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from selfspec_calibrate.interleave import Block, run_block
from selfspec_calibrate.measurement import RunMeasurement
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

if TYPE_CHECKING:
    from selfspec_calibrate.measurement import Arm, MeasuredPrompt
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.generation import GenerationSettings


@dataclass(frozen=True)
class BlockStore:
    """Runs blocks that it does not hold yet.

    Attributes:
        workspace: Where they are kept, or None to keep nothing.
        name: File in the workspace, for example ``verdict.json``.
    """

    workspace: Workspace | None = None
    name: str = "blocks.json"

    def block(
        self,
        arms: Sequence[Arm],
        prompt: MeasuredPrompt,
        settings: GenerationSettings,
        *,
        repeats: int = 1,
        middle: Sequence[Arm] = (),
        turn: int = 0,
    ) -> Block:
        """Takes the block from the file, or runs it as `run_block` does and stores it if nothing failed.

        Args:
            arms: The baseline first; their names must tell plans apart.
            prompt: The prompt.
            settings: How to generate.
            repeats: Mirrored blocks to run.
            middle: Arms that run once where a block turns round.
            turn: Tells blocks apart that are alike in everything else, so that the same prompt can be run again.
        """
        key = _key(arms, prompt, settings, repeats=repeats, middle=middle, turn=turn)
        blocks = self._read()
        if key in blocks:
            return Block({name: [_restored(run) for run in runs] for name, runs in blocks[key].items()})
        block = run_block(arms, prompt, settings, repeats=repeats, middle=middle)
        if self.workspace is not None and not block.failures:
            runs = {name: [asdict(run) for run in found] for name, found in block.runs.items()}
            self.workspace.write_json(self.name, {**blocks, key: runs})
        return block

    def holds(
        self, arms: Sequence[Arm], prompt: MeasuredPrompt, settings: GenerationSettings, *, repeats: int, turn: int
    ) -> bool:
        """Whether the file has this block."""
        return _key(arms, prompt, settings, repeats=repeats, middle=(), turn=turn) in self._read()

    def close(self, name: str) -> None:
        """Notes that nothing more is to be measured for a purpose: a rerun that is quicker must not go farther."""
        if self.workspace is not None:
            self.workspace.write_json(self.name, {**self._read(), _digest("closed", name): {}})

    def is_closed(self, name: str) -> bool:
        """Whether `close` was called for this purpose."""
        return _digest("closed", name) in self._read()

    def _read(self) -> dict[str, Any]:
        found = None if self.workspace is None else self.workspace.read_json(self.name)
        return dict(found or {})


def _key(
    arms: Sequence[Arm],
    prompt: MeasuredPrompt,
    settings: GenerationSettings,
    *,
    repeats: int,
    middle: Sequence[Arm],
    turn: int,
) -> str:
    names = [[arm.name for arm in group] for group in (arms, middle)]
    again = (turn,) if turn else ()
    return _digest(prompt.prompt_id, names, repeats, settings.max_new_tokens, settings.sampling, *again)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _restored(run: dict[str, Any]) -> RunMeasurement:
    nested = {
        "stats": AcceptanceStats(**run["stats"]),
        "seconds": PhaseSeconds(**run["seconds"]),
        "token_ids": tuple(run["token_ids"]),
    }
    return RunMeasurement(**{**run, **nested})
