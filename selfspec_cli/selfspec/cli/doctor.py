"""``selfspec doctor``: what is here, and whether it works with this model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.cli.console import Terminal
from selfspec.cli.options import FormatOption, ModelOptions

if TYPE_CHECKING:
    from selfspec.cli.sheet import Sheet
    from selfspec_runtime.loading import LoadedModel
    from selfspec_runtime.machine import Machine
    from selfspec_runtime.probe import ProbeReport


def doctor(*, model: ModelOptions, form: FormatOption = "table") -> None:
    """Describe machine and versions; with --model, prove with numbers that its passes are wired rightly."""
    terminal = Terminal()

    from selfspec.cli.libraries import quiet_libraries
    from selfspec.cli.sheet import show_sheets
    from selfspec_runtime.machine import describe_machine
    from selfspec_runtime.precision import choose_device

    with quiet_libraries():
        device = choose_device(model.device or "auto")
        sheets = [machine_sheet(describe_machine(device))]
        if model.model is not None:
            sheets += _model_sheets(model, terminal)
    show_sheets(sheets, form, terminal)


def machine_sheet(machine: Machine) -> Sheet:
    """The machine, one fact a row, and what it means for speed."""
    facts = machine.model_dump(mode="json")
    for name in ("memory_bytes", "device_memory_bytes"):
        facts[name] = _size(facts.get(name))
    if machine.device_memory_bytes is None:
        facts["cpu_kernels"] = _kernels()
    return _facts("machine", "This machine", facts, notes=tuple(_advice(machine)))


def _model_sheets(model: ModelOptions, terminal: Terminal) -> list[Sheet]:
    from selfspec_runtime.loading import load_model
    from selfspec_runtime.preflight import preflight
    from selfspec_runtime.probe import probe
    from selfspec_runtime.target import Target

    spec = model.over(None)
    ready = preflight(spec)
    facts = {
        "model": ready.place.name,
        "architecture": ready.architecture,
        "layers": ready.num_hidden_layers,
        "hidden size": ready.hidden_size,
        "vocabulary": ready.vocab_size,
        "context": ready.context_tokens,
        "chat template": "yes" if ready.has_chat_template else "no: prompts are given as plain text",
        "dtype": str(ready.dtype).removeprefix("torch."),
        "device": str(ready.device),
        "weights in memory": _size(ready.weight_bytes),
    }
    loaded = load_model(spec)
    for notice in loaded.notices:
        terminal.notice(notice)
    report = probe(Target(loaded.model), loaded.tokenizer)
    return [_facts("model", "This model", facts), _probe_sheet(report, loaded)]


def _probe_sheet(report: ProbeReport, loaded: LoadedModel) -> Sheet:
    from selfspec.cli.sheet import Column, Sheet

    return Sheet(
        name="probe",
        title=f"The wiring of {type(loaded.model).__name__}, proved on {report.num_tokens} tokens",
        columns=(
            Column(key="name", title="what holds", is_text=True),
            Column(key="difference", title="difference", write=lambda value: f"{value:.1e}" if value else "0"),
            Column(key="tolerance", title="tolerance", write=lambda value: f"{value:.1e}" if value else "0"),
        ),
        rows=tuple(
            {"name": check.name, "difference": check.difference, "tolerance": check.tolerance}
            for check in report.checks
        ),
        notes=(
            f"Differences are relative to the logits' spread. transformers' own logits differ by {report.rounding:.1e} "
            "between reading the text at once and in pieces.",
        ),
    )


def _facts(name: str, title: str, facts: dict[str, Any], *, notes: tuple[str, ...] = ()) -> Sheet:
    from selfspec.cli.sheet import Column, Sheet

    columns = (Column(key="fact", title="", is_text=True), Column(key="value", title="", is_text=True))
    rows = tuple({"fact": fact.replace("_", " "), "value": value} for fact, value in facts.items())
    return Sheet(name=name, title=title, columns=columns, rows=rows, notes=notes)


def _size(num_bytes: int | None) -> str | None:
    from selfspec.views.calibration_words import byte_words

    return None if num_bytes is None else byte_words(num_bytes)


def _kernels() -> str:
    """Compiling them takes up to half a minute on a machine that has not done so yet."""
    from selfspec_runtime.native.library import native_status

    status = native_status()
    if status.kernels is not None:
        return "compiled for this CPU"
    return f"none: {status.reason}; oneDNN's products run instead"


def _advice(machine: Machine) -> list[str]:
    advice = []
    on_cpu = machine.device_memory_bytes is None
    if on_cpu and not (machine.avx512_bf16 or machine.amx):
        advice.append(
            "This CPU has neither AVX512_BF16 nor AMX: bfloat16 is slow on it, and verifying several tokens costs more "
            "than a single step. n-gram drafts are likely to be what helps."
        )
    if machine.bitsandbytes is None:
        advice.append(
            "bitsandbytes is not installed: no 4-bit models and no quantised drafts. pip install bitsandbytes"
        )
    return advice
