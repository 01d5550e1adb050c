"""The timed study in the order in which it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from selfspec.views.elements import figure, joined, label, line, section, svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selfspec_runtime.calibration import Calibration, TimedPlan


def history_section(calibration: Calibration) -> Markup:
    """Measured speedup by order of trial, with the best so far, for each step of memory, which has its own study.

    Empty for files that do not know the order.
    """
    figures = [_figure(tried, step) for step, tried in by_step(calibration).items() if len(tried) > 1]
    return section("How the search went", *figures) if figures else Markup("")


def _figure(tried: Sequence[TimedPlan], step: str | None) -> Markup:
    so_far = best_so_far(tried)
    best = f"the best, {so_far[-1]:.2f}x, was number {so_far.index(so_far[-1]) + 1}" if so_far[-1] > 1 else "none won"
    of_step = f" of the memory step {step}" if step is not None else ""
    described = f"{len(tried)} plans{of_step} in the order they were tried; {best}."
    caption = (
        f"{described} Each dot is a plan, the line is the best of those that went through all prompts, hollow dots are "
        "plans given up early. Dashed: as fast as plain decoding."
    )
    return figure(_picture(tried, described), caption)


def by_step(calibration: Calibration) -> dict[str | None, list[TimedPlan]]:
    """For each step of memory its timed plans by their first trial, plain decoding apart.

    An order counts within one study, so a file that does not know which study a plan is of has an order only where no
    place is taken twice.
    """
    drafting = [each for each in calibration.evidence.timed if not each.plan.is_plain and each.order is not None]
    groups: dict[str | None, list[TimedPlan]] = {}
    for each in sorted(drafting, key=lambda each: (each.step == "quantized", each.order or 0)):
        groups.setdefault(each.step, []).append(each)
    return {step: found for step, found in groups.items() if len({each.order for each in found}) == len(found)}


def best_so_far(tried: Sequence[TimedPlan]) -> list[float]:
    """For each plan the highest speedup up to it, of plans that were timed on as many prompts as any."""
    whole = max(each.num_prompts for each in tried)
    best, found = 1.0, []
    for each in tried:
        best = max(best, each.measured_speedup if each.num_prompts >= whole else 0.0)
        found.append(best)
    return found


def _picture(tried: Sequence[TimedPlan], described: str) -> Markup:
    top = max(1.2, *(each.measured_speedup for each in tried)) * 1.08

    def place(number: int, value: float) -> tuple[float, float]:
        x = LEFT + (number + 0.5) / len(tried) * (WIDTH - LEFT - RIGHT)
        return x, TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)

    ticks = [0.5 * number for number in range(int(top / 0.5) + 1)]
    grid = joined(
        joined((line((LEFT, y), (WIDTH - RIGHT, y), kind), label(LEFT - 5, y + 4, f"{tick:.1f}x", anchor="end")))
        for tick in ticks
        for y, kind in [(place(0, tick)[1], "ss-exit" if tick == 1 else "ss-grid")]
    )
    points = [place(number, best) for number, best in enumerate(best_so_far(tried))]
    path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
    title = label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "Plans tried", anchor="middle")
    ends = [
        label(place(number, 0)[0], HEIGHT - BOTTOM + 14, str(number + 1), anchor="middle")
        for number in sorted({0, len(tried) - 1})
    ]
    steps = Markup('<path class="ss-la" d="{}"/>').format(path)
    dots = joined(_dots(tried, [place(number, each.measured_speedup) for number, each in enumerate(tried)]))
    return svg(WIDTH, HEIGHT, described, grid, steps, dots, joined(ends), title)


def _dots(tried: Sequence[TimedPlan], places: Sequence[tuple[float, float]]) -> Iterator[Markup]:
    whole = max(each.num_prompts for each in tried)
    for each, (x, y) in zip(tried, places, strict=True):
        kind = "ss-a" if each.num_prompts >= whole else "ss-hollow"
        name = f"{each.plan.describe()}: {each.measured_speedup:.2f}x on {each.num_prompts} prompts"
        yield Markup('<circle cx="{:g}" cy="{:g}" r="4" class="{}"><title>{}</title></circle>').format(x, y, kind, name)
