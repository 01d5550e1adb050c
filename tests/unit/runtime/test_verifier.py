"""The first layers run again for a whole block only where running them for fewer rows would cost more."""

from __future__ import annotations

import pytest
import torch
from tests.support.counted_costs import counted_layers
from tests.support.tiny_models import prompt_ids, tiny_target

from selfspec_runtime import verifier
from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.target import Target
from selfspec_runtime.verifier import Verifier

EXIT, DRAFTED = 3, 4


def verified(target: Target) -> tuple[torch.Tensor, float]:
    """Logits of a block whose draft ran the first layers, and the rows that ran through layers for it."""
    prompt, drafted = prompt_ids(20), prompt_ids(DRAFTED, seed=5)
    sequence, cache = Sequence(prompt, device=torch.device("cpu")), target.new_cache()
    block = torch.tensor([prompt[-1], *drafted])
    target.logits(torch.tensor(prompt[:-1]), cache, start=0)
    program, out = target.programs.exit_at(EXIT)
    target.advance(block[:-1], cache, start=len(prompt) - 1, program=program)
    assert out.hidden is not None
    draft = Draft(drafted, [None] * DRAFTED, prefix=ExactPrefix(EXIT, out.hidden))
    with counted_layers(target, row_cost=1.0) as count:
        logits = Verifier(target).verify(sequence, draft, cache)
    return logits, count.work


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_large_first_layers_run_for_the_missing_row_and_small_ones_for_all(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(family)
    held = EXIT * weight_bytes(target.parts.layers[0])
    results = {}
    for limit in (held, held + 1):
        monkeypatch.setattr(verifier, "SMALL_PREFIX_BYTES", limit)
        results[limit] = verified(target)
    (resumed, fewer), (whole, all_rows) = results.values()
    torch.testing.assert_close(resumed, whole, rtol=1e-4, atol=1e-4)
    rows = DRAFTED + 1
    assert all_rows == rows * target.num_layers
    assert fewer == rows * (target.num_layers - EXIT) + EXIT
