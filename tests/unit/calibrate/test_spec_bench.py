from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.byte_tokenizer import byte_tokenizer

from selfspec_calibrate.interleave import Block
from selfspec_calibrate.measurement import MeasuredPrompt, RunMeasurement
from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.spec_bench import CONVERSATION, GROUPS, SpecBench, read_turns, spec_bench_groups
from selfspec_calibrate.trial_book import plan_key
from selfspec_runtime.errors import PromptFileError
from selfspec_runtime.plan import PLAIN
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Make it rhyme."]},
    {"question_id": 161, "category": "translation", "turns": ["Translate German to English: Guten Tag."]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["1 + 1?"], "reference": ["2"]},
]


def question_file(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    path = folder / "question.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or QUESTIONS), encoding="utf-8")
    return path


def run(*, tokens: int, decode_s: float, first_s: float = 0.5, rounds: int = 4) -> RunMeasurement:
    stats = AcceptanceStats(num_rounds=rounds, num_emitted_tokens=tokens - 1)
    return RunMeasurement(
        arm="a",
        prompt_id="p",
        kind="k",
        num_tokens=tokens - 1,
        decode_s=decode_s,
        time_to_first_token_s=first_s,
        stats=stats,
        seconds=PhaseSeconds(),
        token_ids=tuple(range(tokens)),
    )


def prompt(name: str, kind: str) -> MeasuredPrompt:
    return MeasuredPrompt(name, kind, (1,))


def test_all_turns_of_a_question_are_found_by_its_first_prompt(tmp_path: Path) -> None:
    path = question_file(tmp_path)
    prompts = read_prompts(path).prompts
    turns = read_turns(path, prompts)
    assert [turns[each.id] for each in prompts] == [tuple(question["turns"]) for question in QUESTIONS]


def test_a_file_that_is_not_spec_bench_s_is_refused(tmp_path: Path) -> None:
    path = question_file(tmp_path, [*QUESTIONS, {"category": "cooking", "turns": ["How long?"]}])
    with pytest.raises(PromptFileError, match="'cooking' is none of Spec-Bench's"):
        read_turns(path, read_prompts(path).prompts)


def test_the_second_turn_holds_the_model_s_own_first_answer() -> None:
    tokenizer = byte_tokenizer()
    answer = run(tokens=3, decode_s=1.0)
    said = tuple(tokenizer("Roses", add_special_tokens=False)["input_ids"])
    block = Block({plan_key(PLAIN): [RunMeasurement(**{**vars(answer), "token_ids": said})]})
    bench = SpecBench({"p": ("Write a poem.", "Make it rhyme.")}, tokenizer)
    following = bench.follow_up(prompt("p", "writing"), block)
    assert following is not None
    assert (following.prompt_id, following.kind) == ("p#2", "writing")
    text = tokenizer.decode(list(following.token_ids))
    assert [text.index(part) for part in ("Write a poem.", "Roses", "Make it rhyme.")] == sorted(
        text.index(part) for part in ("Write a poem.", "Roses", "Make it rhyme.")
    )
    assert bench.follow_up(following, block) is None
    assert bench.follow_up(prompt("q", "qa"), block) is None
    assert SpecBench(bench.turns, tokenizer, max_prompt_tokens=4).follow_up(prompt("p", "writing"), block) is None


def test_speed_is_averaged_over_questions_and_their_ratio_taken() -> None:
    plain = [
        (prompt("a", "qa"), [run(tokens=10, decode_s=9.5), run(tokens=10, decode_s=9.5)]),
        (prompt("b", "qa"), [run(tokens=40, decode_s=9.5)]),
    ]
    plan = [
        (prompt("a", "qa"), [run(tokens=10, decode_s=4.5), run(tokens=10, decode_s=4.5)]),
        (prompt("b", "qa"), [run(tokens=40, decode_s=7.5)]),
    ]
    group, overall = spec_bench_groups(plain, plan)
    # 10 and 40 tokens in 10 s each are 1 and 4 tokens/s; the plan takes 5 and 8 s, which is 2 and 5.
    assert (group.group, group.num_questions) == ("Question Answering", 2)
    assert (group.plain_tokens_per_s, group.tokens_per_s) == pytest.approx((2.5, 3.5))
    assert group.speedup == pytest.approx(1.4)
    assert overall.group == "Overall"
    assert overall.speedup == group.speedup


def test_turns_of_a_question_count_as_one() -> None:
    turns = [("w", 5.0), ("w#2", 3.0)]
    plain = [(prompt(name, "writing"), [run(tokens=8, decode_s=seconds)]) for name, seconds in turns]
    (group, _) = spec_bench_groups(plain, plain)
    assert (group.group, group.num_questions) == (CONVERSATION, 1)
    assert group.plain_tokens_per_s == pytest.approx(16 / 9)


def test_accepted_tokens_are_those_of_a_verification_with_its_own() -> None:
    runs = [
        (prompt("a", "rag"), [run(tokens=9, decode_s=1.0, rounds=2)]),
        (prompt("b", "rag"), [run(tokens=5, decode_s=1.0, rounds=4)]),
    ]
    group = spec_bench_groups(runs, runs)[0]
    assert group.mean_accepted_tokens == pytest.approx(12 / 6)


def test_there_are_six_groups() -> None:
    assert len(set(GROUPS.values())) == 6
    runs = [(prompt(kind, kind), [run(tokens=5, decode_s=1.0)]) for kind in GROUPS]
    groups = spec_bench_groups(runs, runs)
    assert [group.num_questions for group in groups] == [8, 1, 1, 1, 1, 1, 13]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
def test_turns_are_read_as_the_prompts_are(tmp_path: Path, encoding: str, packed: bool) -> None:
    """Other line ends within a text, blank lines, byte order marks and gzip."""
    rows = [{"category": "qa", "turns": [f"One\u2028two\u0085three {n}", f"second {n}"]} for n in range(3)]
    data = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(encoding)
    path = tmp_path / "question.jsonl"
    path.write_bytes(gzip.compress(data) if packed else data)
    prompts = read_prompts(path).prompts
    turns = read_turns(path, prompts)
    assert [turns[each.id] for each in prompts] == [tuple(row["turns"]) for row in rows]


def test_the_second_turn_is_rendered_as_the_first_one_is() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    answer = RunMeasurement(
        **{**vars(run(tokens=3, decode_s=1.0)), "token_ids": tuple(tokenizer("Roses")["input_ids"])}
    )
    bench = SpecBench({"p": ("One", "Two")}, tokenizer, system="Be brief.", template_kwargs={"mood": "calm"})
    following = bench.follow_up(prompt("p", "writing"), Block({plan_key(PLAIN): [answer]}))
    assert following is not None
    text = tokenizer.decode(list(following.token_ids))
    assert "calm<system>Be brief.<user>One<assistant>Roses<user>Two" in text
