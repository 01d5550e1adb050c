from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.tiny_models import CONTEXT, tiny_target

from selfspec_calibrate.cost_table import measure_costs
from selfspec_calibrate.timing import Task
from selfspec_runtime.errors import CapacityError
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target


class CountingTimer:
    """Charges a task for the sub-layers, rows and positions that it runs, instead of looking at a clock.

    A pass costs 10 + 0.001 per position and attention, attention 1 and MLP 2 per layer, and 0.5 per row beyond
    the first; whatever runs no model costs 0.25.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.calls = 0

    def __call__(self, tasks: Sequence[Task]) -> list[float]:
        self.calls += 1
        return [self._charged(task) for task in tasks]

    def _charged(self, task: Task) -> float:
        seconds: list[float] = []
        parts = self.target.parts
        handles = [parts.base.register_forward_hook(lambda *_: seconds.append(10.0))]
        for layer in parts.layers:
            attention = getattr(layer, str(parts.attention_name))
            handles.append(attention.register_forward_hook(self._attention(seconds), with_kwargs=True))
            if parts.mlp_name is not None:
                handles.append(getattr(layer, parts.mlp_name).register_forward_hook(lambda *_: seconds.append(2.0)))
        try:
            task()
        finally:
            for handle in handles:
                handle.remove()
        return sum(seconds) or 0.25

    def _attention(self, seconds: list[float]) -> Any:
        def charge(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any], _output: object) -> None:
            mask = kwargs["attention_mask"]
            rows, columns = mask.shape[-2:]
            seconds.append(1.0 + 0.001 * (columns - rows) + 0.5 * (rows - 1) / self.target.num_layers)

        return charge


def measured(family: str = "llama", **changes: Any) -> Any:
    target = tiny_target(family)
    timer = CountingTimer(target)
    arguments: dict[str, Any] = {
        "max_rows": 3,
        "context_lengths": (200, 100),
        "with_quantized": False,
        "repeats": 1,
        "timer": timer,
    }
    return measure_costs(target, **arguments | changes)


def test_parts_come_out_as_they_were_charged() -> None:
    table = measured()
    assert table.context_lengths == (100, 200)
    assert table.pass_s[0] == pytest.approx((22.4, 22.9, 23.4))
    assert table.pass_s[1] == pytest.approx((22.8, 23.3, 23.8))
    assert table.attention_s == pytest.approx((1.1, 1.2))
    assert table.mlp_s == pytest.approx(2.0)
    assert table.head_s == pytest.approx(10.0)
    assert table.host_s >= 0
    assert table.quantized_pass_s is table.quantized_head_s is None


def test_everything_is_timed_in_one_interleaved_run() -> None:
    target = tiny_target("llama")
    timer = CountingTimer(target)
    measure_costs(target, max_rows=2, context_lengths=(8, 16, 32), with_quantized=True, repeats=1, timer=timer)
    assert timer.calls == 1


def test_what_is_left_of_a_layer_is_its_mlp_where_the_family_has_no_such_module() -> None:
    table = measured("opt")
    assert table.attention_s[0] == pytest.approx(1.1)
    assert table.mlp_s == pytest.approx((table.pass_s[0][0] - table.head_s) / 4 - 1.1)


def test_the_quantised_copy_is_timed_with_its_head() -> None:
    table = measured(with_quantized=True)
    # The copy's sub-layers are charged as the originals are.
    assert table.quantized_pass_s == pytest.approx(table.pass_s[0][0])
    assert table.quantized_head_s == pytest.approx(10.0)


def test_contexts_are_cut_to_the_models() -> None:
    table = measured(context_lengths=(100, CONTEXT, 10 * CONTEXT))
    assert table.context_lengths == (100, CONTEXT - 3)
    with pytest.raises(CapacityError):
        measured(max_rows=CONTEXT + 1)


def test_sampled_passes_are_timed_with_their_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def law(logits: Any, settings: SamplingSettings) -> Any:
        seen.append((settings, logits.shape[0]))
        return logits

    monkeypatch.setattr("selfspec_calibrate.cost_table.token_probs", law)
    sampling = SamplingSettings(temperature=0.7)
    measured(sampling=sampling)
    assert {rows for _, rows in seen} == {1, 2, 3}
    assert {settings for settings, _ in seen} == {sampling}


def test_the_default_timer_times_every_pass_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    logits = Target.logits

    def counted(self: Target, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        rows.append(len(token_ids))
        return logits(self, token_ids, *args, **kwargs)

    monkeypatch.setattr(Target, "logits", counted)
    monkeypatch.setattr("selfspec_calibrate.cost_table.MIN_TOTAL_S", 0.0)
    table = measured(max_rows=3, context_lengths=(16,), repeats=4, timer=None)
    # Once to warm up and four times measured, and once to fill the cache.
    assert (rows.count(2), rows.count(3)) == (5, 6)
    assert min(*table.pass_s[0], table.head_s) > 0
