"""The rounds side by side: what was drafted, how much of it stood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.elements import figure, scrolling, svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec_runtime.token_trace import TokenTrace
    from selfspec_runtime.trace_round import TraceRound

WIDTH, HEIGHT, MAX_ROUNDS = 10, 9, 600


def round_strip(trace: TokenTrace) -> Markup:
    """A column for each round after the first token."""
    rounds = trace.rounds[1 : MAX_ROUNDS + 1]
    if not rounds:
        return Markup("")
    rows = 1 + max(each.num_drafted for each in rounds)
    stats = trace.stats()
    described = (
        f"{stats.num_rounds} rounds; {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted."
    )
    picture = svg(max(120, len(rounds) * WIDTH), rows * HEIGHT + 2, described, *_paths(rounds, rows), fit=False)
    cut = f" The first {len(rounds)} of {stats.num_rounds:,} rounds." if len(rounds) < stats.num_rounds else ""
    caption = (
        "One column per round, from the bottom: accepted draft tokens filled, the model's own token in the second "
        f"colour, drafted and dropped ones hollow.{cut}"
    )
    return figure(scrolling(picture, label="Strip of rounds"), caption)


def _paths(rounds: Sequence[TraceRound], rows: int) -> Iterator[Markup]:
    """One path for each kind of square: thousands of elements would make the page slow and large."""
    paths: dict[str, list[str]] = {"ss-a": [], "ss-b": [], "ss-hollow": []}
    for column, each in enumerate(rounds):
        kinds = [*("ss-a",) * each.num_accepted, *("ss-b",) * (each.num_tokens - each.num_accepted)]
        kinds += ["ss-hollow"] * (each.num_drafted - each.num_accepted)
        for level, kind in enumerate(kinds):
            x, y = column * WIDTH + 1, (rows - 1 - level) * HEIGHT + 1
            paths[kind].append(f"M{x} {y}h{WIDTH - 3}v{HEIGHT - 3}h-{WIDTH - 3}z")
    for kind, squares in paths.items():
        yield Markup('<path class="{}" d="{}"/>').format(kind, "".join(squares))
