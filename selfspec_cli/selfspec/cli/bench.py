"""``selfspec bench``: the plan against plain decoding and against what transformers offers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfspec.cli.bench_arms import ARM_NAMES, bench_arms, load_assistant, wanted_arms
from selfspec.cli.console import Terminal
from selfspec.cli.options import (
    FormatOption,
    ModelOptions,
    QuietOption,
    SamplingOptions,
    TemplateOptions,
)
from selfspec.cli.plan_options import PlanOptions
from selfspec.cli.row_options import RowOptions
from selfspec.cli.shape_options import SCRIPTED, ShapeOptions
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec.benchmark import Scenario
    from selfspec.cli.bench_prompts import BenchPrompts
    from selfspec.cli.sheet import Sheet
    from selfspec.model import SpeculativeModel
    from selfspec_calibrate.measurement import Arm

COMPARISON = "Comparison"

PromptsOption = Annotated[
    Path | None,
    typer.Option("--prompts", "-p", help="Prompt file; default: the demo's prompts.", rich_help_panel=COMPARISON),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Prompts to use.", rich_help_panel=COMPARISON)]
OutputLengthsOption = Annotated[
    str,
    typer.Option("--output-lengths", metavar="32,128", help="New tokens per prompt.", rich_help_panel=COMPARISON),
]
ContextLengthsOption = Annotated[
    str | None,
    typer.Option(
        "--context-lengths",
        metavar="512",
        help="Prompt lengths (default 512, or what the model's context holds); empty for none.",
        rich_help_panel=COMPARISON,
    ),
]
RepeatsOption = Annotated[
    int,
    typer.Option("--repeats", min=1, help="Mirrored blocks per prompt, two runs each.", rich_help_panel=COMPARISON),
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar=",".join(ARM_NAMES),
        help="What plain decoding is compared with; default: all.",
        rich_help_panel=COMPARISON,
    ),
]
AssistantOption = Annotated[
    str | None,
    typer.Option(
        "--assistant-model", help="A smaller model for transformers' assisted decoding.", rich_help_panel=COMPARISON
    ),
]


def bench(
    *,
    plan: PlanOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    template: TemplateOptions,
    shape: ShapeOptions,
    rows: RowOptions,
    prompts: PromptsOption = None,
    limit: LimitOption = 5,
    output_lengths: OutputLengthsOption = "32,128",
    context_lengths: ContextLengthsOption = None,
    repeats: RepeatsOption = 1,
    against: AgainstOption = None,
    assistant_model: AssistantOption = None,
    form: FormatOption = "table",
    quiet: QuietOption = False,
) -> None:
    """Compare the plan with plain decoding, and with generate of transformers, plain and with its own drafts.

    All run in turn in one process, there and back, on the same prompts. Speedups are over plain decoding, with a 95 %
    interval over prompts; reading the prompt is kept apart. Prompts on which a calibrated plan was chosen are left out.

    With --synthetic-acceptance a shape can be costed whose weights mean nothing: the text is then not the model's. With
    --random-weights not even the weights are needed.
    """
    terminal = Terminal(quiet=quiet)
    outputs = _lengths(output_lengths, "--output-lengths")
    contexts = None if context_lengths is None else _lengths(context_lengths, "--context-lengths")
    if not outputs and contexts == []:
        message = "There is nothing to measure: give --output-lengths or --context-lengths."
        raise UsageError(message)
    if sampling.max_new_tokens is not None:
        message = "--max-new-tokens does not go with bench. Use --output-lengths."
        raise UsageError(message)

    from selfspec.cli.bench_prompts import bench_prompts
    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.opened import open_named
    from selfspec.cli.sheet import show_sheets

    with quiet_libraries():
        opened = open_named(model, plan, terminal, load=shape.load)
        wanted = wanted_arms(against, assistant_model, shape)
        assistant = None if assistant_model is None else load_assistant(assistant_model, model)
        arms = bench_arms(opened, wanted, assistant, shape, terminal)
        read = bench_prompts(opened, prompts, template, rows)
        for notice in read.notices:
            terminal.notice(notice)
        scenarios = _scenarios(opened, read, limit, lengths=(outputs, contexts))
        sheet = _measure(opened, arms, scenarios, repeats=repeats, sampling=sampling, shape=shape, terminal=terminal)
    show_sheets((replace(sheet, notes=(*sheet.notes, *read.notices)),), form, terminal)


def _measure(
    opened: SpeculativeModel,
    arms: list[Arm],
    scenarios: list[Scenario],
    *,
    repeats: int,
    sampling: SamplingOptions,
    shape: ShapeOptions,
    terminal: Terminal,
) -> Sheet:
    from selfspec.benchmark import compare
    from selfspec.request import make_options

    greedy = {"temperature": 0.0} if shape.is_scripted else {}
    request = opened.request(list(scenarios[0].prompts[0].token_ids), make_options(**{**greedy, **sampling.given()}))
    settings, labels = shape.over(request.settings), shape.labels
    rows = compare(
        arms, scenarios, settings, repeats=repeats, say=lambda text: terminal.notice(". ".join([*labels, text]))
    )
    labelled = {"labels": list(labels), "synthetic_acceptance": shape.synthetic_acceptance} if labels else {}
    return _sheet(opened, tuple({**row, **labelled} for row in rows), settings.sampling.describe(), labels)


def _scenarios(
    opened: SpeculativeModel, prompts: BenchPrompts, limit: int, *, lengths: tuple[list[int], list[int] | None]
) -> list[Scenario]:
    from selfspec.benchmark import default_context, fitting, scenarios
    from selfspec_calibrate.interleave import shuffled

    outputs, contexts = lengths
    positions = opened.engine.target.max_positions
    contexts = default_context(positions) if contexts is None else contexts
    chosen = shuffled(fitting(prompts.measured, output_lengths=outputs, limit=positions), seed=0)[:limit]
    return scenarios(chosen, pool=prompts.pool, output_lengths=outputs, context_lengths=contexts, limit=positions)


def _sheet(opened: SpeculativeModel, rows: tuple[dict[str, Any], ...], sampling: str, labels: tuple[str, ...]) -> Sheet:
    from selfspec.cli.sheet import Column, Sheet, milliseconds, number, percent
    from selfspec.cli.tables import interval_text
    from selfspec_runtime.machine import describe_machine

    machine = describe_machine(opened.engine.target.device)
    failures = sorted({f"{row['arm']}: {row['failure']}" for row in rows if row["failure"] is not None})
    return Sheet(
        name="bench",
        title=f"{opened.loaded.spec.model} on {machine.device}, {', '.join([sampling, *labels])}",
        columns=(
            Column(key="axis", title="varied", is_text=True),
            Column(key="length", title="tokens"),
            Column(key="arm", title="decoding", is_text=True),
            *((Column(key="synthetic_acceptance", title="synthetic acceptance"),) if labels[:1] == (SCRIPTED,) else ()),
            Column(key="num_prompts", title="n"),
            Column(key="tokens_per_s", title="median tok/s", write=number(1)),
            Column(key="speedup", title="over plain", write=interval_text),
            Column(key="tokens_per_round", title="tokens/round", write=number(2)),
            Column(key="acceptance_rate", title="accepted", write=percent),
            Column(key="time_to_first_token_s", title="first token", write=milliseconds),
        ),
        rows=rows,
        notes=(
            *(f"{label[0].upper()}{label[1:]}." for label in labels),
            "Tokens per second after the first token; medians over prompts, speedups of totals with a 95 % interval.",
            f"torch {machine.torch}, transformers {machine.transformers}, {machine.num_threads} threads, "
            f"{str(opened.engine.target.dtype).removeprefix('torch.')}.",
            *failures,
        ),
    )


def _lengths(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 1 for part in parts):
        message = f"{option} is {text!r}. Write whole numbers from 2 on, such as 32,128."
        raise UsageError(message)
    return [int(part) for part in parts]
