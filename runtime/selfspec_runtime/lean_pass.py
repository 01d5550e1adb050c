"""A pass of a model of the Llama kind without what transformers does around its layers.

At every pass a stock forward checks a mask, copies the list of layers, computes rotary positions and wraps its output,
and it calls each layer by itself: in a small model that takes longer than the multiplications. Here neighbouring layers
are one call, and rotary positions are looked up. The function is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfspec_runtime.layer_stack import LayerStack
from selfspec_runtime.lean_layer import NORMS, LeanLayer, is_stock, run_native
from selfspec_runtime.lean_norm import norm_weight
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import linear
from selfspec_runtime.rotary_table import RotaryTable
from selfspec_runtime.stubs import HandOut, PartialLayer, SkippedLayer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.masks import Mask
    from selfspec_runtime.native.layer import NativeLayer
    from selfspec_runtime.pass_input import PassInput
    from selfspec_runtime.program import LayerProgram

#: Models whose forward is: embed, rotary positions, layers, norm; and what puts a head on them and nothing else.
LEAN_MODELS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
HEADED_MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


#: Which half of a lean layer a sub-layer of it is.
SILENCED = {"self_attn": "attention", "mlp": "mlp"}


class LeanPass:
    """Runs layer programs; forward hooks on the model's modules are not called.

    Args:
        parts: A model for which :func:`runs_lean` holds.
    """

    def __init__(self, parts: DecoderParts) -> None:
        self._parts, self._stack = parts, LayerStack(parts)
        base: Any = parts.base
        self._base = base
        self._rotary = RotaryTable(base.rotary_emb)

    def logits(self, given: PassInput, program: LayerProgram, *, keep: int | None) -> Tensor:
        """Logits of the last ``keep`` rows, or of all, ``[keep, vocab]``; as the head gives them."""
        hidden = self._hidden(given, program)
        head = self._parts.head if program.head is None else program.head
        return self._said(hidden if keep is None else hidden[:, -keep:], head)

    def _said(self, hidden: Tensor, head: Any) -> Tensor:
        """Logits ``[n, vocab]`` after final norm and head."""
        norm = norm_weight(self._base.norm)  # looked up each time: a weight that was replaced is heard
        if isinstance(head, KernelLinear) and head.fits(hidden) and norm.weight.dtype == hidden.dtype:
            return linear(hidden, head.matrix, norm)[0]
        logits: Tensor = head(self._base.norm(hidden))[0]
        return logits

    def advance(self, given: PassInput, program: LayerProgram) -> None:
        """Runs the layers, for what they write into the cache and the program's stubs."""
        self._hidden(given, program)

    def _hidden(self, given: PassInput, program: LayerProgram) -> Tensor:
        """Hidden states ``[1, n, hidden]`` before the final norm."""
        with self._stack.lock:
            self._stack.require_own()
            return self._through_layers(given, program)

    def _through_layers(self, given: PassInput, program: LayerProgram) -> Tensor:
        hidden: Tensor = self._base.embed_tokens(given.token_ids[None])
        rotary = self._positions(given, hidden)
        for run in self._runs(program, self._mask(given)):
            hidden = run.through(hidden, given.cache, rotary)
        return hidden

    def _positions(self, given: PassInput, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if given.tree is None and given.positions is None:
            return self._rotary.block(hidden, given.start)
        return self._rotary.at(hidden, given.told_positions())

    def _mask(self, given: PassInput) -> Mask | None:
        """None for one row that sees everything before it."""
        sees_all = given.is_plain and given.num_tokens == 1 and not any(self._parts.windows)
        return None if sees_all else given.told_mask(self._parts, self._parts.model.dtype)

    def _runs(self, program: LayerProgram, mask: Mask | None) -> Iterator[_Run]:
        """What the program runs, cut where neighbours cannot be one call."""
        run: _Run | None = None
        for index, module in enumerate(program.modules):
            if type(module) is SkippedLayer:
                continue
            native, own = _native(module), self._mask_of(mask, index)
            if run is None or not run.goes_on_with(native, own):
                if run is not None:
                    yield run
                run = _Run(own)
            run.add(module, native)
        if run is not None:
            yield run

    def _mask_of(self, mask: Mask | None, index: int) -> Tensor | None:
        kinds = self._parts.layer_kinds
        if isinstance(mask, dict):
            assert kinds is not None, "a dictionary of masks has one for each kind of layer"
            return mask[kinds[index]]
        return mask


@dataclass
class _Run:
    """Neighbouring modules of a program that see the same; lean layers or halves, or one module of any other kind.

    Attributes:
        mask: What their rows see.
        modules: What runs.
        layers: The same as the kernels read it; empty for another kind.
    """

    mask: Tensor | None
    modules: list[nn.Module] = field(default_factory=list)
    layers: list[NativeLayer] = field(default_factory=list)

    def add(self, module: nn.Module, native: NativeLayer | None) -> None:
        """Takes in the next module."""
        self.modules.append(module)
        if native is not None:
            self.layers.append(native)

    def goes_on_with(self, native: NativeLayer | None, mask: Tensor | None) -> bool:
        """Whether a module may follow in the same call: nothing is handed out between the two."""
        return bool(self.layers) and native is not None and mask is self.mask and type(self.modules[-1]) is not HandOut

    def through(self, hidden: Tensor, cache: Any, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Maps ``[1, n, hidden]`` to the same shape."""
        passed, last = run_native(self.layers, hidden, cache, self.mask, rotary), self.modules[-1]
        if passed is None:
            return self._one_by_one(hidden, cache, rotary)
        if isinstance(last, HandOut):
            last.hidden = passed
        return passed

    def _one_by_one(self, hidden: Tensor, cache: Any, rotary: tuple[Tensor, Tensor]) -> Tensor:
        for module in self.modules:
            hidden = module(hidden, attention_mask=self.mask, cache=cache, position_embeddings=rotary)
        return hidden


def _native(module: nn.Module) -> NativeLayer | None:
    """What a module runs as the kernels read it, if it runs a lean layer or one of its halves, and nothing else."""
    layer: Any = module.layer if type(module) in (HandOut, PartialLayer) else module
    if type(layer) is not LeanLayer:
        return None
    silenced = SILENCED[next(iter(module.silenced))] if isinstance(module, PartialLayer) else None
    native: NativeLayer | None = layer.native(silenced)
    return native


def runs_lean(parts: DecoderParts) -> bool:
    """Whether a model is of the Llama kind, rebuilt for this CPU by selfspec, head and all."""
    base: Any = parts.base
    rebuilt = all(type(layer) is LeanLayer for layer in parts.own_layers)
    stock = is_stock(base, LEAN_MODELS) and is_stock(parts.model, HEADED_MODELS)
    return rebuilt and stock and is_stock(base.norm, NORMS)
