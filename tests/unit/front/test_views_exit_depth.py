from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console
from tests.support.html_checks import assert_harmless, parsed, shown_text
from tests.support.traces import HOSTILE, made_up_trace

from selfspec.views.exit_depth_html import exit_depth_html, exit_depth_page
from selfspec.views.exit_depth_text import exit_depth_plain, exit_depth_text
from selfspec.views.token_text import running, visible, with_whole_characters
from selfspec_runtime.token_trace import TokenTrace


def printed(trace: TokenTrace, *, colour: bool = False, marks: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=colour, color_system="truecolor" if colour else None)
    console.print(exit_depth_text(trace, marks=marks))
    return file.getvalue()


@pytest.mark.parametrize("seed", range(3))
def test_hostile_tokens_do_nothing_and_are_all_there(seed: int) -> None:
    trace = made_up_trace(HOSTILE, seed=seed)
    html = exit_depth_page(trace)
    assert_harmless(html)
    text = shown_text(html)
    for piece in with_whole_characters(HOSTILE):
        assert running(piece) in text
        assert visible(piece) in text


def test_the_text_is_marked_token_by_token() -> None:
    trace = made_up_trace()
    tokens = [attributes for tag, attributes in parsed(str(exit_depth_html(trace))).seen if tag == "bdi"]
    marked = [each for each in tokens if (each.get("class") or "").startswith("ss-t")]
    assert len(marked) == trace.num_tokens
    for attributes, fate, depth in zip(marked, trace.fates, trace.settle_depth, strict=True):
        words = f"layer {depth}" if depth <= trace.num_layers else "never settled"
        assert attributes["title"] == f"{fate}, {words}"


def test_fates_differ_in_more_than_colour() -> None:
    html = str(exit_depth_html(made_up_trace([f"w{n}" for n in range(60)])))
    styles = dict(re.findall(r"\.ss-f(\d)\{[^}]*text-decoration-style:(\w+)", html))
    assert len(set(styles.values())) == len(styles) == 4


@pytest.mark.parametrize("seed", range(4))
def test_numbers_shown_are_the_runs_own(seed: int) -> None:
    trace = made_up_trace([f" w{n}" for n in range(50)], seed=seed)
    stats, text = trace.stats(), shown_text(exit_depth_page(trace))
    assert f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted" in text
    assert f"Rounds{stats.num_rounds}" in text
    assert f"Tokens per round{stats.mean_acceptance_length:.2f}" in text
    rows = re.findall(r'<th scope="row">(\d+)</th><td>(\d+)</td><td>(\d+)</td><td>\d+ %', exit_depth_page(trace))
    assert [int(taken) for _, _, taken in rows] == stats.num_accepted_tokens_per_pos
    assert sum(int(drafted) for _, drafted, _ in rows) == stats.num_draft_tokens


def paths_of(trace: TokenTrace) -> list[dict[str, str]]:
    """Classes and outlines: first those of the strip's squares, then those of the map's cells."""
    return [
        {"class": attributes["class"] or "", "d": attributes["d"] or ""}
        for tag, attributes in parsed(exit_depth_page(trace)).seen
        if tag == "path"
    ]


def test_the_strip_holds_every_drafted_and_committed_token() -> None:
    trace = made_up_trace([f" w{n}" for n in range(40)])
    squares = {path["class"]: path["d"].count("M") for path in paths_of(trace)[:3]}
    stats = trace.stats()
    assert squares["ss-a"] == stats.num_accepted_tokens
    assert squares["ss-b"] == stats.num_emitted_tokens - stats.num_accepted_tokens
    assert squares["ss-hollow"] == stats.num_draft_tokens - stats.num_accepted_tokens


def test_the_map_fills_exactly_the_cells_that_agree() -> None:
    trace = made_up_trace([f"w{n}" for n in range(30)])
    paths = {path["class"]: path["d"] for path in paths_of(trace)[3:]}
    cells = {kind: sum(int(width) // 13 for width in re.findall(r"h(\d+)v", d)) for kind, d in paths.items()}
    settled = np.arange(1, trace.num_layers + 1)[:, None] >= trace.settle_depth
    assert cells["ss-a"] == settled.sum()
    assert cells["ss-w"] == (trace.layers_agree & ~settled).sum()


def test_the_calibrated_exit_is_drawn_where_there_is_one() -> None:
    with_exit, without = made_up_trace(), made_up_trace(exit_layer=None)
    assert 'class="ss-exit"' in exit_depth_page(with_exit)
    assert 'class="ss-exit"' not in exit_depth_page(without)


def test_two_thousand_tokens_stay_under_a_megabyte() -> None:
    trace = made_up_trace([f" word{n}" for n in range(2000)], num_layers=30)
    assert len(str(exit_depth_html(trace)).encode()) < 1_000_000


@pytest.mark.parametrize("pieces", [("x",), ("x", "y")])
def test_the_shortest_traces_show(pieces: tuple[str, ...]) -> None:
    trace = made_up_trace(pieces, num_draft_tokens=0)
    assert_harmless(exit_depth_page(trace))
    assert "Nothing was drafted" in exit_depth_plain(trace)
    assert printed(trace)


def test_the_terminal_shows_hostile_tokens_as_they_are() -> None:
    trace = made_up_trace(HOSTILE)
    plain = printed(trace)
    assert "\x1b" not in plain
    assert "[red]bold[/red]" in plain
    assert "[/INST]" in plain
    assert not re.search(r"[\x00\u202e\u2066\ud83d]", plain)
    colourful = printed(trace, colour=True)
    assert "\x1b[" in colourful
    assert "␛[31m" in colourful


def test_without_colours_signs_tell_fates_apart() -> None:
    trace = made_up_trace([f"w{n}" for n in range(40)])
    corrected = [f"✗w{n}" for n, fate in enumerate(trace.fates) if fate == "corrected"]
    bonus = [f"+w{n}" for n, fate in enumerate(trace.fates) if fate == "bonus"]
    assert corrected
    assert bonus
    shown = printed(trace, marks=True)
    assert all(token in shown for token in (*corrected, *bonus))
    assert all(token in exit_depth_plain(trace) for token in (*corrected, *bonus))
