"""What stock ``generate`` says, and how a text may differ from it: not at all, or first at a tie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

TIE = 1e-5
"""Margin between the two largest logits under which float32 rounding may decide."""


@dataclass(frozen=True)
class Reference:
    """What ``transformers`` generates.

    Attributes:
        token_ids: New tokens.
        margins: For each the difference of the two largest logits that it was chosen from.
    """

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]


@torch.no_grad()
def generate_reference(model: PreTrainedModel, prompt: Sequence[int], *, num_tokens: int, **options: Any) -> Reference:
    """Greedy ``generate``; options are its own (``stop_strings``, ``repetition_penalty``, ...)."""
    out = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    largest = torch.cat(out.scores).topk(2, dim=-1).values
    new_ids = out.sequences[0, len(prompt) :].tolist()
    return Reference(tuple(new_ids), tuple((largest[:, 0] - largest[:, 1]).tolist()))


def assert_lossless(token_ids: Sequence[int], reference: Reference) -> None:
    """Fails unless the tokens equal the reference's or first differ at a tie."""
    pairs = zip(token_ids, reference.token_ids, strict=False)
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if first is None:
        assert len(token_ids) == len(reference.token_ids), (
            f"{len(token_ids)} tokens, but generate gives {len(reference.token_ids)}; what both have is equal"
        )
        return
    margin = reference.margins[first]
    assert margin < TIE, (
        f"token {first} is {token_ids[first]}, but generate says {reference.token_ids[first]}, and no tie decides: "
        f"the two largest logits are {margin:.2e} apart"
    )
