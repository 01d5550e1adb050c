from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.planted_skips import PlantedSkips
from tests.support.planted_space import some_space

from selfspec_calibrate.seeds import skip_seeds
from selfspec_calibrate.sensitivity import Sensitivity
from selfspec_calibrate.skip_ranking import SkipRanking, skip_set_of
from selfspec_calibrate.skip_surrogate import DraftShares, SkipSurrogate
from selfspec_calibrate.textbook import best_num_draft_tokens, expected_speedup
from selfspec_runtime.layer_skip import LayerSkipSet

ATTENTION, MLP = 0.013, 0.02
SHARES = DraftShares(full=1.0, attention=ATTENTION, mlp=MLP, verify=1.0)


def surrogate_of(ranking: SkipRanking, max_skipped: int = 12) -> SkipSurrogate:
    return SkipSurrogate(ranking, SHARES, max_skipped=max_skipped, max_draft_tokens=8)


def speedup(skip: LayerSkipSet, loss: float) -> float:
    ratio = 1.0 - ATTENTION * len(skip.attention) - MLP * len(skip.mlp)
    acceptance = math.exp(-loss)
    return expected_speedup(acceptance, ratio, best_num_draft_tokens(acceptance, ratio) or 1)


def test_proposals_are_new_candidates_within_the_budget() -> None:
    space = some_space(10)
    surrogate = surrogate_of(space.ranking)
    scored = {skip: 0.01 * len(skip) for skip in skip_seeds(space) if len(skip) <= 12}
    for number in range(30):
        skip = surrogate.propose(scored, (1, number))
        assert skip is not None
        assert skip not in scored
        assert 1 <= len(skip) <= 12
        assert not {0, 9} & (skip.attention | skip.mlp)
        scored[skip] = 0.01 * len(skip)


def test_proposals_follow_from_the_seed_and_what_is_known() -> None:
    space = some_space(10)
    surrogate = surrogate_of(space.ranking)
    scored = {skip: 0.02 * len(skip) for skip in skip_seeds(space)[:6]}
    proposed = [surrogate.propose(scored, (7, number)) for number in (0, 0, 1, 2, 3)]
    assert proposed[0] == proposed[1]
    assert len(set(proposed)) > 1


def test_a_pair_that_hurts_together_is_learnt() -> None:
    """Two sub-layers are free alone and ruinous together; everything else is dear."""
    attention, mlp = [0.3] * 6, [0.3] * 6
    attention[2] = mlp[2] = mlp[4] = 0.999
    ranking = SkipRanking(Sensitivity(tuple(attention), tuple(mlp)), 1.0, 1.0)
    ruinous = {4, 5}

    def loss(skip: LayerSkipSet) -> float:
        out = {2 * layer for layer in skip.attention} | {2 * layer + 1 for layer in skip.mlp}
        return sum(ranking.losses[p] for p in out) + (2.0 if ruinous <= out else 0.0)

    surrogate = surrogate_of(ranking)
    scored = {skip: loss(skip) for skip in map(skip_set_of, ({4}, {5}, {4, 5}))}
    for number in range(12):
        proposed = surrogate.propose(scored, (0, number))
        assert proposed is not None
        scored[proposed] = loss(proposed)
    best = max(scored, key=lambda skip: speedup(skip, scored[skip]))
    assert best.describe() == "skip M2,4"


@pytest.mark.parametrize("seed", range(3))
def test_sixty_sets_come_within_four_per_cent_of_the_best_of_48_interacting_sub_layers(seed: int) -> None:
    problem = PlantedSkips(24, seed)

    def loss(skip: LayerSkipSet) -> float:
        return -math.log(problem.agreement(skip))

    space = some_space(24, sensitivity=problem.sensitivity, attention_s=ATTENTION, mlp_s=MLP)
    surrogate = SkipSurrogate(space.ranking, SHARES, max_skipped=space.max_skipped, max_draft_tokens=8)
    scored = {skip: loss(skip) for skip in skip_seeds(space)}
    while len(scored) < 60:
        proposed = surrogate.propose(scored, (seed, len(scored)))
        assert proposed is not None
        scored[proposed] = loss(proposed)
    optimum = max(speedup(skip, loss(skip)) for skip in problem.best_by_size.values() if len(skip))
    assert max(speedup(*pair) for pair in scored.items()) >= 0.96 * optimum


def test_nothing_is_proposed_once_every_set_is_known() -> None:
    ranking = SkipRanking(Sensitivity((0.5, 0.9, 0.5), (0.5, 0.8, 0.5)), 1.0, 1.0)
    assert ranking.candidates == (2, 3)
    every = [skip_set_of(s) for s in ({2}, {3}, {2, 3})]
    assert surrogate_of(ranking).propose(dict.fromkeys(every, 0.1), (0,)) is None


def test_perfect_sets_leave_finite_values() -> None:
    space = some_space(6)
    with np.errstate(all="raise"):
        proposed = surrogate_of(space.ranking).propose({space.ranking.ranked(2): 0.0}, (0,))
    assert proposed is not None
