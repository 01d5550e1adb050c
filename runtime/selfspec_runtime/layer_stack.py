"""The place of a model's layers, which one pass after another may fill with those of a program."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from selfspec_runtime.architecture import DecoderParts
    from selfspec_runtime.program import LayerProgram

Result = TypeVar("Result")

#: One lock per stack, whoever speaks of it: two engines may have been made of the same model.
_LOCKS: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()


def lock_of(layers: nn.Module) -> RLock:
    """The lock of a stack, which whoever reads or fills it holds."""
    return _LOCKS.setdefault(layers, RLock())


class LayerStack:
    """Runs layer programs in the place of a model's own layers.

    Args:
        parts: The model's parts.

    Attributes:
        lock: Held while a program runs.
    """

    def __init__(self, parts: DecoderParts) -> None:
        self._parts, self.lock = parts, lock_of(parts.layers)

    def require_own(self) -> None:
        """Checks that the model's layers are those that programs were made of.

        Raises:
            UsageError: One was replaced, or their list was.
        """
        parts = self._parts
        is_there = any(child is parts.layers for child in parts.base._modules.values())
        if not is_there or tuple(vars(parts.layers)["_modules"].values()) != parts.own_layers:
            message = (
                "The model's layers are not those that it had when selfspec took it over: one was replaced, added or "
                "removed since. Hand the model over again, such as by selfspec.load(model, tokenizer)."
            )
            raise UsageError(message)

    def run(self, program: LayerProgram, run: Callable[[], Result]) -> Result:
        """Runs with a program in the layers' place, and puts the originals back whatever happens.

        Python delivers Ctrl-C when a function is entered or has returned. So exchange and reversal are assignments in
        dictionaries, which nothing can interrupt, within one ``try``: entering and leaving a context manager of our
        own could be interrupted, and would leave the model truncated. Passes of other threads wait.

        Raises:
            UsageError: The model's layers were replaced.
        """
        with self.lock:
            self.require_own()
            owner, head_name = _head_place(self._parts)
            place, children = vars(self._parts.layers), owner._modules
            originals, own_head, head = place["_modules"], children.get(head_name), program.head
            modules = {str(index): module for index, module in enumerate(program.modules)}
            try:
                place["_modules"] = modules
                if head is not None:
                    children[head_name] = head
                return run()
            finally:
                place["_modules"] = originals
                if head is not None:
                    children[head_name] = own_head


def _head_place(parts: DecoderParts) -> tuple[nn.Module, str]:
    path = parts.head_path or "lm_head"
    parent, _, name = path.rpartition(".")
    return (parts.model.get_submodule(parent) if parent else parts.model), name
