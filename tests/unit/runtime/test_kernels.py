"""The kernels give the reference's tokens for the same seeds, on every size, block width, filter and odd row.

Without a GPU they run in Triton's interpreter, with one the same tests run on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interpreter
from tests.support.kernel_scheme import Kit, shipped
from torch import Tensor

from selfspec_runtime.acceptance import (
    Verdict,
    greedy_accept,
    match_accept,
    rejection_accept,
    sample_token,
    shared_token,
)
from selfspec_runtime.kernels import layout
from selfspec_runtime.law import greedy_tokens, token_probs
from selfspec_runtime.noise import Stream, uniform_scalar
from selfspec_runtime.sampling import SamplingSettings

pytest.importorskip("triton")

NAN, INF = float("nan"), float("inf")
START = 1_000
GRID = [
    SamplingSettings(1.0),
    SamplingSettings(0.7, top_k=4),
    SamplingSettings(1.3, top_p=0.8),
    SamplingSettings(0.8, top_k=12, top_p=0.9, min_p=0.02),
]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def kit(request: pytest.FixtureRequest) -> Kit:
    """The shipped kernels where they can run."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        return shipped("cuda")
    interpreter.require()
    return shipped("cpu")


def _block(size: int, num_drafted: int, *, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits of a target ``[g + 1, size]``, and of a draft that resembles it."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(num_drafted + 1, size, generator=generator) * 2
    return (target + torch.randn(num_drafted + 1, size, generator=generator)).to(dtype), target.to(dtype)


def _drawn(kit: Kit, draft: Any, num_drafted: int, *, seed: int, tile: int) -> list[int]:
    rows = [kit.verdicts.LawRows(draft.logits[i : i + 1], draft.laws[i : i + 1]) for i in range(num_drafted)]
    where = {"seed": kit.number(seed), "round_start": kit.number(START), "tile": tile}
    return [int(kit.verdicts.draft_token(row, position=kit.number(START + i), **where)) for i, row in enumerate(rows)]


def _rejection(kit: Kit, ids: list[int], draft: Any, target: Any, *, seed: int, tile: int) -> list[int]:
    block = torch.tensor(ids, dtype=torch.long, device=kit.device), draft, target
    where = {"seeds": kit.number(seed), "first_position": kit.number(START), "tile": tile}
    verdict: list[int] = kit.verdicts.rejection_verdict(*block, **where).tolist()
    return verdict


def _expected(ids: list[int], draft_probs: Tensor | None, target_probs: Tensor, seed: int) -> list[int]:
    block = torch.tensor(ids, dtype=torch.long), draft_probs, target_probs
    return _listed(rejection_accept(*block, seed=seed, first_position=START))


def _listed(verdict: Verdict) -> list[int]:
    return [verdict.num_accepted, verdict.token_id, 0]


ROUNDS = [
    *((GRID[0], num_drafted, 16) for num_drafted in (0, 1, 2, 3, 7, 15)),
    *((GRID[1], num_drafted, 64) for num_drafted in (2, 15)),
    (GRID[2], 1, 16),
    (GRID[3], 3, 64),
]
"""Settings, drafted tokens and tile; searches take the interpreter long, so they are few and on one tile."""


@pytest.mark.parametrize(("asked", "num_drafted", "tile"), ROUNDS)
def test_a_round_of_rejection_sampling_is_the_references(
    kit: Kit, asked: SamplingSettings, num_drafted: int, tile: int
) -> None:
    draft_logits, target_logits = _block(37, num_drafted, seed=num_drafted)
    draft, target = kit.rows(draft_logits, asked, tile=tile), kit.rows(target_logits, asked, tile=tile)
    draft_probs, target_probs = token_probs(draft_logits, asked), token_probs(target_logits, asked)
    seen = set()
    for seed in (1, 2**63 + 5) if num_drafted > 3 else range(4):
        ids = _drawn(kit, draft, num_drafted, seed=_signed(seed), tile=tile)
        noise = [uniform_scalar(seed, START + i, Stream.DRAFT, salt=START) for i in range(num_drafted)]
        assert ids == [sample_token(draft_probs[i], u) for i, u in enumerate(noise)]
        for rows, probs in ((draft, draft_probs[:num_drafted]), (None, None)):
            verdict = _rejection(kit, ids, rows, target, seed=_signed(seed), tile=tile)
            assert verdict == _expected(ids, probs, target_probs, seed)
            seen.add(tuple(verdict))
    assert len(seen) > 1


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.mark.parametrize("asked", GRID[::3], ids=SamplingSettings.describe)
def test_a_round_in_match_mode_is_the_references(kit: Kit, asked: SamplingSettings) -> None:
    draft_logits, logits = _block(37, 3, seed=4)
    target, draft = (kit.rows(rows, asked, tile=64) for rows in (logits, draft_logits))
    probs = token_probs(logits, asked)
    for seed in range(4):
        where = {"seeds": kit.number(seed), "first_position": kit.number(START), "tile": 64}
        best = kit.verdicts.shared_best(target, **where)
        tokens = [shared_token(row, seed=seed, position=START + i) for i, row in enumerate(probs)]
        assert kit.verdicts.tokens_of(best).tolist() == tokens
        ids = kit.verdicts.tokens_of(kit.verdicts.shared_best(draft, **where))[:3]
        assert kit.verdicts.prefix_verdict(ids, best, target.laws).tolist() == _listed(
            match_accept(ids.cpu(), torch.tensor(tokens))
        )


@pytest.mark.parametrize("num_drafted", [0, 1, 4, 16])
def test_a_greedy_round_is_the_references(kit: Kit, num_drafted: int) -> None:
    # Few distinct values, so that most rows have ties.
    logits = (_block(50, num_drafted, seed=9)[1] / 2).round().bfloat16()
    best = kit.verdicts.largest_best(logits.to(kit.device), tile=16)
    tokens = greedy_tokens(logits)
    assert kit.verdicts.tokens_of(best).tolist() == tokens.tolist()
    for wrong in {0, num_drafted // 2, num_drafted}:
        ids = tokens[:num_drafted].clone()
        ids[wrong : wrong + 1] += 1
        verdict = kit.verdicts.prefix_verdict(ids.to(kit.device), best).tolist()
        assert verdict == _listed(greedy_accept(ids, tokens))
        assert verdict[0] == wrong


SIZES = [(1, 16), (2, 16), (16, 16), (17, 16), (8_193, 4_096), (151_936, 1 << 16)]


@pytest.mark.parametrize(
    ("size", "tile", "asked"),
    [*((*size, GRID[0]) for size in SIZES), (8_193, 1_024, GRID[0]), *((*size, GRID[1]) for size in SIZES)],
)
def test_every_vocabulary_gives_the_references_tokens(kit: Kit, size: int, tile: int, asked: SamplingSettings) -> None:
    draft_logits, target_logits = _block(size, 1, seed=size, dtype=torch.bfloat16)
    draft, target = (kit.rows(logits, asked, tile=tile) for logits in (draft_logits, target_logits))
    draft_probs, target_probs = (token_probs(logits, asked) for logits in (draft_logits, target_logits))
    for seed in range(2):
        ids = _drawn(kit, draft, 1, seed=seed, tile=tile)
        assert ids == [sample_token(draft_probs[0], uniform_scalar(seed, START, Stream.DRAFT, salt=START))]
        assert _rejection(kit, ids, draft, target, seed=seed, tile=tile) == _expected(
            ids, draft_probs[:1], target_probs, seed
        )
    best = kit.verdicts.shared_best(target, seeds=kit.number(3), first_position=kit.number(START), tile=tile)
    shared = [shared_token(row, seed=3, position=START + i) for i, row in enumerate(target_probs)]
    assert kit.verdicts.tokens_of(best).tolist() == shared
    greedy = kit.verdicts.tokens_of(kit.verdicts.largest_best(target.logits, tile=tile))
    assert greedy.tolist() == greedy_tokens(target_logits).tolist()


def test_blocks_of_sixteen_rows_over_a_large_vocabulary(kit: Kit) -> None:
    asked, tile = GRID[0], 1 << 16
    draft_logits, target_logits = _block(151_936, 15, seed=5, dtype=torch.bfloat16)
    draft, target = (kit.rows(logits, asked, tile=tile) for logits in (draft_logits, target_logits))
    draft_probs, target_probs = (token_probs(logits, asked) for logits in (draft_logits, target_logits))
    ids = [sample_token(draft_probs[i], uniform_scalar(8, START + i, Stream.DRAFT, salt=START)) for i in range(15)]
    assert _rejection(kit, ids, draft, target, seed=8, tile=tile) == _expected(ids, draft_probs[:15], target_probs, 8)


def test_laws_depend_neither_on_the_tile_nor_on_the_rows_beside(kit: Kit) -> None:
    asked = GRID[3]
    logits = _block(300, 1, seed=3)[1]
    wide, narrow = (kit.rows(logits, asked, tile=tile).laws for tile in (512, 128))
    alone = kit.rows(logits[1:2], asked, tile=128).laws
    heads = layout.LAW_HEAD - 1
    assert torch.equal(wide[:, :heads], narrow[:, :heads])
    assert torch.equal(alone[0, :heads], narrow[1, :heads])
    assert torch.equal(alone[0, layout.LAW_HEAD :], narrow[1, layout.LAW_HEAD :])
    assert torch.equal(narrow[:, layout.LAW_HEAD :].sum(dim=1), wide[:, layout.TOTAL_AT])


TIED = [2.0, 1.0, 2.0, 1.0, 0.0, 1.0, -1.0, 1.0]
EQUAL = [0.0] * 8
EDGE_ROWS = [TIED, EQUAL, [0.0, -0.0] * 4, [-INF] * 7 + [3.0], [1.0, *[-INF] * 6, 1.0], [88.0, -88.0] * 4, [1e-38] * 8]


@pytest.mark.parametrize(
    ("asked", "tile"),
    [
        (SamplingSettings(1.0, top_k=1), 8),
        (SamplingSettings(1.0, top_k=3), 4),
        (SamplingSettings(1.0, top_k=8), 8),
        (SamplingSettings(1.0, top_k=100), 8),
        (SamplingSettings(1.0, top_p=0.5), 4),
        (SamplingSettings(1.0, top_p=0.75), 8),
        (SamplingSettings(1.0, top_p=0.999), 8),
        (SamplingSettings(1.0, top_p=1e-9), 8),
        (SamplingSettings(1.0, top_k=4, top_p=0.6), 8),
        (SamplingSettings(1.0, min_p=0.5), 4),
    ],
)
def test_the_law_keeps_what_the_references_law_keeps_at_every_edge(
    kit: Kit, asked: SamplingSettings, tile: int
) -> None:
    logits = torch.tensor(EDGE_ROWS)
    laws = kit.rows(logits, asked, tile=tile).laws.cpu()
    expected = token_probs(logits, asked)
    for row, law in enumerate(laws):
        weights = _weights(logits[row], law.tolist())
        # Weights are multiples of 2**-44 of the largest: what is far below that has none.
        assert (weights > 0).tolist() == (expected[row] > 1e-13).tolist()
        assert torch.allclose(weights / weights.sum(), expected[row].double(), atol=1e-6)
        assert float(weights.sum()) == pytest.approx(float(law[layout.TOTAL_AT]), rel=1e-6)


def _weights(scores: Tensor, law: list[int]) -> Tensor:
    """What a law says of scores at temperature 1, without a kernel; float64."""
    bits = torch.where(scores == 0, 0.0, scores).numpy().view(np.int32).astype(np.int64)
    keys = torch.from_numpy(np.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    ids = torch.arange(scores.shape[0])
    threshold = law[layout.THRESHOLD_AT]
    kept = (keys > threshold) | ((keys == threshold) & (ids >= law[layout.CUT_AT]))
    ratios = (scores - scores.max()).exp()
    smallest = float(np.int64(law[layout.MIN_RATIO_AT]).astype(np.int32).view(np.float32))
    return torch.where(kept & (ratios >= smallest), (ratios.double() * 2**44).floor(), 0.0)


BROKEN = [[NAN, 1.0, 2.0, 0.0, 1.0], [INF, 1.0, 2.0, 0.0, 1.0], [-INF] * 5, [1.0, -NAN, 2.0, 0.0, INF]]


@pytest.mark.parametrize(
    ("broken", "asked"),
    [*((row, GRID[0]) for row in BROKEN), *((row, SamplingSettings(0.8, top_k=2, top_p=0.9)) for row in BROKEN[:2])],
)
def test_rows_that_are_no_law(kit: Kit, broken: list[float], asked: SamplingSettings) -> None:
    sound = [0.5, 1.0, -1.0, 0.0, 0.25]
    draft_logits, target_logits = torch.tensor([broken]), torch.tensor([sound, sound])
    draft, target = kit.rows(draft_logits, asked, tile=8), kit.rows(target_logits, asked, tile=8)
    draft_probs = token_probs(draft_logits, asked, degenerate="uniform_reject")
    target_probs = token_probs(target_logits, asked)
    for seed in range(3):
        ids = _drawn(kit, draft, 1, seed=seed, tile=8)
        assert ids == [sample_token(draft_probs[0], uniform_scalar(seed, START, Stream.DRAFT, salt=START))]
        assert _rejection(kit, ids, draft, target, seed=seed, tile=8) == _expected(ids, draft_probs, target_probs, seed)
    # In the target it is an error, wherever the row stands, and the token is still one.
    for rows in ([broken, sound], [sound, broken]):
        verdict = _rejection(kit, [1], None, kit.rows(torch.tensor(rows), asked, tile=8), seed=1, tile=8)
        assert verdict[2] == 1
        assert 0 <= verdict[1] < 5


@pytest.mark.parametrize(("row", "is_broken"), [(BROKEN[0], 1), (BROKEN[1], 0), (BROKEN[2], 1), (BROKEN[3], 1)])
def test_greedy_rows_without_a_largest_logit(kit: Kit, row: list[float], is_broken: int) -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], row], device=kit.device)
    best = kit.verdicts.largest_best(logits, tile=4)
    verdict = kit.verdicts.prefix_verdict(torch.tensor([1], device=kit.device), best).tolist()
    assert verdict[0] == 1
    assert 0 <= verdict[1] < 5
    assert verdict[2] == is_broken


