"""Every controller leaves the target's law as it is, also while it switches speculation off and on again.

Tokens are looked at after the controller has seen rounds enough to change its mind many times. The seeds are fixed;
had they been drawn at random, a right loop would fail any of these tests with a probability of at most `FALSE_ALARM`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, cast

import pytest
import torch
from tests.support.acceptance_suite import FALSE_ALARM, g_test
from tests.support.fake_target import PROMPT_END, VOCAB_SIZE, FakeTarget

from selfspec_runtime import rules
from selfspec_runtime.controllers.controller import Controller
from selfspec_runtime.controllers.costs import RoundCosts
from selfspec_runtime.controllers.fallback import FallbackController
from selfspec_runtime.decoder import Decoder, RunRecord
from selfspec_runtime.law import token_probs
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import StopConditions, Stopper
from selfspec_runtime.target import Target

COSTS = RoundCosts(draft_cost=0.35)
CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "num_draft_tokens": 3},
    "confidence": {"kind": "confidence", "num_draft_tokens": 3, "draft_confidence_threshold": 0.5},
    "adaptive_threshold": {"kind": "adaptive_threshold", "num_draft_tokens": 3, "threshold_step": 0.5},
    "accepted_length": {"kind": "accepted_length", "num_draft_tokens": 4, "average_weight": 0.5, "probe_interval": 2},
    "thompson": {"kind": "thompson", "num_draft_tokens": 4, "discount": 0.7},
}
SOURCE = {"kind": "early_exit", "exit_layer": 1}
PROMPT = [1, 2, 0, 3, 1, 2, 0, 1, PROMPT_END]
NUM_TEXTS = 300
FIRST, NUM_LOOKED_AT = 8, 2
"""The first token is 0 for certain; those looked at are the tokens 8 and 9 after it."""
THRESHOLD = FALSE_ALARM / len(CONTROLLERS)


@pytest.fixture(autouse=True)
def remembered_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes the law of each block of the table's rows once: it is a function of nothing else here."""
    laws: dict[tuple[int, bytes], torch.Tensor] = {}

    def remembered(logits: torch.Tensor, settings: SamplingSettings, **options: Any) -> torch.Tensor:
        key = (len(logits), logits.numpy().tobytes())
        if key not in laws:
            laws[key] = token_probs(logits, settings, **options)
        return laws[key]

    monkeypatch.setattr(rules, "token_probs", remembered)


def build(name: str) -> Controller:
    """A controller that loses patience after one bad round, and soon tries again."""
    entry = {**CONTROLLERS[name], "costs": COSTS.model_dump(), "fallback": False}
    inner = DraftPlan.model_validate({"controller": entry}).controller.build()
    return FallbackController(
        inner, COSTS, patience=0.6, probe_patience=0.3, max_overhead=1e9, min_interval=1, max_interval=3
    )


def make_decoder(controller: str) -> Decoder:
    target = cast("Target", FakeTarget())
    spec = DraftPlan.model_validate({"source": SOURCE}).source
    assert spec is not None
    return Decoder(target, spec.build(target, {}), build(controller))


def said(decoder: Decoder, seed: int, lengths: Counter[int]) -> list[int]:
    rule = make_rule(SamplingSettings(1.0, seed=seed), Processors())
    stopper = Stopper(StopConditions(max_new_tokens=FIRST + 8), None)
    sequence = Sequence(PROMPT, device=torch.device("cpu"))
    cache = decoder.target.new_cache(capacity=32)
    emitted: list[int] = []
    for outcome in decoder.run(sequence, cache, rule=rule, stopper=stopper, record=RunRecord()):
        lengths[len(outcome.draft)] += 1
        emitted += outcome.token_ids
        if len(emitted) >= FIRST + NUM_LOOKED_AT:
            break
    return emitted[FIRST : FIRST + NUM_LOOKED_AT]


def exact() -> dict[tuple[int, ...], float]:
    """The law of the tokens looked at, in float64."""
    steps = FakeTarget().table.double().softmax(dim=-1)
    before = torch.linalg.matrix_power(steps, FIRST)[0]
    pairs = itertools.product(range(VOCAB_SIZE), repeat=NUM_LOOKED_AT)
    return {(a, b): float(before[a] * steps[a, b]) for a, b in pairs}


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_the_law_is_the_targets_whatever_the_controller_learns(controller: str) -> None:
    decoder, lengths = make_decoder(controller), Counter[int]()
    counts = Counter(tuple(said(decoder, seed, lengths)) for seed in range(NUM_TEXTS))
    assert g_test(counts, exact()) > THRESHOLD
    assert lengths[0] > 1.5 * NUM_TEXTS, "besides the prompt's own round, speculation rests now and then"
    assert sum(count for length, count in lengths.items() if length) > NUM_TEXTS, "and is tried again"
