"""The rounds side by side: what was drafted, how much of it stood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.elements import figure, joined, scrolling, svg

if TYPE_CHECKING:
    from selfspec_runtime.token_trace import TokenTrace
    from selfspec_runtime.trace_round import TraceRound

WIDTH, HEIGHT, MAX_ROUNDS = 10, 9, 600


def round_strip(trace: TokenTrace) -> Markup:
    """A column for each round after the first token."""
    rounds = trace.rounds[1 : MAX_ROUNDS + 1]
    if not rounds:
        return Markup("")
    rows = 1 + max(each.num_drafted for each in rounds)
    columns = joined(_column(each, number, rows) for number, each in enumerate(rounds, start=1))
    stats = trace.stats()
    described = (
        f"{stats.num_rounds} rounds; {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted."
    )
    picture = svg(max(120, len(rounds) * WIDTH), rows * HEIGHT + 2, described, columns, fit=False)
    cut = f" The first {len(rounds)} of {stats.num_rounds:,} rounds." if len(rounds) < stats.num_rounds else ""
    caption = (
        "One column per round, from the bottom: accepted draft tokens filled, the model's own token in the second "
        f"colour, drafted and dropped ones hollow.{cut}"
    )
    return figure(scrolling(picture, label="Strip of rounds"), caption)


def _column(each: TraceRound, number: int, rows: int) -> Markup:
    kinds = [*("ss-a",) * each.num_accepted, *("ss-b",) * (each.num_tokens - each.num_accepted)]
    kinds += ["ss-hollow"] * (each.num_drafted - each.num_accepted)
    x = (number - 1) * WIDTH
    squares = joined(_square(x, rows - 1 - level, kind) for level, kind in enumerate(kinds))
    title = f"Round {number}: {each.num_drafted} drafted ({each.origin}), {each.num_accepted} accepted"
    return Markup("<g><title>{}</title>{}</g>").format(title, squares)


def _square(x: int, row: int, kind: str) -> Markup:
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>').format(
        x + 1, row * HEIGHT + 1, WIDTH - 3, HEIGHT - 3, kind
    )
