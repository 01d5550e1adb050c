from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.views.palette import DEPTH_COLOURS, DepthScale, contrast, luminance, readable_on


@pytest.mark.parametrize("colour", DEPTH_COLOURS)
def test_text_stands_out_from_every_bin(colour: str) -> None:
    assert contrast(readable_on(colour), colour) >= 4.5


def test_the_scale_darkens_evenly_so_that_it_reads_without_colour_vision() -> None:
    lightness = [luminance(colour) for colour in DEPTH_COLOURS]
    assert lightness == sorted(lightness, reverse=True)


def test_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#ffffff", "#777777") == pytest.approx(4.48, abs=0.01)


@given(st.integers(1, 120))
def test_bins_divide_all_layers_in_order(num_layers: int) -> None:
    scale = DepthScale(num_layers)
    bins = [scale.bin_of(depth) for depth in range(1, num_layers + 1)]
    assert bins == sorted(bins)
    assert set(bins) == set(range(scale.num_bins))
    ranges = [scale.range_of(number) for number in range(scale.num_bins)]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == num_layers
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))


@given(st.integers(2, 120))
def test_both_ends_of_the_scale_are_used(num_layers: int) -> None:
    scale = DepthScale(num_layers)
    assert scale.colour(0) == DEPTH_COLOURS[0]
    assert scale.colour(scale.num_bins - 1) == DEPTH_COLOURS[-1]
    assert scale.bin_of(num_layers + 1) == scale.num_bins
