"""Stand-ins for layers: what each returns, and that each leaves the layer as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.faults import Fault, module_tree
from torch import Tensor, nn

from selfspec_runtime.stubs import HandIn, HandOut, LayerStub, MappedLayer, PartialLayer, Silence, SkippedLayer

HIDDEN = torch.arange(6.0).reshape(1, 2, 3)


class Sublayer(nn.Module):
    """Adds a number, and can be told to throw."""

    def __init__(self, amount: float, *, length: int | None = None) -> None:
        super().__init__()
        self.amount, self.length = amount, length
        self.weight = nn.Parameter(torch.ones(1))
        self.throws = False

    def forward(self, hidden_states: Tensor) -> Any:
        if self.throws:
            raise Fault
        out = torch.full_like(hidden_states, self.amount)
        return out if self.length is None else (out, *["extra"] * (self.length - 1))


class Layer(nn.Module):
    """A residual layer whose attention returns a pair."""

    attention_type = "sliding_attention"

    def __init__(self, *, length: int | None = None) -> None:
        super().__init__()
        self.attention, self.mlp = Sublayer(10.0, length=2), Sublayer(100.0)
        self.length = length

    def forward(self, hidden_states: Tensor, scale: float = 1.0, *, shift: float = 0.0) -> Any:
        hidden_states = hidden_states + self.attention(hidden_states)[0]
        hidden_states = hidden_states + self.mlp(hidden_states) * scale + shift
        return hidden_states if self.length is None else (hidden_states, *["extra"] * (self.length - 1))


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("length", [None, 1, 3])
@pytest.mark.parametrize("kind", ["skipped", "in", "mapped"])
def test_a_stub_returns_as_many_values_as_the_layer(kind: str, length: int | None) -> None:
    layer = Layer(length=length)
    into = HandIn(layer, length)
    into.hidden = HIDDEN
    stubs = {
        "skipped": SkippedLayer(layer, length),
        "in": into,
        "mapped": MappedLayer(layer, length, torch.zeros(3, 3)),
    }
    output = stubs[kind](HIDDEN, 1.0, shift=0.0)
    assert torch.equal(first(output), HIDDEN)
    if length is None:
        assert isinstance(output, Tensor)
    else:
        assert output[1:] == (None,) * (length - 1)


@pytest.mark.parametrize("stub", [SkippedLayer, HandOut, HandIn])
def test_a_stub_looks_like_its_layer_and_owns_nothing_of_it(stub: type[LayerStub]) -> None:
    layer = Layer()
    made = stub(layer, None)
    assert made.attention_type == "sliding_attention"
    assert made.mlp is layer.mlp
    assert list(made.parameters()) == list(made.children()) == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = made.no_such_name


@pytest.mark.parametrize("length", [None, 3])
def test_what_a_layer_returns_is_handed_out_and_kept(length: int | None) -> None:
    layer = Layer(length=length)
    out = HandOut(layer, length)
    assert out.hidden is None
    output = out(HIDDEN, 2.0, shift=1.0)
    assert torch.equal(first(output), HIDDEN + 10 + 200 + 1)
    assert out.hidden is first(output)


def test_a_map_is_added_to_what_comes_in() -> None:
    weight = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    mapped = MappedLayer(Layer(), None, weight)(HIDDEN)
    assert torch.equal(mapped[0, 1], torch.tensor([3.0 + 4.0, 4.0, 5.0 + 6.0]))


@pytest.mark.parametrize(
    ("silenced", "added"), [({"attention": 2}, 100.0), ({"mlp": None}, 10.0), ({"attention": 2, "mlp": None}, 0.0)]
)
def test_a_partial_layer_lacks_what_is_silenced(silenced: dict[str, int | None], added: float) -> None:
    layer = Layer(length=2)
    tree = module_tree(layer)
    output = PartialLayer(layer, 2, silenced)(HIDDEN)
    assert torch.equal(output[0], HIDDEN + added)
    assert module_tree(layer) == tree
    assert torch.equal(layer(HIDDEN)[0], HIDDEN + 110)


def test_a_partial_layer_restores_after_an_exception() -> None:
    layer = Layer()
    tree = module_tree(layer)
    partial = PartialLayer(layer, None, {"attention": 2})
    layer.mlp.throws = True
    with pytest.raises(Fault):
        partial(HIDDEN)
    assert module_tree(layer) == tree
    layer.mlp.throws = False
    assert torch.equal(partial(HIDDEN), HIDDEN + 100)


def test_silence_is_nothing_or_the_residual_that_was_passed_in() -> None:
    assert torch.equal(Silence(Sublayer(1.0), None)(HIDDEN), torch.zeros_like(HIDDEN))
    assert torch.equal(Silence(Sublayer(1.0), None)(hidden_states=HIDDEN), torch.zeros_like(HIDDEN))
    assert Silence(Sublayer(1.0), None)(HIDDEN, residual=HIDDEN) is HIDDEN
    output = Silence(Sublayer(1.0), 3)(HIDDEN)
    assert torch.equal(output[0], torch.zeros_like(HIDDEN))
    assert output[1:] == (None, None)


def test_silence_looks_like_its_sublayer() -> None:
    silence = Silence(Sublayer(7.0), None)
    assert silence.amount == 7.0
    assert list(silence.parameters()) == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = silence.no_such_name
