"""Kernels that are wrong on purpose are rejected by the statistics that the shipped ones pass.

Each is a copy of the kernels with one line changed, or the shipped ones launched with something wrong. Texts are few,
because the interpreter is slow; so each fault is shown on a small model on which it shows clearly.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.support import interpreter
from tests.support.acceptance_suite import FALSE_ALARM, joint_p_value, markov_model
from tests.support.kernel_scheme import (
    DraftReportsAnotherTemperature,
    DraftReportsNoLaw,
    GreedyAboveTemperatureZero,
    KernelScheme,
    TargetWithoutTemperature,
    mutated,
    shipped,
)

from selfspec_runtime.sampling import SamplingSettings

pytest.importorskip("triton")

Change = tuple[str, str, int]
DRAW = "draw_kernels"


class World(NamedTuple):
    """A model, settings and how much to decode."""

    vocab_size: int
    temperature: float
    seed: int
    spread: float
    num_draft_tokens: int = 1
    num_texts: int = 100


CHANGES: dict[str, tuple[str, list[Change], World]] = {
    "no residual": (DRAW, [("tl.maximum(target - draft, 0.0)", "target", 1)], World(3, 0.7, 11, 1.0, 2)),
    "the acceptance number reused for the residual": (
        DRAW,
        [("row * 0, _RESIDUAL)", "row * 0, _ACCEPT)", 1)],
        World(4, 0.5, 3, 3.0),
    ),
    "the draft shares the residual's noise": (
        DRAW,
        [("tl.load(round_start), _DRAFT)", "tl.load(round_start) * 0, _RESIDUAL)", 1)],
        World(3, 0.7, 3, 3.0, 2, 220),
    ),
    "the draft shares the acceptance noise": (
        DRAW,
        [("tl.load(round_start), _DRAFT)", "tl.load(round_start) * 0, _ACCEPT)", 1)],
        World(3, 0.7, 9, 3.0),
    ),
    "the bonus from a residual": (
        DRAW,
        [
            (
                "tl.load(block.draft_ids + row, mask=row < block.num_drafted, other=-1)",
                "tl.load(block.draft_ids + tl.minimum(row, block.num_drafted - 1))",
                1,
            )
        ],
        World(4, 0.5, 5, 3.0),
    ),
    "the residual of the next draft row": (
        DRAW,
        [
            ("block.draft.laws + row *", "block.draft.laws + (row + 1) *", 1),
            ("block.draft.logits + row *", "block.draft.logits + (row + 1) *", 1),
        ],
        World(3, 0.5, 1, 1.0),
    ),
    "no temperature at all": ("tiles", [("tl.div_rn(logits, temperature)", "logits", 1)], World(4, 0.5, 7, 3.0)),
    "one token more than top-k": (
        "law_kernels",
        [("tl.maximum(tl.load(settings + _TOP_K), 1.0)", "tl.load(settings + _TOP_K) + 1.0", 1)],
        World(4, 0.5, 7, 3.0),
    ),
}  # fmt: skip
LAUNCHES = {
    TargetWithoutTemperature: World(4, 0.5, 7, 3.0),
    DraftReportsAnotherTemperature: World(4, 0.5, 11, 1.0, 2),
    GreedyAboveTemperatureZero: World(3, 0.7, 9, 3.0),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where kernels run: on a CPU in Triton's interpreter."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if request.param == "cpu":
        interpreter.require()
    return str(request.param)


def _p_value(scheme: type[KernelScheme], world: World, kit: object) -> float:
    model = markov_model(world.vocab_size, seed=world.seed, spread=world.spread)
    asked = SamplingSettings(world.temperature, top_k=world.vocab_size - 1)
    return joint_p_value(
        scheme(model, asked, kit),  # type: ignore[arg-type]
        num_draft_tokens=world.num_draft_tokens,
        num_texts=world.num_texts,
        num_tokens=2,
    )


@pytest.mark.parametrize("fault", CHANGES)
def test_a_wrong_kernel_is_rejected(fault: str, device: str, tmp_path: Path) -> None:
    file, changes, world = CHANGES[fault]
    kit = mutated(tmp_path, f"kernels_{list(CHANGES).index(fault)}_{device}", file, changes, device=device)
    assert _p_value(KernelScheme, world, kit) < FALSE_ALARM


@pytest.mark.parametrize("scheme", LAUNCHES)
def test_a_wrong_launch_is_rejected(scheme: type[KernelScheme], device: str) -> None:
    assert _p_value(scheme, LAUNCHES[scheme], shipped(device)) < FALSE_ALARM


@pytest.mark.parametrize("world", [World(3, 0.7, 11, 1.0, 2), World(4, 0.5, 5, 3.0)])
def test_the_shipped_kernels_pass(world: World, device: str) -> None:
    assert _p_value(KernelScheme, world, shipped(device)) > FALSE_ALARM


def test_a_law_that_is_not_reported_costs_nothing_but_tokens(device: str) -> None:
    assert _p_value(DraftReportsNoLaw, World(3, 0.7, 11, 1.0, 2), shipped(device)) > FALSE_ALARM


def test_a_copy_without_changes_passes_too(device: str, tmp_path: Path) -> None:
    kit = mutated(tmp_path, f"kernels_unchanged_{device}", DRAW, [], device=device)
    assert _p_value(KernelScheme, World(4, 0.5, 7, 3.0, 1, 60), kit) > FALSE_ALARM
