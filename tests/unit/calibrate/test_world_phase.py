"""Plans for which no engine can be made end neither a search nor a comparison."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.scripted import ScriptedFactory

from selfspec_calibrate import compare
from selfspec_calibrate.compare import held_bytes
from selfspec_calibrate.cost_phase import quantized_available
from selfspec_calibrate.leaders import PlanMemory
from selfspec_calibrate.world_phase import refusal
from selfspec_runtime.errors import PlanError
from selfspec_runtime.plan import DraftPlan

COPY = DraftPlan.model_validate({"source": {"kind": "quantized"}})
ERRORS = [PlanError("no such layer"), MemoryError("no room")]


class FakeSession:
    """A session whose engines are scripted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.engine: Any = ScriptedFactory(
            lambda plan, ids: 1.0, extra_bytes=lambda plan: 50, refuse=lambda plan: error
        )


@pytest.mark.parametrize("error", ERRORS)
def test_the_reason_is_told(error: Exception) -> None:
    assert str(error) in str(refusal(FakeSession(error), COPY))  # type: ignore[arg-type]
    assert refusal(FakeSession(), COPY) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ERRORS)
def test_what_it_would_hold_is_told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "plan_memory", lambda session: PlanMemory(weight_bytes=100, quantized_bytes=27))
    assert held_bytes(FakeSession(error), COPY) == 27  # type: ignore[arg-type]
    assert held_bytes(FakeSession(), COPY) == 50  # type: ignore[arg-type]


def test_a_fault_of_the_program_is_none_of_these() -> None:
    with pytest.raises(ZeroDivisionError):
        refusal(FakeSession(ZeroDivisionError()), COPY)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ERRORS)
def test_a_copy_for_which_there_is_no_memory_is_not_searched(error: Exception) -> None:
    class Target:
        @property
        def quantized_layers(self) -> None:
            raise error

    settings = SimpleNamespace(families=("quantized",))
    assert not quantized_available(SimpleNamespace(settings=settings, target=Target()))  # type: ignore[arg-type]