@pytest.mark.parametrize("outside", [-1, 37, 10**9])
@pytest.mark.parametrize("with_law", [True, False])
def test_ids_outside_of_the_vocabulary_are_rejected_and_the_target_speaks(
    kit: Kit, outside: int, with_law: bool
) -> None:
    asked = GRID[0]
    draft_logits, target_logits = _block(37, 2, seed=6)
    target, probs = kit.rows(target_logits, asked), token_probs(target_logits, asked)
    draft, draft_probs = kit.rows(draft_logits, asked), token_probs(draft_logits, asked)[:2]
    for seed in range(3):
        verdict = _rejection(kit, [outside, 1], draft if with_law else None, target, seed=seed, tile=16)
        assert verdict == _expected([outside, 1], draft_probs if with_law else None, probs, seed)
        assert verdict[0] == 0


def test_one_hot_laws_and_equal_laws(kit: Kit) -> None:
    asked = GRID[0]
    logits = torch.tensor([[-INF, 5.0, -INF]] * 2)
    rows = kit.rows(logits, asked, tile=4)
    for seed in range(3):
        assert _rejection(kit, [1], None, rows, seed=seed, tile=4) == [1, 1, 0]
        assert _rejection(kit, [2], None, rows, seed=seed, tile=4) == [0, 1, 0]
        assert _rejection(kit, [1], rows, rows, seed=seed, tile=4) == [1, 1, 0]
    same = kit.rows(_block(37, 3, seed=2)[1], asked)
    for seed in range(3):
        assert _rejection(kit, [0, 1, 2], same, same, seed=seed, tile=16)[0] == 3


