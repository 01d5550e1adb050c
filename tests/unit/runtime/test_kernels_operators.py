"""The custom operators: shapes without data, the reference on a CPU, and the front that chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support import interpreter
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from selfspec_runtime.acceptance import greedy_accept, match_accept, rejection_accept, shared_token
from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.kernels import operators, reference
from selfspec_runtime.kernels.acceptance import KernelAcceptance, KernelLaw, seed_tensor
from selfspec_runtime.kernels.layout import law_width
from selfspec_runtime.kernels.row_law import has_top_k, has_top_p, law_params
from selfspec_runtime.law import greedy_tokens, token_probs
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import RejectionRule, make_rule
from selfspec_runtime.sampling import SamplingSettings

SETTINGS = SamplingSettings(0.8, top_k=5, top_p=0.9, seed=2**64 - 3)
SIZE, NUM_DRAFTED, START = 41, 3, 70


@pytest.fixture(params=["reference", "interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the operators run; the reference and the interpreter both on a CPU."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        return "cuda"
    if request.param == "interpreter":
        pytest.importorskip("triton")
        interpreter.require()
    monkeypatch.setattr(operators, "is_interpreted", lambda: request.param == "interpreter")
    return "cpu"


def _logits(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(NUM_DRAFTED + 1, SIZE, generator=generator) * 2
    return (target + torch.randn(target.shape, generator=generator)).to(device), target.to(device)


def _numbers(device: str) -> tuple[Tensor, Tensor, Tensor, tuple[bool, bool]]:
    seed, start = seed_tensor(SETTINGS.seed, device), torch.tensor([START], device=device)
    return law_params(SETTINGS, device=device), seed, start, (has_top_k(SETTINGS), has_top_p(SETTINGS))


def _round(device: str) -> dict[str, Tensor]:
    """One call of every operator."""
    draft, target = _logits(device)
    params, seed, start, filters = _numbers(device)
    drawn = [
        operators.draft_token(draft[i : i + 1], params, seed, start + i, start, *filters, None)
        for i in range(NUM_DRAFTED)
    ]
    ids, laws = torch.cat([token for token, _ in drawn]), torch.cat([law for _, law in drawn])
    block = (target, params, seed, start, *filters)
    return {
        "ids": ids,
        "laws": laws,
        "rejection": operators.rejection_verdict(ids, draft[:NUM_DRAFTED], laws, *block, None),
        "one_hot": operators.rejection_verdict(ids, None, None, *block, None),
        "shared": operators.shared_tokens(target, params, seed, start, *filters, None),
        "match": operators.match_verdict(ids, *block),
        "greedy": operators.greedy_tokens(target),
        "prefix": operators.greedy_verdict(ids, target),
    }


def test_every_operator_gives_what_the_reference_gives(device: str) -> None:
    got = {name: value.tolist() for name, value in _round(device).items()}
    draft, target = _logits("cpu")
    draft_probs, target_probs = token_probs(draft, SETTINGS), token_probs(target, SETTINGS)
    ids = torch.tensor(got["ids"])
    where = {"seed": SETTINGS.seed, "first_position": START}
    shared = [shared_token(row, seed=SETTINGS.seed, position=START + i) for i, row in enumerate(target_probs)]
    verdicts = {
        "rejection": rejection_accept(ids, draft_probs[:NUM_DRAFTED], target_probs, **where),
        "one_hot": rejection_accept(ids, None, target_probs, **where),
        "match": match_accept(ids, torch.tensor(shared)),
        "prefix": greedy_accept(ids, greedy_tokens(target)),
    }
    assert {name: got[name] for name in verdicts} == {
        name: [verdict.num_accepted, verdict.token_id, 0] for name, verdict in verdicts.items()
    }
    assert got["shared"] == shared
    assert got["greedy"] == greedy_tokens(target).tolist()


def test_every_operator_has_its_shape_and_dtype_without_data(device: str) -> None:
    real, fake = _round(device), _round("meta")
    assert {name: (value.shape, value.dtype) for name, value in fake.items()} == {
        name: (value.shape, value.dtype) for name, value in real.items()
    }
    assert fake["laws"].shape == (NUM_DRAFTED, law_width(SIZE))


def test_every_operator_passes_torchs_own_checks() -> None:
    draft, target = _logits("cpu")
    params, seed, start, filters = _numbers("cpu")
    ids = torch.tensor([1, 2, 3])
    block = (target, params, seed, start, *filters)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        operators.draft_token, (draft[:1], params, seed, start, start, *filters, None), test_utils=checks
    )
    torch.library.opcheck(operators.rejection_verdict, (ids, draft[:3], None, *block, None), test_utils=checks)
    torch.library.opcheck(operators.shared_tokens, (*block[:4], *filters, None), test_utils=checks)
    torch.library.opcheck(operators.match_verdict, (ids, *block), test_utils=checks)
    torch.library.opcheck(operators.greedy_tokens, (target,), test_utils=checks)
    torch.library.opcheck(operators.greedy_verdict, (ids, target), test_utils=checks)


def test_a_draft_over_a_part_of_the_vocabulary(device: str) -> None:
    draft, target = _logits(device)
    params, seed, start, filters = _numbers(device)
    token_ids = torch.arange(0, SIZE, 3, device=device)
    index_of = torch.full((SIZE,), -1, dtype=torch.int32, device=device)
    index_of[token_ids] = torch.arange(token_ids.shape[0], dtype=torch.int32, device=device)
    narrow = draft[:1, token_ids].contiguous()
    token, laws = operators.draft_token(narrow, params, seed, start, start, *filters, token_ids)
    shared = operators.shared_tokens(narrow, params, seed, start, *filters, token_ids)
    verdict = operators.rejection_verdict(token, narrow, laws, target[:2], params, seed, start, *filters, index_of)
    probs = torch.zeros(1, SIZE).index_copy_(1, token_ids.cpu(), token_probs(narrow.cpu(), SETTINGS))
    expected = rejection_accept(
        token.cpu(), probs, token_probs(target[:2].cpu(), SETTINGS), seed=SETTINGS.seed, first_position=START
    )
    assert int(token) % 3 == 0
    assert shared.tolist() == [shared_token(probs[0], seed=SETTINGS.seed, position=START)]
    assert verdict.tolist() == [expected.num_accepted, expected.token_id, 0]


class _NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("a tensor was read on the host")
        return func(*args, **(kwargs or {}))


def test_kernels_never_ask_for_a_number_on_the_host(device: str) -> None:
    if not operators.is_interpreted() and device == "cpu":
        pytest.skip("the reference does")
    draft, target = _logits(device)
    params, seed, start, filters = _numbers(device)
    ids = torch.tensor([1, 2, 3], device=device)
    block = (target, params, seed, start, *filters)
    # The functions behind the operators, because a mode does not see what happens inside of an operator.
    with _NoHostReads():
        token, law = operators.draft_token._init_fn(draft[:1], params, seed, start, start, *filters, None)
        operators.rejection_verdict._init_fn(token, draft[:1], law, target[:2], params, seed, start, *filters, None)
        operators.shared_tokens._init_fn(*block[:4], *filters, None)
        operators.match_verdict._init_fn(ids, *block)
        operators.greedy_tokens._init_fn(target)
        operators.greedy_verdict._init_fn(ids, target)
    with pytest.raises(AssertionError, match="read on the host"), _NoHostReads():
        float(target[0, 0])


def test_broken_target_rows_are_flagged(device: str) -> None:
    _, target = _logits(device)
    params, seed, start, filters = _numbers(device)
    ids = torch.tensor([-1, -1, -1], device=device)
    target[2, 5] = float("nan")
    block = (target, params, seed, start, *filters)
    for verdict in (
        operators.rejection_verdict(ids, None, None, *block, None),
        operators.match_verdict(ids, *block),
        operators.greedy_verdict(ids, target),
    ):
        assert verdict[2] == 1
        assert 0 <= verdict[1] < SIZE


@pytest.fixture
def front(device: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[SamplingSettings], KernelAcceptance]:
    """Makes fronts that serve the device, whatever it is."""
    del device
    return lambda settings: KernelAcceptance(settings, Processors())


@pytest.mark.parametrize("mode", ["rejection", "match", "greedy"])
def test_the_front_draws_and_decides_as_the_rules_do(
    front: Callable[[SamplingSettings], KernelAcceptance], device: str, mode: str
) -> None:
    asked = SamplingSettings() if mode == "greedy" else SamplingSettings(0.8, top_k=6, seed=4, mode=mode)  # type: ignore[arg-type]
    rule, kernels = make_rule(asked, Processors()), front(asked)
    logits, target = _logits("cpu")
    own, theirs = Draft(), Draft()
    for i in range(NUM_DRAFTED):
        own.append(*kernels.draw(logits[i : i + 1].to(device), START + i, round_start=START))
        theirs.append(*rule._draw(logits[i : i + 1], START + i, round_start=START))
    assert own.token_ids == theirs.token_ids
    assert [isinstance(law, KernelLaw) for law in own.probs] == [mode == "rejection"] * NUM_DRAFTED
    assert kernels.decide(own, target.to(device), START) == rule._decide(theirs, target, START)
    assert kernels.decide(Draft(), target[:1].to(device), START) == rule._decide(Draft(), target[:1], START)


@pytest.mark.parametrize("asked", [SamplingSettings(), SamplingSettings(1.0)], ids=SamplingSettings.describe)
def test_the_front_says_what_is_wrong_with_a_target(
    front: Callable[[SamplingSettings], KernelAcceptance], device: str, asked: SamplingSettings
) -> None:
    logits = torch.full((1, SIZE), float("nan"), device=device)
    with pytest.raises(NumericalError, match=f"row 0 .of 1. hold {SIZE} NaN"):
        front(asked).decide(Draft(), logits, START)


def test_nothing_on_a_cpu_is_decided_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = _logits("cpu")[0]
    rule = make_rule(SETTINGS, Processors())
    assert isinstance(rule, RejectionRule)
    assert not rule._kernels.serves(logits)
    monkeypatch.setattr(rule._kernels, "draw", None)
    monkeypatch.setattr(rule._kernels, "decide", None)
    token, probs = rule._drawn(logits[:1], START, round_start=START)
    assert probs is not None
    assert rule._decided(Draft([token], [probs]), logits[:2], START) == rule._decide(
        Draft([token], [probs]), logits[:2], START
    )


def test_kernels_serve_cuda_without_processors_and_their_own_laws_alone() -> None:
    class OnCuda:
        device = torch.device("cuda")

        def __init__(self, size: int) -> None:
            self.shape = (1, size)

    logits = OnCuda(262_144)
    served = KernelAcceptance(SETTINGS, Processors())
    pytest.importorskip("triton")
    kernel_law = KernelLaw(torch.zeros(1, 2), torch.zeros(1, 9))
    assert served.serves(logits)  # type: ignore[arg-type]
    assert served.serves(logits, Draft([1], [kernel_law]))  # type: ignore[arg-type]
    assert served.serves(logits, Draft([1], [None]))  # type: ignore[arg-type]
    assert not served.serves(logits, Draft([1], [torch.ones(2)]))  # type: ignore[arg-type]
    assert not served.serves(OnCuda(262_145))  # type: ignore[arg-type]
    with_history = Processors(history=(lambda ids, scores: scores,))
    assert not KernelAcceptance(SETTINGS, with_history).serves(logits)  # type: ignore[arg-type]


def test_settings_survive_the_way_through_a_tensor() -> None:
    for asked in (SETTINGS, SamplingSettings(0.3), SamplingSettings(1.0, top_p=0.1, min_p=0.2)):
        params = law_params(asked, device="cpu")
        back = reference.settings_of(params, top_k=has_top_k(asked), top_p=has_top_p(asked))
        wanted = (asked.temperature, asked.top_k, asked.top_p, asked.min_p)
        assert (back.temperature, back.top_k, back.top_p, back.min_p) == wanted
