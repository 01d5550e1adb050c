"""Small charts as inline pictures: curves, heat maps, shares, points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.elements import box, joined, label, line, svg
from selfspec.views.palette import DEPTH_COLOURS, readable_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 34


def curves(described: str, series: Sequence[Sequence[float | None]], *, x_title: str) -> Markup:
    """Shares by layer, the first series solid and the second dashed.

    Args:
        described: What the picture shows, in a sentence.
        series: For each the shares at layers 1, 2, ...; None leaves a gap.
        x_title: Title of the horizontal axis.
    """
    last = max((len(values) for values in series), default=1)

    def place(number: int, share: float) -> tuple[float, float]:
        x = LEFT + (number - 1) / max(1, last - 1) * (WIDTH - LEFT - RIGHT)
        return x, TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    lines = joined(_curve(values, place, kind) for values, kind in zip(series, ("ss-la", "ss-lb"), strict=False))
    ticks = sorted({1, last, *range(5, last - 1, 5)})
    below = joined(label(place(n, 0)[0], HEIGHT - BOTTOM + 14, str(n), anchor="middle") for n in ticks)
    title = label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_title, anchor="middle")
    return svg(WIDTH, HEIGHT, described, _share_grid(), lines, below, title)


def _share_grid() -> Markup:
    rows = []
    for quarter in range(5):
        y = TOP + (1 - quarter / 4) * (HEIGHT - TOP - BOTTOM)
        rows += [
            line((LEFT, y), (WIDTH - RIGHT, y), "ss-grid"),
            label(LEFT - 5, y + 4, f"{25 * quarter} %", anchor="end"),
        ]
    return joined(rows)


def _curve(values: Sequence[float | None], place: Callable[[int, float], tuple[float, float]], kind: str) -> Markup:
    steps, pen_down = [], False
    for number, value in enumerate(values, start=1):
        if value is not None:
            x, y = place(number, value)
            steps.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}")
        pen_down = value is not None
    return Markup('<path class="{}" d="{}"/>').format(kind, " ".join(steps))


def heat_map(
    described: str,
    rows: Sequence[tuple[str, Sequence[float | None]]],
    columns: Sequence[str],
    *,
    shown: Callable[[float], str],
    bounds: tuple[float, float],
    cell: tuple[int, int] = (44, 20),
) -> Markup:
    """Numbers on coloured ground; each cell's text is in the colour that its ground needs.

    Args:
        described: What the picture shows, in a sentence.
        rows: Title and numbers of each row; None is left empty.
        columns: Titles of the columns.
        shown: How a number is written.
        bounds: Numbers at both ends of the colours.
        cell: Width and height of a cell.
    """
    width, height = cell
    left = 16 + 6 * max(len(title) for title, _ in rows)
    cells = joined(
        _cell(
            (left + x * width, 18 + y * height), cell, value, shown=shown, bounds=bounds, name=f"{title}, {columns[x]}"
        )
        for y, (title, values) in enumerate(rows)
        for x, value in enumerate(values)
    )
    across = joined(
        label(left + (x + 0.5) * width, 12, title, anchor="middle", kind="ss-small") for x, title in enumerate(columns)
    )
    down = joined(
        label(left - 5, 18 + (y + 0.7) * height, title, anchor="end", kind="ss-small")
        for y, (title, _) in enumerate(rows)
    )
    return svg(left + width * len(columns), 20 + height * len(rows), described, cells, across, down, fit=False)


def _cell(
    corner: tuple[float, float],
    size: tuple[int, int],
    value: float | None,
    *,
    shown: Callable[[float], str],
    bounds: tuple[float, float],
    name: str,
) -> Markup:
    if value is None:
        return Markup("")
    low, high = bounds
    share = min(1.0, max(0.0, (value - low) / (high - low) if high > low else 0.5))
    index = round((1 - share) * (len(DEPTH_COLOURS) - 1))
    x, y = corner
    return Markup(
        '<g class="ss-cell"><title>{}: {}</title><rect x="{:g}" y="{:g}" width="{}" height="{}" class="ss-d{}"/>'
        '<text x="{:g}" y="{:g}" text-anchor="middle" class="ss-small" style="fill:{}">{}</text></g>'
    ).format(
        name, shown(value), x, y, size[0], size[1], index,
        x + size[0] / 2, y + size[1] * 0.7, readable_on(DEPTH_COLOURS[index]), shown(value),
    )  # fmt: skip


def shares(described: str, rows: Sequence[tuple[str, Sequence[float]]], kinds: Sequence[str]) -> Markup:
    """Bars of 100 %, divided; each part has its share written beside the bar.

    Args:
        described: What the picture shows, in a sentence.
        rows: Title and shares of each bar.
        kinds: Class of each part.
    """
    left, height = 110, 26
    bars = []
    for number, (title, parts) in enumerate(rows):
        y, x = number * height, float(left)
        bars.append(label(left - 6, y + 15, title, anchor="end"))
        for share, kind in zip(parts, kinds, strict=True):
            width = share * 300
            bars.append(box(x, y + 3, width, height - 8, kind, f"{100 * share:.0f} %"))
            x += width
        bars.append(label(left + 308, y + 15, " / ".join(f"{100 * share:.0f}" for share in parts) + " %"))
    return svg(WIDTH, height * len(rows), described, joined(bars))


def scatter(described: str, points: Sequence[tuple[float, float, str]], *, x_title: str, y_title: str) -> Markup:
    """Points over two axes of one scale, with the line where both are equal.

    Args:
        described: What the picture shows, in a sentence.
        points: Abscissa, ordinate and name of each.
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
    """
    values = [value for x, y, _ in points for value in (x, y)]
    low, high = min([*values, 0.9]) * 0.95, max([*values, 1.1]) * 1.05
    side = 300

    def scaled(value: float) -> float:
        return (value - low) / (high - low) * (side - LEFT - RIGHT)

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + scaled(x), side - BOTTOM - scaled(y)

    step = 0.1 if high - low < 1 else 0.25 if high - low < 2 else 0.5 * math.ceil((high - low) / 4)
    ticks = [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    grid = joined(
        joined(
            (
                line(at(tick, low), at(tick, high), "ss-grid"),
                line(at(low, tick), at(high, tick), "ss-grid"),
                label(at(tick, low)[0], side - BOTTOM + 13, f"{tick:.2g}", anchor="middle", kind="ss-small"),
                label(LEFT - 4, at(low, tick)[1] + 3, f"{tick:.2g}", anchor="end", kind="ss-small"),
            )
        )
        for tick in ticks
    )
    dots = joined(
        Markup('<circle cx="{:g}" cy="{:g}" r="4" class="ss-a"><title>{}</title></circle>').format(*at(x, y), name)
        for x, y, name in points
    )
    titles = label((side + LEFT) / 2, side - 4, x_title, anchor="middle") + Markup(
        '<text transform="translate(11 {:g}) rotate(-90)" text-anchor="middle">{}</text>'
    ).format((side - BOTTOM) / 2, y_title)
    return svg(side, side, described, grid, line(at(low, low), at(high, high), "ss-lb"), dots, titles, fit=False)
