"""When to give a trial up before it has gone through all prompts."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import optuna

from selfspec_calibrate.pair import PromptPair, speedup

if TYPE_CHECKING:
    from collections.abc import Mapping

HOPELESS_SHARE = 0.75
"""A plan that is so much slower than the best one, over at least one prompt of each kind, is given up."""

MIN_PROMPTS = 2

_P_VALUE = 0.1
_MIN_TESTED_PROMPTS = 4


def wilcoxon_pruner(num_kinds: int) -> optuna.pruners.BasePruner:
    """Optuna's test over prompts, paired with the best trial.

    Args:
        num_kinds: Kinds of prompt; no trial is stopped before it has seen one of each, since a draft that loses on
            chat may gain on code what it lost.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.pruners.WilcoxonPruner(p_threshold=_P_VALUE, n_startup_steps=max(_MIN_TESTED_PROMPTS, num_kinds))


def is_hopeless(pairs: Mapping[str, PromptPair], best: Mapping[str, PromptPair] | None, *, num_kinds: int) -> bool:
    """Whether a plan is so far behind that no test is needed.

    Args:
        pairs: What was measured of it so far, by prompt.
        best: The same of the best plan so far; None stands for plain decoding, whose speedup is 1.
        num_kinds: Kinds of prompt there are.
    """
    common = [pair for key, pair in pairs.items() if pair.is_timed and (best is None or key in best)]
    if len(common) < MIN_PROMPTS or len({pair.kind for pair in common}) < num_kinds:
        return False
    reached = speedup(common)
    to_reach = 1.0 if best is None else speedup(best[pair.prompt_id] for pair in common)
    return reached is not None and to_reach is not None and reached < HOPELESS_SHARE * max(to_reach, 1.0)
