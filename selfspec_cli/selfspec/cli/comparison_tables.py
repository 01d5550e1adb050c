"""What a comparison found, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.cli.sheet import Column, Sheet, number, percent
from selfspec.cli.tables import interval_text
from selfspec.views.calibration_words import byte_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_calibrate.comparison import Comparison, FamilyResult, MeasuredPlan, SpecBenchResult

_RATIO = number(2, unit="x")

PLAN_COLUMNS = (
    Column(key="plan", title="best plan", is_text=True),
    Column(key="acceptance", title="acceptance", write=percent),
    Column(key="tokens_per_round", title="tokens/round", write=number(2)),
    Column(key="draft_cost", title="draft cost", write=number(2)),
    Column(key="speedup", title="speedup", write=interval_text),
    Column(key="extra_bytes", title="extra memory", write=byte_words),
)
FAMILY_COLUMNS = (
    Column(key="mark", title="", is_text=True),
    Column(key="title", title="family", is_text=True),
    *PLAN_COLUMNS,
    Column(key="choosing_share", title="choosing", write=percent),
    Column(key="num_timed", title="timed"),
    Column(key="search_s", title="search", write=lambda value: f"{value:.0f} s"),
)
CALIBRATED_COLUMNS = (
    Column(key="step", title="calibrated, step", is_text=True),
    *PLAN_COLUMNS,
    Column(key="fastest_family", title="fastest family within its memory", is_text=True),
    Column(key="against_fastest", title="against it", write=interval_text),
)
LEFT_OUT_COLUMNS = (
    Column(key="title", title="left out", is_text=True),
    Column(key="reason", title="why", is_text=True),
)
KIND_COLUMN = Column(key="title", title="family", is_text=True)
SPEC_BENCH_COLUMNS = (
    Column(key="name", title="plan", is_text=True),
    Column(key="group", title="Spec-Bench group", is_text=True),
    Column(key="num_questions", title="n"),
    Column(key="plain_tokens_per_s", title="plain tok/s", write=number(1)),
    Column(key="tokens_per_s", title="tok/s", write=number(1)),
    Column(key="speedup", title="speedup (its definition)", write=_RATIO),
    Column(key="ours", title="speedup (ours)", write=_RATIO),
    Column(key="mean_accepted_tokens", title="mean accepted tokens", write=number(2)),
)


def comparison_sheets(comparison: Comparison) -> tuple[Sheet, ...]:
    """Families, kinds of prompts, the calibrated plans, what was left out, and Spec-Bench's groups."""
    sheets = [families_sheet(comparison), kinds_sheet(comparison), calibrated_sheet(comparison)]
    sheets.append(left_out_sheet(comparison))
    sheets += [spec_bench_sheet(comparison)] if comparison.spec_bench else []
    return tuple(sheet for sheet in sheets if sheet.rows)


def families_sheet(comparison: Comparison) -> Sheet:
    """Every family's best plan, fastest first; plain decoding is 1."""
    data, rows = comparison.data, [_family_row(each) for each in comparison.families if each.best is not None]
    basis = (
        f"Each family's best plan, chosen on {_searched(comparison)} and measured on {data.num_held_out} "
        f"held-out prompts of {data.file}, up to {comparison.max_new_tokens} new tokens each, all plans and plain "
        "decoding interleaved in one run. Draft cost: time of a draft token over a plain step. Choosing: what a source "
        "that chooses how to draft while it decodes spent on that, of its decoding time. Search: decoding time "
        f"that timing the family's plans took; {comparison.common_s:.0f} s of traces, costs and predictions serve all."
    )
    return Sheet(
        name="families",
        title=f"Families of drafts on {comparison.machine.device}, speedup over plain decoding",
        columns=FAMILY_COLUMNS,
        rows=tuple(rows),
        notes=(basis, *_caveats(rows)),
    )


def kinds_sheet(comparison: Comparison) -> Sheet:
    """Speedups by kind of prompt; no rows where there is one kind only."""
    kinds = sorted(comparison.data.kinds)
    columns = tuple(Column(key=kind, title=kind, write=_RATIO) for kind in (*kinds, "all"))
    rows = [_kind_row(each) for each in comparison.families if each.best is not None and each.best.results]
    return Sheet(
        name="kinds",
        title="Speedup by kind of prompt",
        columns=(KIND_COLUMN, *columns),
        rows=tuple(rows) if len(kinds) > 1 else (),
    )


