"""HTML that several views are made of; every text that comes in is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def joined(parts: Iterable[Markup]) -> Markup:
    """Parts, one after the other."""
    return Markup("").join(parts)


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str | Markup]],
    *,
    numeric: frozenset[int] = frozenset(),
    wrapped: frozenset[int] = frozenset(),
    chosen: int | None = None,
) -> Markup:
    """A table that scrolls sideways where it does not fit.

    Args:
        caption: What it shows.
        head: Titles of the columns.
        rows: Cells; the first of each row is its heading.
        numeric: Columns of numbers.
        wrapped: Columns whose text may take several lines.
        chosen: Number of the row that stands out, if any.
    """
    titles = joined(Markup('<th scope="col">{}</th>').format(title) for title in head)
    body = joined(_row(cells, chosen=number == chosen) for number, cells in enumerate(rows))
    # One class per column on the table instead of one per cell: a table of 2,000 tokens is a third smaller.
    kinds = [f"ss-n{place}" for place in sorted(numeric)] + [f"ss-w{place}" for place in sorted(wrapped)]
    return scrolling(
        Markup("<table{}><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
            _kind(" ".join(kinds)), caption, titles, body
        ),
        label=caption,
    )


def _row(cells: Sequence[str | Markup], *, chosen: bool) -> Markup:
    rest = joined(Markup("<td>{}</td>").format(cell) for cell in cells[1:])
    return Markup('<tr{}><th scope="row">{}</th>{}</tr>\n').format(_kind("ss-chosen" if chosen else ""), cells[0], rest)


def _kind(name: str) -> Markup:
    return Markup(' class="{}"').format(name) if name else Markup("")


def scrolling(content: Markup, *, label: str) -> Markup:
    """Content that may be wider than the page; it can be reached and scrolled by keyboard."""
    return Markup('<div class="ss-scroll" tabindex="0" role="region" aria-label="{}">{}</div>').format(label, content)


def section(title: str, *content: Markup) -> Markup:
    """A titled part of a view."""
    return Markup("<section><h2>{}</h2>\n{}</section>\n").format(title, joined(content))


def paragraph(text: str | Markup, *, muted: bool = False) -> Markup:
    """A paragraph."""
    return Markup("<p{}>{}</p>\n").format(_kind("ss-muted" if muted else ""), text)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Numbers that matter, each with its name."""
    items = joined(Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(name, value) for name, value in pairs)
    return Markup('<dl class="ss-facts">{}</dl>\n').format(items)


def figure(picture: Markup, caption: str) -> Markup:
    """A picture with its caption."""
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>\n").format(picture, caption)


def svg(width: float, height: float, label: str, *content: Markup, fit: bool = True) -> Markup:
    """An inline picture.

    Args:
        width: Width of the drawing area in user units.
        height: Its height.
        label: What it shows, for those who do not see it.
        content: Elements.
        fit: Whether it shrinks with the page; otherwise one unit stays one pixel.
    """
    size = Markup('class="ss-fit"') if fit else Markup('width="{:g}" height="{:g}"').format(width, height)
    return Markup('<svg {} viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        size, width, height, label, joined(content)
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> Markup:
    """Text in a picture."""
    return Markup('<text x="{:g}" y="{:g}" text-anchor="{}"{}>{}</text>').format(x, y, anchor, _kind(kind), text)


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
    """A line in a picture."""
    return Markup('<line x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}" class="{}"/>').format(*start, *end, kind)


def box(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    """A rectangle in a picture, with a title for the pointer."""
    inner = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" class="{}">{}</rect>').format(
        x, y, width, height, kind, inner
    )


def percent(share: float | None, digits: int = 0) -> str:
    """A share in per cent, or a dash where there is none."""
    return "–" if share is None or share != share else f"{100 * share:.{digits}f} %"
