"""Agreement on committed tokens is what the rule would have chosen there, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from selfspec_runtime.drafts.agreement import agreement
from selfspec_runtime.law import token_probs
from selfspec_runtime.processors import Processors, build_processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.sequence import Sequence

CPU = torch.device("cpu")
VOCAB_SIZE, START, COUNT = 7, 5, 30
IDS = torch.randint(0, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
LOGITS = torch.randn(COUNT, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
HISTORY = {"none": {}, "penalty": {"repetition_penalty": 1.8}, "bigrams": {"no_repeat_ngram_size": 2}}


def processors(history: str) -> Processors:
    config = GenerationConfig(**HISTORY[history])
    return build_processors(config, prompt_length=3, eos_token_ids=(), device=CPU)


def row_by_row(rule: Any) -> list[int]:
    """What the rule chooses at each row, knowing the text up to it."""
    chosen = []
    for row in range(COUNT):
        before = Sequence(IDS[: START + row + 1], device=CPU)
        chosen.append(rule.choose(LOGITS[row : row + 1], before, []).token_id)
    return chosen


@pytest.mark.parametrize("history", HISTORY)
@pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(0.9, mode="match", seed=4)], ids=str)
def test_a_choice_without_randomness_is_right_or_wrong(settings: SamplingSettings, history: str) -> None:
    rule = make_rule(settings, processors(history))
    said = IDS[START + 1 : START + 1 + COUNT]
    right = [ours == theirs for ours, theirs in zip(row_by_row(rule), said, strict=True)]
    assert 0 < sum(right) < COUNT
    measured = agreement(rule, LOGITS, Sequence(IDS, device=CPU), start=START)
    assert measured == pytest.approx(sum(right) / COUNT)


def test_a_history_changes_what_agrees() -> None:
    found = {
        history: agreement(
            make_rule(SamplingSettings(), processors(history)), LOGITS, Sequence(IDS, device=CPU), start=5
        )
        for history in HISTORY
    }
    assert found["bigrams"] != found["none"]


def test_of_a_law_it_is_the_probability_of_what_was_said() -> None:
    settings = SamplingSettings(0.7, top_k=4)
    probs = token_probs(LOGITS, settings)
    said = IDS[START + 1 : START + 1 + COUNT]
    expected = sum(float(probs[row, token]) for row, token in enumerate(said)) / COUNT
    measured = agreement(make_rule(settings, Processors()), LOGITS, Sequence(IDS, device=CPU), start=START)
    assert measured == pytest.approx(expected, abs=1e-6)
