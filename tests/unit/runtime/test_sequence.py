"""The tokens of a generation: the same on the host and on the device."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from selfspec_runtime.sequence import Sequence

IDS = st.lists(st.integers(0, 2**31), min_size=1, max_size=20)


@given(prompt=IDS, new_ids=st.lists(st.integers(0, 2**31), max_size=200))
def test_host_and_device_hold_the_same_tokens(prompt: list[int], new_ids: list[int]) -> None:
    sequence = Sequence(prompt, device=torch.device("cpu"))
    for token in new_ids:
        sequence.append(token)
    assert sequence.ids == sequence.tensor().tolist() == prompt + new_ids
    assert sequence.new_ids == new_ids
    assert sequence.prompt_length == len(prompt)
    assert len(sequence) == len(prompt) + len(new_ids)
    assert sequence.last_position == len(sequence) - 1
    assert sequence.tensor().dtype == torch.int64


def test_the_callers_list_is_not_changed() -> None:
    prompt = [1, 2]
    Sequence(prompt, device=torch.device("cpu")).append(3)
    assert prompt == [1, 2]
