"""Attention kernels that are wrong on purpose are noticed by what the shipped ones pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import interpreter
from tests.support.attention_cases import SPLIT, TOLERANCES, Case, make_case
from tests.support.changed_kernels import changed_kernels
from torch import Tensor

pytest.importorskip("triton")

KERNELS, LAUNCHER = "attention_kernels", "decode_attention"
SINKS = torch.tensor([0.5, -1.0])
#: File, old text and new text.
FAULTS: dict[str, tuple[str, str, str]] = {
    "no scaling": (KERNELS, "IS_WIDENED) * scaling", "IS_WIDENED)"),
    "no softcap": (KERNELS, "scores = softcap * _tanh(scores / softcap)", "scores = scores"),
    "a softcap of one sign": (KERNELS, "tl.where(x < 0.0, -bound, bound)", "bound"),
    "sinks that take no mass": (
        KERNELS,
        "total = tl.full((), 1.0, tl.float32)",
        "total = tl.full((), 0.0, tl.float32)",
    ),
    "another head's sink": (KERNELS, "entry % num_heads", "entry // num_heads"),
    "another head's keys": (KERNELS, "kv_head * keys.head_stride", "kv_head * 0"),
    "the mask of the first row": (
        KERNELS,
        "places = rows.to(tl.int64)[:, None] * row_stride",
        "places = rows.to(tl.int64)[:, None] * 0",
    ),
    "rows that take turns with heads": (KERNELS, "rows, heads = queries // GROUPS", "rows, heads = queries % num_rows"),
    "only the first tile of rows": (KERNELS, "range(0, num_queries, _ROWS)", "range(0, _ROWS, _ROWS)"),
    "splits merged as if of one peak": (
        KERNELS,
        "tl.where(is_live, tl.exp(split_peaks - base), 0.0)",
        "tl.where(is_live, 1.0, 0.0)",
    ),
    "chunks that do not fade": (KERNELS, "out = out * fading", "out = out"),
    "a last split that is left out": (KERNELS, "mask=splits < num_splits", "mask=splits < num_splits - 1"),
    "a split that begins too late": (KERNELS, "columns = split * SPLIT + ", "columns = split * SPLIT + 1 + "),
    "values that no row sees are read": (
        KERNELS,
        "mask=is_column_seen[:, None] & (value_dims",
        "mask=(columns < num_columns)[:, None] & (value_dims",
    ),
    "dead splits are merged": (KERNELS, "is_live = split_sums != 0.0", "is_live = splits < num_splits"),
    "hidden columns that count a little": (LAUNCHER, "torch.finfo(mask.dtype).min", "float('-inf')"),
    "splits that depend on the number of rows": (
        LAUNCHER,
        "split = split or",
        "split = 32 if num_rows > 1 else split or",
    ),
}


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """Mutants run in Triton's interpreter, and memory that nothing was written to is full of NaN."""
    interpreter.require()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def complaints(attend: Callable[..., Tensor]) -> Iterator[str]:
    """What is wrong with a function like `decode_attention`; one check after the other, the cheapest first."""

    def run(case: Case, mask: Tensor | None = None, **options: Any) -> Tensor:
        shown = case.mask if mask is None else mask
        return attend(case.query, case.key, case.value, shown, split=SPLIT, **case.extras, **options)

    def is_right(case: Case, **options: Any) -> bool:
        return case.error(run(case, **options)) < TOLERANCES[torch.float32]

    block = make_case(heads=(2, 2), rows=2, columns=SPLIT + 1, softcap=1.5, sinks=SINKS)
    if not is_right(block):
        yield "several rows and heads, softcap and sinks"
    grouped = make_case(heads=(3, 1), rows=6, columns=SPLIT)
    if not is_right(grouped):
        yield "more rows and grouped heads than one tile holds"
    row = make_case(heads=(1, 1), rows=2, columns=17 * SPLIT + 2)
    row.key[:, :, -1] = row.query[:, :, -1] * 2.0
    together = run(row)
    if not row.error(together) < TOLERANCES[torch.float32]:
        yield "more splits than one chunk holds, and most of the weight in the last"
    if not torch.equal(run(row.row(1)), together[:, 1:]):
        yield "other bits alone"
    assert grouped.mask is not None
    lowest = torch.zeros(grouped.mask.shape).masked_fill(~grouped.mask, torch.finfo(torch.float32).min)
    lowest[:, :, 0] = torch.finfo(torch.float32).min
    if run(grouped, lowest)[:, 0].any():
        yield "an additive mask that hides everything"
    unread = make_case(rows=1, columns=3 * SPLIT)
    assert unread.mask is not None
    unread.mask[..., : SPLIT + 3] = False
    unread.value[:, :, : SPLIT + 3] = torch.nan
    if run(unread).isnan().any():
        yield "reads values that no row sees"
    grouped.key[0, 0, 3, 0] = torch.nan
    if not run(grouped).isnan().any():
        yield "hides a NaN"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_noticed(fault: str, tmp_path: Path) -> None:
    file, old, new = FAULTS[fault]
    name = f"attention_{list(FAULTS).index(fault)}"
    (module,) = changed_kernels(tmp_path, name, file=file, changes=[(old, new, 1)], modules=[LAUNCHER])
    assert next(complaints(module.decode_attention), None) is not None


def test_a_copy_without_changes_passes(tmp_path: Path) -> None:
    (module,) = changed_kernels(tmp_path, "attention_unchanged", file=KERNELS, changes=[], modules=[LAUNCHER])
    assert list(complaints(module.decode_attention)) == []
