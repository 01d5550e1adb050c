"""Skip sets: how they are written, read, checked and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from selfspec_runtime.errors import PlanError
from selfspec_runtime.layer_skip import LayerSkipSet, compact, parse_indices

INDICES = st.frozensets(st.integers(0, 60))


@given(indices=INDICES)
def test_reading_is_the_inverse_of_writing(indices: frozenset[int]) -> None:
    assert parse_indices(compact(indices)) == indices


@given(attention=INDICES, mlp=INDICES)
def test_a_file_keeps_a_skip_set_in_order(attention: frozenset[int], mlp: frozenset[int]) -> None:
    skip = LayerSkipSet(attention=attention, mlp=mlp)
    assert LayerSkipSet.model_validate_json(skip.model_dump_json()) == skip
    assert skip.model_dump()["attention"] == sorted(attention)
    assert len(skip) == len(attention) + len(mlp)


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("", set()),
        (" 4 , 7-9 ", {4, 7, 8, 9}),
        ("3-3", {3}),
        ("9,1,9", {1, 9}),
        ("4,,5,", {4, 5}),
    ],
)
def test_lists_and_ranges_are_read(text: str, indices: set[int]) -> None:
    assert parse_indices(text) == indices


@pytest.mark.parametrize("text", ["a", "1.5", "-3", "3-", "9-7", "1-2-3", "4 5", "²", "1-²", "0x1", "0-99999999999"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match=r"is not a layer index or range. Write something like 4,7-9\."):
        parse_indices(f"0,{text}")


@pytest.mark.parametrize(("indices", "text"), [((), ""), ((5,), "5"), ((1, 2), "1-2"), ((4, 9, 8, 7), "4,7-9")])
def test_neighbours_are_written_as_a_range(indices: tuple[int, ...], text: str) -> None:
    assert compact(frozenset(indices)) == text


def test_it_describes_what_is_skipped() -> None:
    assert LayerSkipSet().describe() == "skip nothing"
    assert LayerSkipSet(attention=[4, 7, 8, 9], mlp=[12]).describe() == "skip A4,7-9 M12"  # type: ignore[arg-type]
    assert LayerSkipSet(mlp=[0]).describe() == "skip M0"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["attention", "mlp"])
@pytest.mark.parametrize("index", [-1, 4, 400])
def test_a_layer_that_does_not_exist_is_refused_by_name(name: str, index: int) -> None:
    skip = LayerSkipSet.model_validate({name: [0, 3, index]})
    with pytest.raises(PlanError, match=rf"names {name} sub-layers \[{index}\].*layers 0 to 3.*--skip-{name}"):
        skip.validate_for(4)
    LayerSkipSet.model_validate({name: [0, 3]}).validate_for(4)


@pytest.mark.parametrize("value", ["1,2", 3, None, {"1": 2}, [1.0], [True], ["1"]])
def test_indices_are_whole_numbers_in_a_list(value: object) -> None:
    with pytest.raises(ValidationError, match="layer indices"):
        LayerSkipSet.model_validate({"attention": value})


@given(st.sets(st.integers(0, 40)))
def test_places_in_the_order_of_execution_name_the_set(places: set[int]) -> None:
    skip = LayerSkipSet.at(places)
    assert skip.positions == places
    assert len(skip) == len(places)
    assert skip.attention == {place // 2 for place in places if place % 2 == 0}


@given(st.sets(st.integers(0, 20)))
def test_whole_layers_are_both_sub_layers_of_each(layers: set[int]) -> None:
    skip = LayerSkipSet.whole(layers)
    assert skip.attention == skip.mlp == layers
    assert skip == LayerSkipSet.at(place for layer in layers for place in (2 * layer, 2 * layer + 1))