@pytest.mark.parametrize(("asked", "tile"), [(GRID[0], 16), (GRID[3], 64)])
def test_a_draft_over_a_part_of_the_vocabulary(kit: Kit, asked: SamplingSettings, tile: int) -> None:
    wide, target_logits = _block(60, 3, seed=11)
    token_ids = torch.arange(1, 60, 2)
    index_of = torch.full((60,), -1, dtype=torch.int32)
    index_of[token_ids] = torch.arange(30, dtype=torch.int32)
    reduced = {"token_ids": token_ids.to(kit.device), "index_of": index_of.to(kit.device)}
    draft, target = kit.rows(wide[:, token_ids], asked, tile=tile, **reduced), kit.rows(target_logits, asked, tile=tile)
    narrow = token_probs(wide[:, token_ids], asked)
    probs = torch.zeros_like(wide).index_copy_(1, token_ids, narrow)
    for seed in range(4):
        ids = []
        for i in range(3):
            row = kit.verdicts.LawRows(draft.logits[i : i + 1], draft.laws[i : i + 1], **reduced)
            noise = {"seed": kit.number(seed), "round_start": kit.number(START), "position": kit.number(START + i)}
            ids.append(int(kit.verdicts.draft_token(row, **noise, tile=tile)))
        drawn = [uniform_scalar(seed, START + i, Stream.DRAFT, salt=START) for i in range(3)]
        assert ids == [sample_token(probs[i], u) for i, u in enumerate(drawn)]
        expected = _expected(ids, probs[:3], token_probs(target_logits, asked), seed)
        assert _rejection(kit, ids, draft, target, seed=seed, tile=tile) == expected
        where = {"seeds": kit.number(seed), "first_position": kit.number(START), "tile": tile}
        shared = kit.verdicts.tokens_of(kit.verdicts.shared_best(draft, **where)).tolist()
        assert shared == [shared_token(row, seed=seed, position=START + i) for i, row in enumerate(probs)]
    # A token that the draft has no column for cannot have been drawn: it is rejected like one of probability 0.
    assert _rejection(kit, [2], draft, target, seed=1, tile=tile)[0] == 0


def test_each_row_has_its_seed(kit: Kit) -> None:
    target = kit.rows(_block(37, 2, seed=6)[1], GRID[0])
    empty = torch.empty(0, dtype=torch.long, device=kit.device)
    tokens = []
    for row, seed in ((0, 5), (1, 6), (2, 7)):
        alone = kit.verdicts.LawRows(target.logits[row : row + 1], target.laws[row : row + 1])
        where = {"seeds": kit.number(seed), "first_position": kit.number(START + row), "tile": 16}
        tokens.append(kit.verdicts.rejection_verdict(empty, None, alone, **where).tolist()[1])
    where = {"seeds": torch.tensor([5, 6, 7], device=kit.device), "first_position": kit.number(START), "tile": 16}
    for num_accepted in range(3):
        # Equal laws accept everything, and -1 stands for nothing drafted: the target speaks with that row's noise.
        ids = torch.tensor([1] * num_accepted + [-1] * (2 - num_accepted), device=kit.device)
        verdict = kit.verdicts.rejection_verdict(ids, target, target, **where).tolist()
        assert verdict == [num_accepted, tokens[num_accepted], 0]
