"""Text as it comes: nothing lost, nothing twice, no character in halves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.byte_tokenizer import byte_tokenizer, metaspace_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from selfspec_runtime.detokenizer import REPLACEMENT, Detokenizer

ALL_IDS = st.integers(0, len(byte_tokenizer()) - 1)
TEXT = st.text(st.sampled_from("ae thné中文字😀👩‍👩‍👧\n .,'"), max_size=30)
#: How many tokens come at once, as rounds with accepted drafts do.
PORTIONS = st.lists(st.integers(1, 6), min_size=1, max_size=10)


def streamed(ids: list[int], portions: list[int], tokenizer: object = None, *, skip: bool = True) -> list[str]:
    """The pieces of text that come out, the last one from ``finish``."""
    detokenizer = Detokenizer(tokenizer or byte_tokenizer(), skip_special_tokens=skip)  # type: ignore[arg-type]
    pieces, place, number = [], 0, 0
    while place < len(ids):
        size = portions[number % len(portions)]
        pieces.append(detokenizer.push(ids[place : place + size]))
        place, number = place + size, number + 1
        assert detokenizer.text == "".join(pieces)
    return [*pieces, detokenizer.finish()]


def decoded(ids: list[int], *, skip: bool = True) -> str:
    return str(byte_tokenizer().decode(ids, skip_special_tokens=skip))


@given(ids=st.lists(ALL_IDS, max_size=40), portions=PORTIONS, skip=st.booleans())
def test_the_pieces_add_up_to_the_decoding_of_all_tokens(ids: list[int], portions: list[int], skip: bool) -> None:
    assert "".join(streamed(ids, portions, skip=skip)) == decoded(ids, skip=skip)


@given(text=TEXT, portions=PORTIONS)
def test_a_text_comes_out_without_a_character_in_halves(text: str, portions: list[int]) -> None:
    ids = byte_tokenizer().encode(text, add_special_tokens=False)
    pieces = streamed(ids, portions)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert pieces[-1] == "", "whole characters are not held back to the end"


@pytest.mark.parametrize("character", ["é", "中", "😀"])
def test_a_split_character_comes_with_its_last_byte(character: str) -> None:
    ids = [3 + byte for byte in character.encode()]
    pieces = streamed([3 + ord("x"), *ids, 3 + ord("y")], [1])
    assert pieces == ["x", *[""] * (len(ids) - 1), character, "y", ""]


def test_half_a_character_at_the_end_is_what_the_tokenizer_makes_of_it() -> None:
    ids = [3 + ord("x"), *(3 + byte for byte in "😀".encode()[:2])]
    assert streamed(ids, [1]) == ["x", "", "", REPLACEMENT]
    assert decoded(ids) == "x" + REPLACEMENT


def test_bytes_that_are_no_character_do_not_hold_the_rest_back() -> None:
    pieces = streamed([3 + 0xFF, 3 + ord("a"), 3 + ord("b")], [1])
    assert pieces == ["", REPLACEMENT + "a", "b", ""]


@pytest.mark.parametrize(("skip", "expected"), [(True, ["a", "", "b", ""]), (False, ["a", "</s>", "b", ""])])
def test_markers_are_left_out_unless_wanted(skip: bool, expected: list[str]) -> None:
    assert streamed([3 + ord("a"), 2, 3 + ord("b")], [1], skip=skip) == expected


def test_no_token_is_no_text() -> None:
    detokenizer = Detokenizer(byte_tokenizer())
    assert detokenizer.push([]) == detokenizer.finish() == detokenizer.text == ""


METASPACE = metaspace_tokenizer()
BYTES = METASPACE.convert_tokens_to_ids("<0x00>")
#: Whole characters, some of them spelt in bytes.
PIECES = st.sampled_from([[1], [2], [3], [4], [5], *([BYTES + byte for byte in char.encode()] for char in "\né中😀")])


@given(pieces=st.lists(PIECES, max_size=20), portions=PORTIONS)
def test_a_dropped_first_space_and_byte_tokens_add_up_too(pieces: list[list[int]], portions: list[int]) -> None:
    ids = [token for piece in pieces for token in piece]
    assert "".join(streamed(ids, portions, METASPACE)) == METASPACE.decode(ids)


@given(ids=st.lists(st.integers(1, len(METASPACE) - 1), max_size=20), portions=PORTIONS)
def test_bytes_that_are_no_character_cost_nothing_of_what_follows(ids: list[int], portions: list[int]) -> None:
    assert "".join(streamed([*ids, 3, 2, 4], portions, METASPACE)).endswith("b a b")


def cleaning_tokenizer() -> PreTrainedTokenizerFast:
    """Asks for spaces before punctuation to be removed after decoding, as many configurations do."""
    texts = ["[UNK]", "a", "##b", ".", "n't", "'"]
    backend = Tokenizer(models.WordPiece({text: index for index, text in enumerate(texts)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", clean_up_tokenization_spaces=True)


@given(ids=st.lists(st.integers(1, 5), max_size=20), portions=PORTIONS)
def test_nothing_is_lost_where_a_tokenizer_would_tidy_up_after_itself(ids: list[int], portions: list[int]) -> None:
    tokenizer = cleaning_tokenizer()
    said = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert "".join(streamed(ids, portions, tokenizer)) == said
