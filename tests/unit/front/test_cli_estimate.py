from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from selfspec.cli.estimate import ACCEPTANCES, DRAFT_TOKENS, parse_ratio
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def test_one_setting_is_estimated(selfspec_command: CommandLine) -> None:
    run = selfspec_command("estimate", "-c", "0.5", "-a", "1.0", "-k", "4", "--format", "json")
    sheet = json.loads(run.out)["estimate"]
    assert sheet["rows"] == [
        {"acceptance": 1.0, "num_draft_tokens": 4, "tokens_per_round": 5.0, "speedup": 5 / 3, "is_best": False}
    ]
    assert "more than 2.00x" in sheet["notes"][0]


def test_without_a_setting_there_is_a_table_with_the_best(selfspec_command: CommandLine) -> None:
    rows = json.loads(selfspec_command("estimate", "-c", "8/30", "--format", "json").out)["estimate"]["rows"]
    assert len(rows) == len(ACCEPTANCES) * len(DRAFT_TOKENS)
    best = [row for row in rows if row["is_best"]]
    for row in best:
        same = [other["speedup"] for other in rows if other["acceptance"] == row["acceptance"]]
        assert row["speedup"] == max(same)


def test_a_dearer_verification_is_slower(selfspec_command: CommandLine) -> None:
    def speedup(*extra: str) -> float:
        run = selfspec_command("estimate", "-c", "0.3", "-a", "0.8", "-k", "3", "--format", "json", *extra)
        value: float = json.loads(run.out)["estimate"]["rows"][0]["speedup"]
        return value

    assert speedup("--verify-cost", "1.5") < speedup()


def test_a_free_draft_has_no_ceiling(selfspec_command: CommandLine) -> None:
    assert "more than ∞" in selfspec_command("estimate", "-c", "0").out


@pytest.mark.parametrize(("text", "ratio"), [("0.3", 0.3), ("8/32", 0.25)])
def test_ratios_are_read(text: str, ratio: float) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["a", "1/0", "8/", ""])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Write a number such as"):
        parse_ratio(text)


@pytest.mark.parametrize("arguments", [["-c", "-1"], ["-c", "0.3", "-a", "1.2"], ["-c", "0.3", "--verify-cost", "0"]])
def test_values_without_meaning_are_refused(selfspec_command: CommandLine, arguments: list[str]) -> None:
    run = selfspec_command("estimate", *arguments)
    assert run.code == 2
    assert "Error: " in run.err
