from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from selfspec.benchmark import CONTEXT_NEW_TOKENS, compare, default_context, fitting, scenarios
from selfspec_calibrate.measurement import MeasuredPrompt, RunMeasurement
from selfspec_runtime.errors import SelfspecError, UsageError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

PROMPTS = tuple(MeasuredPrompt(str(n), "chat", tuple(range(10 * n, 10 * n + 10))) for n in range(6))
SETTINGS = GenerationSettings()


@dataclass
class PacedArm:
    """Takes a given time per token, or fails."""

    name: str
    token_s: float
    error: SelfspecError | None = None
    fails_at: int = 0
    lengths: list[int] = field(default_factory=list)

    def measure(self, prompt: MeasuredPrompt, settings: GenerationSettings) -> RunMeasurement:
        self.lengths.append(settings.max_new_tokens)
        if self.error is not None and settings.max_new_tokens >= self.fails_at:
            raise self.error
        tokens = settings.max_new_tokens - 1
        seconds = tokens * self.token_s
        return RunMeasurement(
            arm=self.name,
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
            num_tokens=tokens,
            decode_s=seconds,
            time_to_first_token_s=len(prompt.token_ids) / 1000,
            stats=AcceptanceStats(
                num_rounds=tokens, num_draft_tokens=10, num_accepted_tokens=5, num_emitted_tokens=tokens
            ),
            seconds=PhaseSeconds(verify=seconds),
            token_ids=tuple(range(settings.max_new_tokens)),
        )


def run(arms: list[Any], **lengths: Any) -> list[dict[str, Any]]:
    measured = scenarios(
        PROMPTS, **{"pool": PROMPTS, "output_lengths": [16], "context_lengths": [], "limit": None, **lengths}
    )
    said: list[str] = []
    rows = list(compare(arms, measured, SETTINGS, say=said.append))
    assert len(said) == len(measured) * len(PROMPTS)
    return rows


def test_speedups_are_over_plain_with_an_interval() -> None:
    plain, plan = PacedArm("plain", 0.02), PacedArm("plan", 0.01)
    rows = run([plain, plan])
    assert [row["arm"] for row in rows] == ["plain", "plan"]
    assert rows[0]["speedup"] is None
    assert rows[0]["tokens_per_s"] == pytest.approx(50)
    assert rows[1]["tokens_per_s"] == pytest.approx(100)
    assert rows[1]["speedup"]["value"] == pytest.approx(2.0)
    assert rows[1]["speedup"]["low"] == pytest.approx(2.0)
    assert rows[1]["num_prompts"] == 6
    assert rows[1]["acceptance_rate"] == 0.5
    assert rows[1]["tokens_per_round"] == 1.0
    assert plan.lengths == [8, 8, *[16] * 12], "warmed up once, then twice per prompt"


def test_output_and_context_lengths_are_rows() -> None:
    rows = run([PacedArm("plain", 0.02)], output_lengths=[16, 24], context_lengths=[30])
    assert [(row["axis"], row["length"]) for row in rows] == [("output", 16), ("output", 24), ("context", 30)]
    assert rows[2]["time_to_first_token_s"] == pytest.approx(0.030)


def test_contexts_are_made_of_other_prompts_and_end_with_the_prompt_itself() -> None:
    scenario = scenarios(PROMPTS, pool=PROMPTS, output_lengths=[], context_lengths=[35], limit=None)[0]
    assert scenario.max_new_tokens == CONTEXT_NEW_TOKENS
    few = scenarios(PROMPTS[:1], pool=PROMPTS, output_lengths=[], context_lengths=[60], limit=None)[0]
    assert len(few.prompts[0].token_ids) == 60, "prompts that are not measured may stand before one that is"
    for prompt, made in zip(PROMPTS, scenario.prompts, strict=True):
        assert len(made.token_ids) == 35
        assert made.token_ids[-10:] == prompt.token_ids
        assert len(set(made.token_ids)) == 35, "nothing is repeated"


def test_an_arm_that_cannot_decode_the_model_is_reported_and_the_others_go_on() -> None:
    broken = PacedArm("broken", 0.01, SelfspecError("It cannot."))
    rows = run([PacedArm("plain", 0.02), broken, PacedArm("plan", 0.01)])
    assert [row["failure"] for row in rows] == [None, "It cannot.", None]
    assert "tokens_per_s" not in rows[1]
    assert broken.lengths == [8], "it is not asked again"


def test_an_arm_that_fails_later_loses_only_its_row() -> None:
    late = PacedArm("late", 0.01, SelfspecError("Too long."), fails_at=20)
    rows = run([PacedArm("plain", 0.02), late], output_lengths=[16, 24])
    assert [row["failure"] for row in rows] == [None, None, None, "Too long."]
    assert rows[1]["speedup"]["value"] == pytest.approx(2.0)


def test_an_arm_that_fails_on_a_prompt_is_not_asked_again_at_that_length() -> None:
    late = PacedArm("late", 0.01, SelfspecError("Too long."), fails_at=20)
    run([PacedArm("plain", 0.02), late], output_lengths=[24, 16])
    assert late.lengths == [8, 8, 24, *[16] * 12], "at another length it is"


def test_a_baseline_that_fails_ends_everything() -> None:
    with pytest.raises(SelfspecError, match="It cannot"):
        run([PacedArm("plain", 0.02, SelfspecError("It cannot."))])


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"A context of 50 tokens and a reply take 82 positions, .* holds 64"):
        scenarios(PROMPTS, pool=PROMPTS, output_lengths=[], context_lengths=[50], limit=64)
    with pytest.raises(UsageError, match=r"All prompts together have 60 tokens.*Give more prompts"):
        scenarios(PROMPTS, pool=PROMPTS, output_lengths=[], context_lengths=[61], limit=None)


def test_prompts_without_room_are_left_out() -> None:
    long = MeasuredPrompt("long", "chat", tuple(range(60)))
    assert fitting([long, *PROMPTS], output_lengths=[4, 16], limit=64) == list(PROMPTS)
    assert fitting([long], output_lengths=[], limit=64) == [long]
    with pytest.raises(UsageError, match="No prompt leaves room for 60 new tokens in the model's context of 64"):
        fitting(PROMPTS, output_lengths=[60], limit=64)


@pytest.mark.parametrize(("limit", "lengths"), [(None, [512]), (4096, [512]), (544, [512]), (512, [480]), (20, [])])
def test_the_default_context_fits_the_model(limit: int | None, lengths: list[int]) -> None:
    assert default_context(limit) == lengths
