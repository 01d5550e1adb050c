"""Layers by tokens: where the model would already have said what it said."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from selfspec.views.elements import figure, joined, label, line, scrolling, svg
from selfspec.views.token_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from selfspec_runtime.token_trace import TokenTrace

MAX_TOKENS = 400
CELL_WIDTH, LEFT, LABELS = 13, 34, 78
_LABEL_CHARACTERS = 12


def depth_map(trace: TokenTrace) -> Markup:
    """The map as an inline picture, at most :data:`MAX_TOKENS` tokens wide."""
    shown = min(trace.num_tokens, MAX_TOKENS)
    height = max(6, min(12, 320 // trace.num_layers))
    bottom = trace.num_layers * height
    width = LEFT + shown * CELL_WIDTH
    picture = svg(
        width,
        bottom + LABELS,
        _described(trace),
        *_areas(trace, shown, height),
        Markup('<rect x="{}" y="0" width="{}" height="{}" class="ss-frame"/>').format(LEFT, shown * CELL_WIDTH, bottom),
        _layer_labels(trace.num_layers, height),
        _exit_line(trace, height, width),
        _token_labels(trace, shown, bottom),
        fit=False,
    )
    return figure(scrolling(picture, label="Map of layers by tokens"), _caption(trace, shown))


def _areas(trace: TokenTrace, shown: int, height: int) -> Iterator[Markup]:
    settled = _settled(trace)[:, :shown]
    fleeting = trace.layers_agree[:, :shown] & ~settled
    yield Markup('<path class="ss-a" d="{}"/>').format(_runs(settled, height))
    yield Markup('<path class="ss-w" d="{}"/>').format(_runs(fleeting, height))


def _settled(trace: TokenTrace) -> NDArray[np.bool_]:
    layers = np.arange(1, trace.num_layers + 1)[:, None]
    settled: NDArray[np.bool_] = layers >= trace.settle_depth
    return settled


def _runs(cells: NDArray[np.bool_], height: int) -> str:
    """One path over all true cells, a rectangle for each run; layer 1 is at the bottom."""
    num_layers = cells.shape[0]
    parts = []
    for layer in range(num_layers):
        start, y = 0, (num_layers - 1 - layer) * height
        for value, run in groupby(cells[layer].tolist()):
            length = len(list(run))
            if value:
                parts.append(f"M{LEFT + start * CELL_WIDTH} {y}h{length * CELL_WIDTH}v{height}h-{length * CELL_WIDTH}z")
            start += length
    return "".join(parts)


def _layer_labels(num_layers: int, height: int) -> Markup:
    wanted = sorted({1, num_layers, *range(5, num_layers - 1, 5)})
    return joined(label(LEFT - 5, (num_layers - n) * height + height, str(n), anchor="end") for n in wanted)


def _exit_line(trace: TokenTrace, height: int, width: float) -> Markup:
    if trace.exit_layer is None:
        return Markup("")
    y = (trace.num_layers - trace.exit_layer) * height
    return line((LEFT - 4, y), (width, y), "ss-exit")


def _token_labels(trace: TokenTrace, shown: int, bottom: int) -> Markup:
    return joined(
        Markup('<text class="ss-small" transform="translate({:g} {:g}) rotate(60)">{}</text>').format(
            LEFT + place * CELL_WIDTH + 3, bottom + 9, _short(trace.piece(token))
        )
        for place, token in enumerate(trace.token_ids[:shown].tolist())
    )


def _short(piece: str) -> str:
    """The beginning of a token; the table says how long it is."""
    cut = piece if len(piece) <= _LABEL_CHARACTERS else f"{piece[: _LABEL_CHARACTERS - 1]}…"
    return visible(cut)


def _described(trace: TokenTrace) -> str:
    agree = trace.layers_agree.mean(axis=1)
    middle = trace.num_layers // 2
    return (
        f"Layers by tokens. The model would already have said the token after layer {middle} for "
        f"{100 * agree[middle - 1]:.0f} % of the tokens, after layer {trace.num_layers} for {100 * agree[-1]:.0f} %. "
        "The table below holds the depth of every token."
    )


def _caption(trace: TokenTrace, shown: int) -> str:
    parts = ["Filled: the model says this token here and at every later layer. Pale: it says it here, not for good."]
    if trace.exit_layer is not None:
        parts.append(f"Dashed line: the plan's exit after layer {trace.exit_layer}.")
    if shown < trace.num_tokens:
        parts.append(f"The first {shown} of {trace.num_tokens:,} tokens; the table holds all.")
    return " ".join(parts)
