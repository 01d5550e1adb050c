from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from selfspec.cli.console import Terminal
from selfspec.cli.fitted_table import fitted
from selfspec.cli.sheet import Column, Sheet, as_json, as_markdown, milliseconds, number, percent, show_sheets

SHEET = Sheet(
    name="speeds",
    title="Speeds of [/INST]",
    columns=(
        Column(key="kind", title="kind", is_text=True),
        Column(key="speed", title="tok/s", write=number(1)),
    ),
    rows=({"kind": "[red]a|b", "speed": 12.345, "more": 1}, {"kind": "c", "speed": None}),
    notes=("A note [bold].",),
)


def test_markup_of_others_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_sheets((SHEET,), "table", Terminal())
    out = capsys.readouterr().out
    assert "Speeds of [/INST]" in out
    assert "[red]a|b" in out
    assert "A note [bold]." in out
    assert "12.3" in out


def test_markdown_is_a_table_with_escaped_bars() -> None:
    assert as_markdown(SHEET).splitlines() == [
        "**Speeds of [/INST]**",
        "",
        "| kind | tok/s |",
        "| :-- | --: |",
        "| [red]a\\|b | 12.3 |",
        "| c | – |",
        "",
        "A note [bold].",
    ]


def test_json_holds_raw_numbers_and_all_values() -> None:
    content = json.loads(as_json((SHEET,)))
    assert content["speeds"]["rows"] == [{"kind": "[red]a|b", "speed": 12.345, "more": 1}, {"kind": "c", "speed": None}]
    assert content["speeds"]["notes"] == ["A note [bold]."]


def test_a_pipe_gets_whole_cells(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "x" * 120
    sheet = Sheet(name="s", title="t", columns=(Column(key="a", title="a"),), rows=({"a": long},))
    show_sheets((sheet,), "table", Terminal())
    assert long in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (number(2, unit="x")(1.005), "1.00x"),
        (number(2)(math.inf), "∞"),
        (percent(0.623), "62%"),
        (milliseconds(0.1234), "123 ms"),
    ],
)
def test_numbers_are_written_for_people(written: str, text: str) -> None:
    assert written == text


WIDE_ROWS = [["chat", "1419.6", "1.03x [0.86, 1.23]", "5.74x"], ["all", "1393.2", "0.99x [0.89, 1.12]", "5.29x"]]
WIDE_TITLES = ["prompts", "plain tok/s", "speedup", "over transformers"]


@pytest.mark.parametrize("width", [24, 30, 40, 50, 60, 80, 120])
def test_words_stay_whole_at_any_width(width: int) -> None:
    out = io.StringIO()
    table = fitted(WIDE_TITLES, WIDE_ROWS, [True, False, False, False])
    Console(file=out, width=width, markup=False).print(table)
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    words = {word.strip(",") for word in shown.split()}
    cells = [cell for row in (WIDE_TITLES, *WIDE_ROWS) for cell in row]
    assert {word.strip(",") for cell in cells for word in cell.split()} <= words


def test_a_narrow_table_lies_on_its_side_with_whole_cells() -> None:
    out = io.StringIO()
    titles, rows = [*WIDE_TITLES, "draft/verify/host"], [[*row, "4/57/39 %"] for row in WIDE_ROWS]
    Console(file=out, width=62, markup=False).print(fitted(titles, rows, [True, *[False] * 4]))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "prompts chat all" in lines
    assert "speedup 1.03x [0.86, 1.23] 0.99x [0.89, 1.12]" in lines
