"""A calibration as HTML without script: the verdict, the evidence for it, and how it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from selfspec.views.calibration_evidence import (
    agreement_section,
    costs_section,
    estimate_section,
    prediction_section,
    sensitivity_section,
    timed_section,
)
from selfspec.views.calibration_words import (
    byte_words,
    chosen_step,
    divergence_words,
    num_drafting,
    sampling_words,
    speedup_words,
    verdict,
)
from selfspec.views.charts import shares
from selfspec.views.elements import figure, joined, paragraph, percent, section, table
from selfspec.views.page import page
from selfspec.views.search_history import history_section
from selfspec.views.style import STYLE
from selfspec.views.token_text import scrubbed

if TYPE_CHECKING:
    from selfspec_runtime.calibration import Calibration, KindResult, MemoryStep


def calibration_page(calibration: Calibration) -> str:
    """A calibration as a file of its own: the report."""
    return page("selfspec calibration report", calibration_html(calibration))


def calibration_html(calibration: Calibration) -> Markup:
    """A calibration as a fragment with its own style sheet."""
    content = joined(
        (
            Markup("<h1>{}</h1>\n").format(verdict(calibration)),
            paragraph(_provenance(calibration), muted=True),
            _kinds(chosen_step(calibration), calibration.fingerprint.dtype),
            _steps(calibration),
            _time(chosen_step(calibration)),
            agreement_section(calibration),
            estimate_section(calibration),
            sensitivity_section(calibration),
            timed_section(calibration),
            history_section(calibration),
            prediction_section(calibration),
            costs_section(calibration),
            _method(calibration),
            _environment(calibration),
        )
    )
    return Markup('{}<div class="ss">\n{}</div>').format(STYLE, scrubbed(content))


def estimate_html(calibration: Calibration) -> Markup:
    """What early exits would bring, and what was measured, by itself, as a fragment with its own style sheet."""
    estimate = estimate_section(calibration) or paragraph("No agreement of early exits was measured.")
    content = scrubbed(joined((estimate, timed_section(calibration))))
    return Markup('{}<div class="ss">\n{}</div>').format(STYLE, content)


def _provenance(calibration: Calibration) -> str:
    model = calibration.fingerprint
    return (
        f"{model.architecture}, {model.num_hidden_layers} layers, {model.dtype}, on {calibration.machine.device}; "
        f"calibrated {calibration.created}."
    )


def _kinds(step: MemoryStep, dtype: str) -> Markup:
    if not step.results:
        return Markup("")
    # What matters comes first: a phone shows three columns at a time.
    titles = (
        "Prompts", "Speedup (95 % interval)", "Plan, tokens/s", "Plain, tokens/s", "Tokens per round", "Accepted",
        "Over transformers", "First token", "Identical", "Largest margin where not", "Tokens chosen",
    )  # fmt: skip
    rows = [_kind_row(row) for row in step.results]
    note = (
        "Plain and plan are measured side by side in one process, the first token apart. Transformers is its own "
        f"generate.{_divergence(step, dtype)}"
    )
    level = next((row.speedup.level for row in step.results), 0.95)
    head = [title.replace("95 %", f"{100 * level:.0f} %") for title in titles]
    whole = next((number for number, row in enumerate(step.results) if row.kind == "all"), None)
    return section(
        "By kind of prompt",
        table("Held-out prompts", head, rows, numeric=frozenset(range(1, 10)), chosen=whole),
        paragraph(note, muted=True),
    )


def _divergence(step: MemoryStep, dtype: str) -> str:
    """A sentence on where greedy texts differ; nothing where they do not, or tokens were drawn."""
    margins = [row.largest_divergence_margin for row in step.results if row.sampling == "greedy"]
    known = [margin for margin in margins if margin is not None]
    return f" Where greedy texts differ, {divergence_words(max(known), dtype)}." if known else ""


def _kind_row(row: KindResult) -> tuple[str, ...]:
    stock = "–" if row.speedup_over_stock is None else f"{row.speedup_over_stock:.2f}x"
    margin = "–" if row.largest_divergence_margin is None else f"{row.largest_divergence_margin:.2g}"
    return (
        row.kind,
        speedup_words(row.speedup),
        f"{row.plan_tokens_per_s:.1f}",
        f"{row.plain_tokens_per_s:.1f}",
        f"{row.tokens_per_round:.2f}",
        percent(row.acceptance_rate),
        stock,
        f"{row.time_to_first_token_s:.2f} s",
        f"{row.num_identical} of {row.num_prompts}",
        margin,
        row.sampling,
    )


def _steps(calibration: Calibration) -> Markup:
    rows = []
    for step in calibration.steps:
        speed = speedup_words(step.overall.speedup) if step.overall is not None else "–"
        memory = f"{byte_words(step.extra_bytes)} ({percent(step.extra_share, 1)})"
        rows.append((step.name, speed, memory, "yes" if step.enabled else "no", step.plan.describe(), step.reason))
    decoded = "the one in use stands out" if chosen_step(calibration).enabled else "none is in use"
    return section(
        "By extra memory",
        table(
            f"The best plan for each amount of extra memory; {decoded}",
            ("Step", "Speedup", "Extra memory", "Faster", "Plan", "Why"),
            rows,
            numeric=frozenset({1, 2}),
            wrapped=frozenset({4, 5}),
            chosen=calibration.chosen if chosen_step(calibration).enabled else None,
        ),
    )


def _time(step: MemoryStep) -> Markup:
    if not step.results:
        return Markup("")
    rows = [(row.kind[:16], (row.time.draft, row.time.verify, row.time.host)) for row in step.results]
    words = "; ".join(f"{name}: {percent(a)} drafting, {percent(b)} verifying" for name, (a, b, _) in rows)
    picture = shares(f"Where the plan's time goes. {words}.", rows, ("ss-a", "ss-w", "ss-b"))
    return section(
        "Where the time goes", figure(picture, "Drafting / verifying / everything else, of the plan's time.")
    )


def _method(calibration: Calibration) -> Markup:
    data, evidence = calibration.data, calibration.evidence
    kinds = ", ".join(f"{name} {count}" for name, count in data.kinds.items()) or "one"
    skipped = ", ".join(f"{reason} {count}" for reason, count in data.skipped.items()) or "none"
    rows = [
        ("Prompts", f"{data.file}: {data.num_search} to search with, {data.num_held_out} held out for the verdict"),
        ("Kinds", kinds),
        ("Rows left out", skipped),
        ("Tokens chosen", sampling_words(calibration.sampling)),
        ("Most tokens per answer", f"{calibration.max_new_tokens:,}"),
        ("Predicted without decoding", f"{evidence.num_predicted:,} plans on {evidence.num_trace_tokens:,} tokens"),
        ("Distinct skip sets among them", f"{evidence.num_skip_sets:,}"),
        ("Decoded and timed", f"{num_drafting(evidence.timed):,} plans, interleaved with plain decoding"),
        ("Hash of the prompts", data.sha256[:16]),
    ]
    return section("How it was measured", table("Method", ("", ""), rows, wrapped=frozenset({1})))


def _environment(calibration: Calibration) -> Markup:
    machine, model = calibration.machine, calibration.fingerprint
    rows = [
        ("Device", machine.device),
        ("Device memory", byte_words(machine.device_memory_bytes)),
        ("Processor", machine.cpu),
        ("Threads", str(machine.num_threads)),
        ("Memory", byte_words(machine.memory_bytes)),
        ("System", machine.system),
        ("Python, torch", f"{machine.python}, {machine.torch}"),
        ("transformers, bitsandbytes", f"{machine.transformers}, {machine.bitsandbytes or 'none'}"),
        ("selfspec", calibration.selfspec_version),
        ("Model", f"{model.architecture}, {model.num_hidden_layers} layers of width {model.hidden_size}"),
        ("Weights", f"{model.dtype}, hash {model.weights_sha256[:16]}"),
    ]
    shown = [row for row in rows if row[1] != "unknown"]
    return section("Environment", table("Machine and versions", ("", ""), shown, wrapped=frozenset({1})))
