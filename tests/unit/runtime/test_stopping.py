"""What ends a generation, and that the earliest of several reasons wins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.byte_tokenizer import byte_tokenizer, metaspace_tokenizer
from transformers import PreTrainedTokenizerFast

from selfspec_runtime.errors import UsageError
from selfspec_runtime.sequence import Sequence
from selfspec_runtime.stopping import FinishReason, StopConditions, Stopper

EOS = 2


def ids_of(text: str) -> list[int]:
    """One token per byte, so that every character beyond ASCII is split."""
    return [3 + byte for byte in text.encode()]


def run(
    new_ids: list[int], *, prompt: list[int] | None = None, tokenizer: Any = None, **conditions: Any
) -> tuple[int, FinishReason | None]:
    """Appends tokens until a condition holds; returns how many there are and why."""
    stopper = Stopper(StopConditions(**conditions), tokenizer or byte_tokenizer())
    sequence = Sequence(prompt or ids_of("the"), device=torch.device("cpu"))
    for number, token in enumerate(new_ids, start=1):
        sequence.append(token)
        reason = stopper.check(sequence)
        if reason is not None:
            return number, reason
    return len(new_ids), None


def test_without_a_reason_it_goes_on() -> None:
    assert run(ids_of("some text")) == (9, None)


def test_any_of_the_ending_tokens_ends_it() -> None:
    assert run([5, 6, EOS, 7], eos_token_ids=(9, EOS)) == (3, "eos")
    assert run([5, 6, 7], prompt=[EOS], eos_token_ids=(EOS,)) == (3, None)


@pytest.mark.parametrize("stop", ["END", "\n\n", "é", "😀", "中文", " a"])
def test_a_stop_string_over_several_tokens_ends_it_with_its_last_one(stop: str) -> None:
    before = "x" * 20
    assert run(ids_of(before + stop + "rest"), stop=("never", stop)) == (20 + len(stop.encode()), "stop")


def test_a_stop_string_inside_of_a_token_ends_it_with_that_token() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("is the", add_special_tokens=False)
    assert len(ids) < 6
    assert run([*ids, 5], stop=("h",))[1] == "stop"
    assert run([*ids, 5], stop=("h",))[0] <= len(ids)


def test_a_stop_string_that_began_in_the_prompt_does_not_count() -> None:
    assert run(ids_of("D of"), prompt=ids_of("the EN"), stop=("END",)) == (4, None)


def test_a_marker_can_be_a_stop_string() -> None:
    assert run([*ids_of("ab"), EOS, 5], stop=("</s>",)) == (3, "stop")


CHARACTERS = st.sampled_from("ab\n中😀")


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), metaspace_tokenizer()], ids=["byte level", "byte fallback"])
@given(text=st.text(CHARACTERS, max_size=25), stop=st.text(CHARACTERS, min_size=1, max_size=5))
def test_a_stop_string_is_found_where_a_search_of_the_whole_text_finds_it(
    tokenizer: PreTrainedTokenizerFast, text: str, stop: str
) -> None:
    first_byte = tokenizer.convert_tokens_to_ids("<0x00>") if tokenizer is metaspace_tokenizer() else 3
    place, ids = text.find(stop), [first_byte + byte for byte in text.encode()]
    found = run(ids, tokenizer=tokenizer, stop=(stop,))
    assert found == ((len(text[: place + len(stop)].encode()), "stop") if place >= 0 else (len(ids), None))


@pytest.mark.parametrize("between", ["", "a", "aa", "aaa", "aaaa"])
@pytest.mark.parametrize("character", ["é", "中", "😀"])
def test_a_character_that_is_cut_does_not_hide_a_stop_string_behind_it(character: str, between: str) -> None:
    tokenizer = metaspace_tokenizer()
    first_byte = tokenizer.convert_tokens_to_ids("<0x00>")
    ids = [first_byte + byte for byte in (character * 3 + between + "\n").encode()]
    assert run(ids, tokenizer=tokenizer, stop=("\n",)) == (len(ids), "stop")


def test_a_criterion_sees_all_tokens_and_cannot_change_them() -> None:
    seen: list[list[int]] = []

    def criterion(ids: list[int]) -> bool:
        seen.append(list(ids))
        ids.clear()
        return len(seen) == 3

    assert run([5, 6, 7, 8], prompt=[4], criteria=(lambda ids: False, criterion)) == (3, "criterion")
    assert seen == [[4, 5], [4, 5, 6], [4, 5, 6, 7]]


def test_length_counts_new_tokens_and_the_context_counts_all() -> None:
    assert run(ids_of("abcdef"), max_new_tokens=4) == (4, "length")
    assert run(ids_of("abcdef"), prompt=[5, 6, 7], max_positions=5) == (2, "length")
    assert run(ids_of("abcdef"), prompt=[5, 6, 7], max_positions=5, max_new_tokens=1) == (1, "length")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"eos_token_ids": (5,), "stop": ("\x03",), "max_new_tokens": 4}, (3, "eos")),
        ({"eos_token_ids": (6,), "stop": ("\x02",), "max_new_tokens": 4}, (3, "stop")),
        ({"eos_token_ids": (6,), "stop": ("\x03",), "criteria": (lambda ids: len(ids) == 5,)}, (2, "criterion")),
        ({"eos_token_ids": (6,), "stop": ("\x03",), "max_new_tokens": 1}, (1, "length")),
    ],
)
def test_the_earliest_reason_wins(conditions: dict[str, Any], expected: tuple[int, str]) -> None:
    assert run([3, 4, 5, 6], **conditions) == expected


def test_at_one_token_the_order_is_eos_stop_criterion_length() -> None:
    conditions: dict[str, Any] = {
        "eos_token_ids": (3 + ord("x"),),
        "stop": ("x",),
        "criteria": (lambda ids: True,),
        "max_new_tokens": 1,
    }
    for reason, name in (("eos", "eos_token_ids"), ("stop", "stop"), ("criterion", "criteria")):
        assert run(ids_of("x"), **conditions) == (1, reason)
        conditions[name] = ()
    assert run(ids_of("x"), **conditions) == (1, "length")


@pytest.mark.parametrize(
    ("conditions", "room"),
    [
        ({"max_new_tokens": 10}, 7),
        ({"max_new_tokens": 3}, 0),
        ({"max_new_tokens": 2}, 0),
        ({"max_new_tokens": 10, "max_positions": 8}, 2),
        ({"max_new_tokens": 10, "max_positions": 5}, 0),
        ({"max_new_tokens": 4, "max_positions": 100}, 1),
    ],
)
def test_a_draft_leaves_room_for_the_token_that_follows_it(conditions: dict[str, int], room: int) -> None:
    sequence = Sequence([4, 5, 6], device=torch.device("cpu"))
    sequence.append(7)
    sequence.append(8)
    assert Stopper(StopConditions(**conditions), None).room(sequence) == room


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Stop strings.*tokenizer"):
        Stopper(StopConditions(stop=("x",)), None)
