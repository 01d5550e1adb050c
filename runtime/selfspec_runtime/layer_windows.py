"""How far back each layer sees, asked of the model itself.

A configuration may name a window that the family never reads: a converted checkpoint keeps what its old family
read. No list of families tells the two apart. So the model's own forward makes its masks, for one token far
enough into a text, with stand-ins in the layers' place that note the mask which each of them is given.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from selfspec_runtime.cache import KVCache
from selfspec_runtime.errors import UnsupportedModelError
from selfspec_runtime.families import text_config
from selfspec_runtime.layer_stack import LayerStack
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.stubs import LayerStub

if TYPE_CHECKING:
    from torch import Tensor, nn

    from selfspec_runtime.architecture import DecoderParts

MARGIN = 8
"""Positions asked about beyond the window, so that another length than the one named would be seen."""


def layer_windows(parts: DecoderParts, *, window: int) -> tuple[int | None, ...]:
    """For each layer the number of positions that it sees, itself included; None for all.

    Costs an embedding of one token and masks of one row.

    Args:
        parts: The model's parts; their own windows are not read.
        window: What the configuration names.

    Raises:
        UnsupportedModelError: A layer sees something else than the last positions.
    """
    device = parts.model.get_input_embeddings().weight.device
    if device.type == "meta":  # where masks hold nothing: what the configuration names is all that is known
        kinds = getattr(text_config(parts.model.config), "layer_types", None)
        kinds = kinds or ["sliding_attention"] * parts.num_layers
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    cache = KVCache(parts.num_layers, capacity=0)
    cache.begin(window + MARGIN - 1, 1)
    stubs = tuple(_Noting(layer) for layer in parts.own_layers)
    arguments: dict[str, Any] = {
        "input_ids": torch.zeros(1, 1, dtype=torch.long, device=device),
        "attention_mask": None,
        parts.cache_argument: cache,
        "use_cache": True,
    }
    if parts.takes_positions:  # The first one: tables of positions may end before the window does.
        arguments["position_ids"] = torch.zeros(1, 1, dtype=torch.long, device=device)
    _run_to_last_layer(parts, stubs, arguments)
    return tuple(_num_seen(parts, stub.mask) for stub in stubs)


@torch.no_grad()
def _run_to_last_layer(parts: DecoderParts, stubs: tuple[_Noting, ...], arguments: dict[str, Any]) -> None:
    stubs[-1].is_last = True
    try:
        LayerStack(parts).run(LayerProgram(stubs), lambda: parts.base(**arguments))
    except _LastLayerReached:
        return


class _LastLayerReached(Exception):
    """Nothing after the layers is of interest, and it might not understand what the stand-ins return."""


class _Noting(LayerStub):
    """Keeps the mask that it is given.

    Attributes:
        mask: ``[1, 1, 1, live]``, boolean or additive; None where everything is seen.
        is_last: Whether the pass ends here.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, 1)
        self.mask: Tensor | None = None
        self.is_last = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns hidden states in a tuple: good for families that take the first entry, and for the next stand-in."""
        given = inspect.signature(self.layer.forward).bind(*args, **kwargs).arguments
        self.mask = {**given.get("kwargs", {}), **given}.get("attention_mask")
        if self.is_last:
            raise _LastLayerReached
        return (next(iter(given.values())),)


def _num_seen(parts: DecoderParts, mask: Tensor | None) -> int | None:
    if mask is None:
        return None
    row = mask.flatten()
    own = row[-1]  # what the token itself has, all that is seen has: families turn masks round
    hides_itself = not own if parts.takes_boolean_masks and row.dtype == torch.bool else own < 0
    seen = row == own
    num_seen = int(seen.sum())
    if hides_itself or not seen[row.shape[0] - num_seen :].all():
        message = (
            f"{type(parts.model).__name__} cannot be decoded in blocks: with its sliding_window a layer of it sees "
            "something else than the last positions of the text. Use transformers' generate."
        )
        raise UnsupportedModelError(message)
    return None if num_seen == row.shape[0] else num_seen
