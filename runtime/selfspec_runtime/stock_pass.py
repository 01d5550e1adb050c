"""A pass through the unmodified model's own forward, with a layer program in its layers' place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.layer_stack import LayerStack

if TYPE_CHECKING:
    from torch import Tensor

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.pass_input import PassInput
    from selfspec_runtime.program import LayerProgram


class StockPass:
    """Runs layer programs in any model.

    Args:
        parts: The model's parts.
    """

    def __init__(self, parts: DecoderParts) -> None:
        self._parts, self._stack = parts, LayerStack(parts)

    def logits(self, given: PassInput, program: LayerProgram, *, keep: int | None) -> Tensor:
        """Logits of the last ``keep`` rows, or of all, ``[keep, vocab]``; as the head gives them."""
        arguments = self._arguments(given)
        if keep is not None and self._parts.takes_logits_to_keep:
            arguments["logits_to_keep"] = keep
        logits: Tensor = self._stack.run(program, lambda: self._parts.model(**arguments).logits[0])
        return logits if keep is None else logits[-keep:]

    def advance(self, given: PassInput, program: LayerProgram) -> None:
        """Runs everything before the head, for what it writes into the cache and the program's stubs."""
        arguments = self._arguments(given)
        self._stack.run(program, lambda: self._parts.base(**arguments))

    def _arguments(self, given: PassInput) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "input_ids": given.token_ids[None],
            "attention_mask": given.told_mask(self._parts, self._parts.model.dtype),
            self._parts.cache_argument: given.cache,
            "use_cache": True,
        }
        if self._parts.takes_positions:
            arguments["position_ids"] = given.told_positions()[None]
        return arguments
