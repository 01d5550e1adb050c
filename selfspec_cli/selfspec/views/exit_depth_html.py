"""A trace as HTML without script: the text coloured by depth, the rounds, the map, the counts, the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.depth_map import depth_map
from selfspec.views.elements import facts, joined, paragraph, percent, section, table
from selfspec.views.page import page
from selfspec.views.palette import DepthScale
from selfspec.views.round_strip import round_strip
from selfspec.views.style import STYLE
from selfspec.views.token_text import running, scrubbed, visible_html, with_whole_characters
from selfspec.views.trace_words import (
    FATE_WORDS,
    acceptance_by_place,
    depth_sentence,
    facts_of,
    headline,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selfspec_runtime.token_trace import TokenTrace

_FATE_CLASSES = {fate: f"ss-f{number}" for number, fate in enumerate(FATE_WORDS)}


def exit_depth_page(trace: TokenTrace) -> str:
    """A trace as a file of its own."""
    return page("Exit depth of a generation", exit_depth_html(trace))


def exit_depth_html(trace: TokenTrace) -> Markup:
    """A trace as a fragment with its own style sheet."""
    pieces = with_whole_characters([trace.piece(token) for token in trace.token_ids.tolist()])
    content = joined(
        (
            Markup("<h1>How deep the model had to go</h1>\n"),
            paragraph(headline(trace)),
            paragraph(depth_sentence(trace)),
            facts(facts_of(trace)),
            section("The text", legend(trace), _text(trace, pieces)),
            section("Rounds", round_strip(trace), _by_place(trace)),
            section("Layers by tokens", depth_map(trace)),
            _data_table(trace, pieces),
        )
    )
    return Markup('{}<div class="ss">\n{}</div>').format(STYLE, scrubbed(content))


def _text(trace: TokenTrace, pieces: list[str]) -> Markup:
    scale = DepthScale(trace.num_layers)
    spans = []
    for piece, fate, depth in zip(pieces, trace.fates, trace.settle_depth.tolist(), strict=True):
        kinds = f"ss-t {depth_class(scale, depth)} {_FATE_CLASSES[fate]}"
        title = f"{fate}, {_depth_words(depth, trace.num_layers)}"
        spans.append(Markup('<bdi class="{}" title="{}">{}</bdi>').format(kinds, title, running(piece)))
    return Markup('<div class="ss-text" dir="auto">{}</div>\n').format(joined(spans))


def depth_class(scale: DepthScale, depth: int) -> str:
    """Class of a token by its depth; ``ss-x`` where it never settled."""
    number = scale.bin_of(depth)
    return "ss-x" if number == scale.num_bins else f"ss-d{scale.index_of(number)}"


def _depth_words(depth: int, num_layers: int) -> str:
    return f"layer {depth}" if depth <= num_layers else "never settled"


def legend(trace: TokenTrace) -> Markup:
    """What colours and underlines mean; holds no text of a model."""
    return joined(
        (
            Markup('<ul class="ss-key" aria-label="Colours: layer after which the token is settled">{}</ul>').format(
                joined(_depth_keys(trace))
            ),
            Markup('<ul class="ss-key" aria-label="Underlines: how the token came about">{}</ul>\n').format(
                joined(_fate_keys(trace))
            ),
        )
    )


def _depth_keys(trace: TokenTrace) -> Iterator[Markup]:
    scale = DepthScale(trace.num_layers)
    yield Markup("<li>Settled after layer</li>")
    for number in range(scale.num_bins):
        first, last = scale.range_of(number)
        shown = str(first) if first == last else f"{first}–{last}"
        yield Markup('<li><span class="ss-t ss-d{}">{}</span></li>').format(scale.index_of(number), shown)
    if (trace.settle_depth > trace.num_layers).any():
        yield Markup('<li><span class="ss-t ss-x">never</span></li>')


def _fate_keys(trace: TokenTrace) -> Iterator[Markup]:
    present = set(trace.fates)
    for fate, words in FATE_WORDS.items():
        if fate in present:
            yield Markup('<li><span class="ss-t {}">{}</span> {}</li>').format(_FATE_CLASSES[fate], fate, words)


def _by_place(trace: TokenTrace) -> Markup:
    places = acceptance_by_place(trace)
    if not places:
        return Markup("")
    rows = [(str(n), f"{drafted:,}", f"{taken:,}", percent(taken / drafted)) for n, drafted, taken in places]
    return table(
        "Acceptance by place in the draft",
        ("Place", "Drafted", "Accepted", "Share"),
        rows,
        numeric=frozenset({0, 1, 2, 3}),
    )


def _data_table(trace: TokenTrace, pieces: list[str]) -> Markup:
    head = ("Token", "Id", "Round", "Fate", "Drafted by", "Draft", "Model", "Settled", "Rejected draft tokens")
    rows = table(
        "Every token, with the draft's and the model's probability of it at temperature 1",
        head,
        _rows(trace, pieces),
        numeric=frozenset({1, 2, 5, 6, 7}),
    )
    return Markup("<details><summary>All {:,} tokens as a table</summary>{}</details>\n").format(trace.num_tokens, rows)


def _rows(trace: TokenTrace, pieces: list[str]) -> Iterator[tuple[str | Markup, ...]]:
    for place, piece in enumerate(pieces):
        number, fate = int(trace.round_of[place]), trace.fates[place]
        each, depth = trace.rounds[number], int(trace.settle_depth[place])
        rejected = each.rejected_ids if fate == "corrected" else ()
        yield (
            visible_html(piece),
            str(trace.token_ids[place]),
            str(number),
            fate,
            each.origin if fate == "accepted" else "",
            percent(float(trace.draft_probs[place]), 1),
            percent(float(trace.target_probs[place]), 1),
            str(depth) if depth <= trace.num_layers else "never",
            joined(Markup("<del>{}</del> ").format(visible_html(trace.piece(token))) for token in rejected),
        )
