"""Every operator runs with its tensors' device as the current one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from selfspec_runtime.kernels import attention_operator, operators
from selfspec_runtime.kernels.placement import on_its_device

OPERATORS = [
    value
    for module in (operators, attention_operator)
    for value in vars(module).values()
    if isinstance(value, torch.library.CustomOpDef)
]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors whose devices were made current, and None when that ended."""
    seen: list[Any] = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        seen.append(tensor)
        try:
            yield
        finally:
            seen.append(None)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    return seen


def test_the_first_tensor_says_where(entered: list[Any]) -> None:
    one, two = torch.zeros(1), torch.zeros(2)

    @on_its_device
    def run(number: int, first: Tensor, *, second: Tensor) -> str:
        entered.append("ran")
        return f"{number} {len(first)} {len(second)}"

    assert run(3, one, second=two) == "3 1 2"
    assert entered[0] is one
    assert entered[1:] == ["ran", None]


def test_a_failure_leaves_the_device_as_it_was(entered: list[Any]) -> None:
    @on_its_device
    def fail(tensor: Tensor) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail(torch.zeros(1))
    assert entered[-1] is None


def test_operators_run_there(entered: list[Any]) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert operators.greedy_tokens(logits).tolist() == [1]
    assert [tensor is None for tensor in entered] == [False, True]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator._name)
def test_no_operator_is_left_out(operator: Any) -> None:
    assert inspect.unwrap(operator._init_fn) is not operator._init_fn
