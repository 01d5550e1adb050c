"""A pass of a model of the Llama kind without what transformers does around its layers.

At every pass a stock forward checks a mask, copies the list of layers, computes rotary positions and wraps its output,
and it calls each layer by itself: in a small model that takes longer than the multiplications. Here neighbouring layers
are one call, and rotary positions are looked up. The function is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfspec_runtime.cache import KVCache
from selfspec_runtime.lean_layer import LeanLayer, is_stock
from selfspec_runtime.lean_norm import LeanNorm
from selfspec_runtime.native.layer import fits_layers, run_layers
from selfspec_runtime.native.linear import KernelLinear
from selfspec_runtime.native.operations import fits, linear
from selfspec_runtime.rotary_table import RotaryTable
from selfspec_runtime.stubs import HandOut, SkippedLayer

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


class LeanPass:
    """Runs layer programs.

    Args:
        parts: A model for which :func:`runs_lean` holds.
    """

    def __init__(self, parts: DecoderParts) -> None:
        base: Any = parts.base
        self._parts = parts
        self._embed, self._norm = base.embed_tokens, LeanNorm(base.norm)
        self._rotary = RotaryTable(base.rotary_emb)

    def logits(self, given: PassInput, program: LayerProgram, *, keep: int | None) -> Tensor:
        """Logits of the last ``keep`` rows, or of all, ``[keep, vocab]``; as the head gives them."""
        hidden = self._hidden(given, program)
        return self._said(hidden if keep is None else hidden[:, -keep:], program.head or self._parts.head)

    def _said(self, hidden: Tensor, head: Any) -> Tensor:
        """Logits ``[n, vocab]`` after final norm and head."""
        if isinstance(head, KernelLinear) and fits(hidden.shape[1], hidden.dtype, hidden.device):
            return linear(hidden, head.matrix, self._norm.described)[0]
        logits: Tensor = head(self._norm(hidden))[0]
        return logits

    def advance(self, given: PassInput, program: LayerProgram) -> None:
        """Runs the layers, for what they write into the cache and the program's stubs."""
        self._hidden(given, program)

    def _hidden(self, given: PassInput, program: LayerProgram) -> Tensor:
        """Hidden states ``[1, n, hidden]`` before the final norm."""
        hidden: Tensor = self._embed(given.token_ids[None])
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
        run = _Run(None)
        for index, module in enumerate(program.modules):
            if type(module) is SkippedLayer:
                continue
            layer, own = _layer_of(module), self._mask_of(mask, index)
            native = layer.native() if type(layer) is LeanLayer else None
            if run.modules and not run.goes_on_with(native, own):
                yield run
                run = _Run(None)
            run.mask = own
            run.modules.append(module)
            run.layers.extend([native] if native is not None else [])
        if run.modules:
            yield run

    def _mask_of(self, mask: Mask | None, index: int) -> Tensor | None:
        kinds = self._parts.layer_kinds
        if isinstance(mask, dict):
            assert kinds is not None, "a dictionary of masks has one for each kind of layer"
            return mask[kinds[index]]
        return mask


@dataclass
class _Run:
    """Neighbouring modules of a program that see the same; whole lean layers, or one module of any other kind.

    Attributes:
        mask: What their rows see.
        modules: What runs.
        layers: The same as the kernels read it; empty for another kind.
    """

    mask: Tensor | None
    modules: list[nn.Module] = field(default_factory=list)
    layers: list[NativeLayer] = field(default_factory=list)

    def goes_on_with(self, native: NativeLayer | None, mask: Tensor | None) -> bool:
        """Whether a module may follow in the same call: nothing is handed out between the two."""
        return bool(self.layers) and native is not None and mask is self.mask and type(self.modules[-1]) is not HandOut

    def through(self, hidden: Tensor, cache: Any, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Maps ``[1, n, hidden]`` to the same shape."""
        in_one = self.layers and type(cache) is KVCache and fits_layers(self.layers[0], hidden, self.mask, rotary)
        return self._at_once(hidden, cache, rotary) if in_one else self._one_by_one(hidden, cache, rotary)

    def _at_once(self, hidden: Tensor, cache: KVCache, rotary: tuple[Tensor, Tensor]) -> Tensor:
        shape, last = self.layers[0].shape, self.modules[-1]
        slots = cache.slots(kv_heads=shape.keys, dim=shape.dim, like=hidden)
        hidden = run_layers(self.layers, hidden, slots, self.mask, rotary)
        if isinstance(last, HandOut):
            last.hidden = hidden
        return hidden

    def _one_by_one(self, hidden: Tensor, cache: Any, rotary: tuple[Tensor, Tensor]) -> Tensor:
        for module in self.modules:
            hidden = module(hidden, attention_mask=self.mask, cache=cache, position_embeddings=rotary)
        return hidden


def _layer_of(module: nn.Module) -> nn.Module:
    """What a module runs whose output is handed out besides."""
    layer: nn.Module = module.layer if type(module) is HandOut else module
    return layer


def runs_lean(parts: DecoderParts) -> bool:
    """Whether a model is of the Llama kind, rebuilt for this CPU by selfspec, head and all."""
    rebuilt = all(type(layer) is LeanLayer for layer in parts.layers)
    return rebuilt and is_stock(parts.base, LEAN_MODELS) and is_stock(parts.model, HEADED_MODELS)
