"""A trace for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from selfspec.views.palette import DepthScale
from selfspec.views.token_text import running, with_whole_characters
from selfspec.views.trace_words import FATE_WORDS, acceptance_by_place, depth_sentence, headline

if TYPE_CHECKING:
    from selfspec_runtime.token_trace import TokenTrace

_FATE_STYLES = {
    "first": "",
    "accepted": " underline",
    "corrected": " bold",
    "bonus": " underline2",
    "plain": " italic",
}
_FATE_MARKS = {"first": "", "accepted": "", "corrected": "✗", "bonus": "+", "plain": ""}
"""Signs before a token where a terminal shows no colours and no underlines."""


def exit_depth_text(trace: TokenTrace, *, marks: bool = False) -> Group:
    """The text coloured by depth and styled by fate, with a legend and the counts.

    Model text is only ever put into ``Text`` objects, never parsed as markup.

    Args:
        trace: The trace.
        marks: Whether to mark corrected and bonus tokens by signs too, for output without colours.
    """
    parts = [
        Text(headline(trace), style="bold"),
        Text(depth_sentence(trace)),
        Text(),
        _text(trace, marks=marks),
        Text(),
        _depth_legend(trace),
        _fate_legend(trace, marks=marks),
    ]
    places = _by_place(trace)
    return Group(*parts, *([places] if places is not None else []))


def exit_depth_plain(trace: TokenTrace) -> str:
    """The same as plain text, for a notebook's ``text/plain``."""
    places = acceptance_by_place(trace)
    shares = ", ".join(f"{taken}/{drafted}" for _, drafted, taken in places)
    lines = [headline(trace), depth_sentence(trace), f"Accepted by place in the draft: {shares}" if shares else ""]
    return "\n".join([*(line for line in lines if line), "", _text(trace, marks=True).plain])


def _text(trace: TokenTrace, *, marks: bool) -> Text:
    scale, text = DepthScale(trace.num_layers), Text()
    pieces = with_whole_characters([trace.piece(token) for token in trace.token_ids.tolist()])
    for piece, fate, depth in zip(pieces, trace.fates, trace.settle_depth.tolist(), strict=True):
        mark = _FATE_MARKS[fate] if marks else ""
        text.append(mark + running(piece), style=_colours(scale, scale.bin_of(depth)) + _FATE_STYLES[fate])
    return text


def _colours(scale: DepthScale, number: int) -> str:
    if number == scale.num_bins:
        return "reverse"
    return f"{scale.text_colour(number)} on {scale.colour(number)}"


def _depth_legend(trace: TokenTrace) -> Text:
    scale, text = DepthScale(trace.num_layers), Text("Settled after layer ")
    for number in range(scale.num_bins):
        first, last = scale.range_of(number)
        text.append(f" {first} " if first == last else f" {first}–{last} ", style=_colours(scale, number))
    if (trace.settle_depth > trace.num_layers).any():
        text.append(" never ", style="reverse")
    return text


def _fate_legend(trace: TokenTrace, *, marks: bool) -> Text:
    text, present = Text(), set(trace.fates)
    for fate, words in FATE_WORDS.items():
        if fate in present:
            text.append(f"{_FATE_MARKS[fate] if marks else ''}{fate}", style=_FATE_STYLES[fate].strip())
            text.append(f": {words}\n")
    text.rstrip()
    return text


def _by_place(trace: TokenTrace) -> Table | None:
    places = acceptance_by_place(trace)
    if not places:
        return None
    table = Table("Place in the draft", "Drafted", "Accepted", "Share", title=Text("Acceptance"), title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for place, drafted, taken in places:
        table.add_row(str(place), f"{drafted:,}", f"{taken:,}", f"{100 * taken / drafted:.0f} %")
    return table
