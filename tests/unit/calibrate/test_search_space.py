from __future__ import annotations

import pytest
from tests.support.planted_space import some_space

#: Families that a trace can replay; the others are timed, and have no sources of their own to search.
REPLAYED = ("early_exit", "layer_skip", "quantized", "ngram", "ngram_first", "suffix")


def test_everything_is_searched_where_it_can_be() -> None:
    assert some_space().searched == REPLAYED


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"sensitivity": None}, {"layer_skip"}),
        ({"quantized_available": False}, {"quantized"}),
        ({"sensitivity": None, "quantized_available": False}, {"layer_skip", "quantized"}),
        ({"num_layers": 1, "linear_exits": ()}, {"early_exit"}),
        ({"families": ("ngram",)}, set(REPLAYED) - {"ngram"}),
        ({"families": ("suffix",)}, set(REPLAYED) - {"suffix"}),
    ],
)
def test_what_a_model_lacks_is_not_searched(changes: dict[str, object], missing: set[str]) -> None:
    assert set(some_space(**changes).searched) == set(REPLAYED) - missing


def test_a_model_that_cannot_draft_by_passes_has_lookups_only() -> None:
    space = some_space(num_layers=1, sensitivity=None, quantized_available=False, linear_exits=())
    assert space.searched == ("ngram", "suffix")


def test_compositions_use_allowed_passes_or_any_if_none_is_allowed() -> None:
    assert some_space(families=("early_exit", "ngram_first")).pass_families == ("early_exit",)
    assert some_space(families=("ngram_first",)).pass_families == ("early_exit", "layer_skip", "quantized")
    assert some_space().lookup_families == ("ngram", "suffix")
    assert some_space(families=("ngram_first", "suffix")).lookup_families == ("suffix",)
    assert some_space(families=("ngram_first",)).lookup_families == ("ngram",)


def test_controllers_draft_every_number_and_stop_at_thresholds() -> None:
    space = some_space(max_draft_tokens=4)
    for lookup in ("ngram", "suffix"):
        assert [controller.num_draft_tokens for controller in space.controllers(lookup)] == [1, 2, 3, 4]
    stopped = [controller for controller in space.controllers("quantized") if controller.kind == "confidence"]
    assert len(stopped) == len(space.controllers("quantized")) - 4 >= 5
    assert all(controller.num_draft_tokens == 4 for controller in stopped)
    assert len({controller.draft_confidence_threshold for controller in stopped}) == len(stopped)


def test_one_draft_token_leaves_nothing_to_stop() -> None:
    assert len(some_space(max_draft_tokens=1).controllers("quantized")) == 1


def test_skip_sets_are_bounded() -> None:
    space = some_space(num_layers=20)
    assert space.max_skipped == 28
    assert space.max_skipped_quantized == 5
    assert some_space(sensitivity=None).max_skipped == 0
