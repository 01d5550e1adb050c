"""Spec-Bench's questions, and its own definition of speed (Xia et al. 2401.07851).

Its definition differs from the one used elsewhere: prompts' time is in it, and speeds, not times, are averaged. Both
are given side by side.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from selfspec_calibrate.comparison import SpecBenchGroup
from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_calibrate.prompts.prompt import Message
from selfspec_calibrate.prompts.source import read_source
from selfspec_calibrate.prompts.template import render_messages
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.errors import PromptFileError
from selfspec_runtime.plan import PLAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from selfspec_calibrate.interleave import Block
    from selfspec_calibrate.measurement import RunMeasurement
    from selfspec_calibrate.prompts.prompt import Prompt

CONVERSATION = "Multi-turn Conversation"
GROUPS: dict[str, str] = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), CONVERSATION
    ),
    "translation": "Translation",
    "summarization": "Summarization",
    "qa": "Question Answering",
    "math_reasoning": "Mathematical Reasoning",
    "rag": "Retrieval-augmented Generation",
}
OVERALL = "Overall"
TURN_MARK = "#"

PromptRuns = tuple[MeasuredPrompt, "list[RunMeasurement]"]


@dataclass(frozen=True)
class SpecBench:
    """The later turns of questions that have several.

    Attributes:
        turns: By the id of the first turn's prompt all turns of the question.
        tokenizer: The model's.
        max_prompt_tokens: Prompts that are longer do not fit; None for no limit.
        system: System turn before every conversation, as before the first turns; None for none.
        template_kwargs: Further variables for the chat template, as for the first turns.
    """

    turns: Mapping[str, tuple[str, ...]]
    tokenizer: PreTrainedTokenizerBase
    max_prompt_tokens: int | None = None
    system: str | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)

    def follow_up(self, prompt: MeasuredPrompt, block: Block) -> MeasuredPrompt | None:
        """The next turn after the model's own answer to this one, or None.

        Only the second turn is ever asked, as Spec-Bench's questions have no more.
        """
        turns = self.turns.get(prompt.prompt_id, ())
        if len(turns) < 2:
            return None
        answer = block.runs[plan_key(PLAIN)][0].token_ids
        said = str(self.tokenizer.decode(list(answer), skip_special_tokens=True))
        ids = self._rendered(turns[0], said, turns[1])
        if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
            return None
        return MeasuredPrompt(f"{prompt.prompt_id}{TURN_MARK}2", prompt.kind, ids)

    def _rendered(self, *turns: str) -> tuple[int, ...]:
        """Token ids of a conversation that begins and ends with the user."""
        said = [Message(("user", "assistant")[place % 2], turn) for place, turn in enumerate(turns)]
        messages = [Message("system", self.system), *said] if self.system else said
        return render_messages(messages, self.tokenizer, template_kwargs=self.template_kwargs).token_ids


def read_turns(path: Path, prompts: Sequence[Prompt]) -> dict[str, tuple[str, ...]]:
    """Reads all turns of Spec-Bench's ``question.jsonl``.

    Args:
        path: The file.
        prompts: What the prompt reader made of its first turns.

    Raises:
        PromptFileError: A category is none of Spec-Bench's.
    """
    lines = dict(read_source(path).lines())
    unknown = sorted({prompt.kind for prompt in prompts} - GROUPS.keys())
    if unknown:
        message = (
            f"{path}: the category {unknown[0]!r} is none of Spec-Bench's. Give its question.jsonl, or use --prompts "
            "for other files."
        )
        raise PromptFileError(message)
    return {prompt.id: _turns(lines[prompt.line]) for prompt in prompts}


def _turns(line: bytes) -> tuple[str, ...]:
    return tuple(str(turn) for turn in json.loads(line).get("turns", ()))


def spec_bench_groups(plain: Sequence[PromptRuns], plan: Sequence[PromptRuns]) -> tuple[SpecBenchGroup, ...]:
    """The groups' rows, then all questions together.

    Args:
        plain: Runs of plain decoding by prompt; a question's turns are prompts of their own.
        plan: Runs of the plan on the same prompts.
    """
    rows = []
    for group in (*dict.fromkeys(GROUPS.values()), OVERALL):
        ours, theirs = (_questions(runs, group) for runs in (plan, plain))
        if ours:
            rows.append(_group(group, plain=theirs, plan=ours))
    return tuple(rows)


def _questions(runs: Sequence[PromptRuns], group: str) -> list[list[RunMeasurement]]:
    """Runs of a group's questions, all turns of a question together."""
    found: dict[str, list[RunMeasurement]] = defaultdict(list)
    for prompt, own in runs:
        if group in (OVERALL, GROUPS.get(prompt.kind)):
            found[prompt.prompt_id.partition(TURN_MARK)[0]] += own
    return list(found.values())


def _group(group: str, *, plain: list[list[RunMeasurement]], plan: list[list[RunMeasurement]]) -> SpecBenchGroup:
    plain_speed, speed = fmean(map(_tokens_per_s, plain)), fmean(map(_tokens_per_s, plan))
    stats = [run.stats for question in plan for run in question]
    rounds = sum(each.num_rounds for each in stats)
    return SpecBenchGroup(
        group=group,
        num_questions=len(plan),
        plain_tokens_per_s=plain_speed,
        tokens_per_s=speed,
        speedup=speed / plain_speed,
        mean_accepted_tokens=sum(each.num_emitted_tokens for each in stats) / rounds if rounds else 1.0,
    )


def _tokens_per_s(question: list[RunMeasurement]) -> float:
    tokens = sum(len(run.token_ids) for run in question)
    return tokens / sum(run.decode_s + run.time_to_first_token_s for run in question)