def calibrated_sheet(comparison: Comparison) -> Sheet:
    """What calibration chooses, beside the fastest family."""
    rows = [
        {
            **each.model_dump(mode="json", include={"step", "fastest_family", "against_fastest"}),
            **_plan_row(each.measured),
        }
        for each in comparison.calibrated
    ]
    return Sheet(
        name="calibrated",
        title="The plans that calibration chooses, in the same run",
        columns=CALIBRATED_COLUMNS,
        rows=tuple(rows),
        notes=("Against the fastest family: paired over prompts; empty where it is the very plan.",),
    )


def left_out_sheet(comparison: Comparison) -> Sheet:
    """Families without a result, and why."""
    reasons = [(each.title, _reason(each)) for each in comparison.families]
    return Sheet(
        name="left_out",
        title="Left out",
        columns=LEFT_OUT_COLUMNS,
        rows=tuple({"title": title, "reason": reason} for title, reason in reasons if reason is not None),
    )


def spec_bench_sheet(comparison: Comparison) -> Sheet:
    """Spec-Bench's six groups by its definition, and all questions by ours."""
    rows = [row for each in comparison.spec_bench for row in _spec_bench_rows(each, comparison)]
    note = (
        "Its definition: a question's tokens over its seconds, prompts included, averaged over questions; the speedup "
        "is the ratio of the averages. Ours: total decoding seconds over total decoding seconds, prompts apart. Chat "
        "template and answer lengths are this run's."
    )
    return Sheet(name="spec_bench", title="Spec-Bench", columns=SPEC_BENCH_COLUMNS, rows=tuple(rows), notes=(note,))


def _searched(comparison: Comparison) -> str:
    """The prompts that families' plans were timed on; older files do not say how many."""
    search, timed = comparison.data.num_search, comparison.num_timed
    if timed is None:
        return "search prompts"
    return f"{search} search prompts" if timed == search else f"{timed} of {search} search prompts"


def _caveats(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """How not to read the table."""
    fixed = any(row["choosing_share"] == 0.0 for row in rows)
    first = "Where choosing is 0%, answers ended before the source chose: it was ranked with the set it begins with."
    largest = (
        f"The fastest of {len(rows)} rows is the largest of as many noisy numbers: it may do less well another time."
    )
    return (*([first] if fixed else []), *([largest] if len(rows) > 1 else []))


def _family_row(result: FamilyResult) -> dict[str, Any]:
    assert result.best is not None
    row = result.model_dump(mode="json", include={"family", "title", "num_timed", "search_s", "search_speedup"})
    return {**row, "mark": "→" if result.is_fastest else "", **_plan_row(result.best)}


def _plan_row(measured: MeasuredPlan) -> dict[str, Any]:
    overall = measured.overall
    return {
        "plan": measured.plan.describe(),
        "acceptance": None if overall is None else overall.acceptance_rate,
        "tokens_per_round": None if overall is None else overall.tokens_per_round,
        "draft_cost": measured.draft_cost,
        "choosing_share": measured.choosing_share,
        "speedup": None if overall is None else overall.speedup.model_dump(mode="json"),
        "extra_bytes": measured.extra_bytes,
    }


def _kind_row(result: FamilyResult) -> dict[str, Any]:
    assert result.best is not None
    return {"title": result.title, **{row.kind: row.speedup.value for row in result.best.results}}


def _reason(result: FamilyResult) -> str | None:
    if result.left_out is not None:
        return result.left_out
    failure = None if result.best is None else result.best.failure
    return None if failure is None else f"its plan failed on a held-out prompt: {failure}"


def _spec_bench_rows(result: SpecBenchResult, comparison: Comparison) -> list[dict[str, Any]]:
    measured = [each.best for each in comparison.families if each.best is not None]
    measured += [each.measured for each in comparison.calibrated]
    overall = next((each.overall for each in measured if each.plan == result.plan), None)
    ours = None if overall is None else overall.speedup.value
    rows = [{"name": result.name, **group.model_dump(mode="json")} for group in result.groups]
    return [{**row, "ours": ours if row["group"] == "Overall" else None} for row in rows]
