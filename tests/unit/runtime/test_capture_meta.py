"""Every step that an executor records runs without data, and does nothing that a CUDA graph cannot hold."""

from __future__ import annotations

import pytest
import torch
from tests.support.capture_guards import HostReadError, capture_guard
from tests.support.device_steps import EXPERT_FAMILIES, MAX_DRAFTS, SAMPLING, STEPS, meta_model, meta_world, step_world
from tests.support.tiny_models import FAMILIES, tiny_config

#: MPT makes its position biases from the cache's length as a number.
HOPELESS = ("mpt",)
CAPTURED = [family for family in FAMILIES if family not in HOPELESS]
#: Between them they run every kind of pass.
ROUNDS = ("exit_round", "skip_round")
ROPES = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("step", STEPS)
def test_no_step_reads_on_the_host(step: str) -> None:
    steps = meta_world("llama").steps()
    with torch.no_grad(), capture_guard("meta"):
        STEPS[step](steps)


@pytest.mark.parametrize("family", [family for family in CAPTURED if family != "llama"])
def test_nor_in_other_families(family: str) -> None:
    steps = meta_world(family).steps()
    with torch.no_grad(), capture_guard("meta"):
        for step in ROUNDS:
            STEPS[step](steps)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "phi3", "gpt2", "gpt_neox"])
def test_nor_with_other_attentions(family: str, attention: str) -> None:
    steps = meta_world(family, attention).steps()
    with torch.no_grad(), capture_guard("meta"):
        STEPS["exit_round"](steps)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("confidence", [False, True])
def test_nor_for_any_rule(sampling: str, confidence: bool) -> None:
    steps = meta_world("llama").steps(sampling=SAMPLING[sampling], confidence=confidence)
    with torch.no_grad(), capture_guard("meta"):
        for step in ROUNDS:
            STEPS[step](steps)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_nor_for_any_width_of_a_block(sampling: str) -> None:
    steps = meta_world("llama").steps(sampling=SAMPLING[sampling])
    with torch.no_grad(), capture_guard("meta"):
        for width in range(MAX_DRAFTS + 1) if sampling == "greedy" else (1, 7):
            steps.verify(width, drawn=False)


@pytest.mark.parametrize("rope", ROPES)
def test_nor_with_scaled_positions(rope: str) -> None:
    parameters = {"rope_type": rope, "rope_theta": 10000.0, **ROPES[rope]}
    model = meta_model(tiny_config("llama", rope_parameters=parameters), attention="selfspec")
    steps = step_world(model).steps()
    with torch.no_grad(), capture_guard("meta"):
        STEPS["exit_round"](steps)


@pytest.mark.parametrize("family", EXPERT_FAMILIES[:2])
def test_a_loop_over_experts_is_noticed(family: str) -> None:
    with pytest.raises((HostReadError, NotImplementedError, RuntimeError)):
        meta_world(family, experts="eager")


def test_positions_whose_scale_depends_on_the_length_are_noticed() -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = meta_model(tiny_config("llama", rope_parameters=parameters), attention="selfspec")
    with pytest.raises((HostReadError, NotImplementedError, RuntimeError)):
        step_world(model)


@pytest.mark.parametrize("family", HOPELESS)
def test_a_family_that_needs_its_length_as_a_number_is_noticed(family: str) -> None:
    steps = meta_world(family).steps()
    with torch.no_grad(), pytest.raises(HostReadError), capture_guard("meta"):
        steps.verify(0)
