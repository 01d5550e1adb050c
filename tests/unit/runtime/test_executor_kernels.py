"""Recorded rounds that draw and decide by the kernels say what the loop says pass by pass, for every seed.

The operators are recorded and replayed on a CPU; inside, the kernels run in Triton's interpreter, or the torch
reference in their place, which is quicker. What is fixed in a recording although it changes from round to round shows
as another text.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.support import interpreter
from tests.support.capture_checks import require_no_host_reads, require_replayable, require_same_operators
from tests.support.capture_guards import HostReadError
from tests.support.device_steps import SAMPLING, STEPS, step_world
from tests.support.plans import exit_heads, plan_of
from tests.support.replay_engine import replay_engine
from tests.support.replay_recorder import torch_only  # noqa: F401
from tests.support.tiny_models import VOCAB_SIZE, planted, prompt_ids, tiny_model
from torch import Tensor

from selfspec_runtime.engine import Engine
from selfspec_runtime.executors import kernel_rules
from selfspec_runtime.executors.cuda_graph import GraphExecutor
from selfspec_runtime.executors.device_rules import DeviceMatch, DeviceRejection, DeviceVerdict
from selfspec_runtime.executors.kernel_rules import KernelMatch, KernelRejection, fitting_rule, kernel_rule
from selfspec_runtime.executors.kernel_rules import kernels_serve as kernels_really_serve
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.kernels import operators
from selfspec_runtime.kernels.layout import MAX_VOCAB
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.sampling import SamplingSettings
from selfspec_runtime.target import Target

pytestmark = pytest.mark.usefixtures("torch_only")
PROMPT = prompt_ids(24)
SAMPLED = [
    SamplingSettings(1.0),
    SamplingSettings(0.7, top_k=20),
    SamplingSettings(1.3, top_p=0.9),
    SamplingSettings(1.0, top_k=50, top_p=0.95, min_p=0.01),
]
#: A whole law, one over a part of the vocabulary, a skip set that changes, and tokens chosen without chance.
CASES = [
    ("early_exit", SAMPLED[0]),
    ("early_exit", SAMPLED[3]),
    ("low_rank", SAMPLED[1]),
    ("layer_skip", SAMPLED[2]),
    ("ngram", SAMPLED[3]),
]


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps take the kernels' operators, which run the torch reference."""
    monkeypatch.setattr(kernel_rules, "kernels_serve", lambda *_: True)
    monkeypatch.setattr(operators, "is_interpreted", lambda: False)


@pytest.fixture
def interpreted(by_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise, and the operators launch the kernels, in Triton's interpreter."""
    del by_kernels
    pytest.importorskip("triton")
    interpreter.require()
    monkeypatch.setattr(operators, "is_interpreted", lambda: True)


@cache
def target() -> Target:
    return Target(planted(tiny_model("llama"), exit_layer=2, scale=0.3))


def require_the_loops_texts(
    plan: DraftPlan, sampling: SamplingSettings, *, seeds: range, num_tokens: int
) -> tuple[GraphExecutor, list[Generation]]:
    """Fails unless one set of recordings says, for each seed, what the loop says pass by pass."""
    engine, executor = replay_engine(target(), plan)
    loop, said = Engine(target(), plan=plan, arrays=exit_heads()), []
    for seed in seeds:
        asked = SamplingSettings(**{**vars(sampling), "seed": 2**63 + seed})
        settings = GenerationSettings(max_new_tokens=num_tokens, sampling=asked)
        said.append(engine.generate(PROMPT, settings))
        # Where fewer tokens fit than are drafted, the last token is an accepted one instead of a bonus.
        expected = loop.generate(PROMPT, settings).token_ids
        assert said[-1].token_ids[:-1] == expected[:-1], "another text than the loop's"
    assert executor.notice is None
    assert executor.num_host_reads > 0
    assert len({one.token_ids for one in said}) == len(seeds), "every seed has a text of its own"
    return executor, said


def rules_of(executor: GraphExecutor) -> set[type]:
    return {type(steps.rule) for _, steps in executor.recordings._kept.values()}


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize(("source", "asked"), CASES)
def test_every_law_and_filter_says_the_loops_texts(source: str, asked: SamplingSettings) -> None:
    executor, said = require_the_loops_texts(plan_of(source), asked, seeds=range(2), num_tokens=32)
    assert rules_of(executor) == {KernelRejection}
    if source != "ngram":
        assert executor.recordings.num_recorded == 1, "another seed needs no new recording"
        accepted = sum(one.stats.num_accepted_tokens for one in said)
        assert 0 < accepted < sum(one.stats.num_draft_tokens for one in said), "both outcomes were met"


@pytest.mark.usefixtures("by_kernels")
def test_so_do_drafts_in_groups() -> None:
    plan = plan_of("ngram_first", "confidence")
    executor, _ = require_the_loops_texts(plan, SAMPLED[3], seeds=range(2), num_tokens=32)
    assert rules_of(executor) == {KernelRejection}


@pytest.mark.usefixtures("by_kernels")
def test_so_does_match_mode() -> None:
    matched = SamplingSettings(0.9, top_p=0.9, mode="match")
    executor, _ = require_the_loops_texts(plan_of("early_exit"), matched, seeds=range(2), num_tokens=32)
    assert rules_of(executor) == {KernelMatch}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("source", "num_tokens"), [("early_exit", 12), ("ngram", 6)])
def test_so_do_the_kernels_themselves(source: str, num_tokens: int) -> None:
    require_the_loops_texts(plan_of(source), SAMPLED[0], seeds=range(2), num_tokens=num_tokens)


@pytest.mark.usefixtures("by_kernels")
def test_one_executor_serves_every_mode_in_turn() -> None:
    engine, executor = replay_engine(target(), plan_of("early_exit"))
    loop = Engine(target(), plan=plan_of("early_exit"))
    greedy, matched = SamplingSettings(), SamplingSettings(0.9, mode="match", seed=3)
    for asked in (greedy, SAMPLED[0], matched, SAMPLED[3], greedy, SAMPLED[0]):
        settings = GenerationSettings(max_new_tokens=16, sampling=asked)
        said = engine.generate(PROMPT, settings).token_ids
        assert said[:-1] == loop.generate(PROMPT, settings).token_ids[:-1]
    assert executor.recordings.num_recorded == 4


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("sampling", ["rejection", "match"])
def test_a_round_by_kernels_is_replayable(sampling: str) -> None:
    world = step_world(tiny_model("llama"))
    steps = world.steps(sampling=SAMPLING[sampling], make_rule=kernel_rule)
    for step in ("exit_round", "verification", "more_drafts"):
        require_no_host_reads(world, lambda step=step: STEPS[step](steps))  # type: ignore[misc]
        require_same_operators(world, lambda step=step: STEPS[step](steps))  # type: ignore[misc]
        require_replayable(world, lambda step=step: STEPS[step](steps))  # type: ignore[misc]


class BakesThePosition(KernelRejection):
    """The position of a draft token is a number when the step is recorded."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().draw(logits, torch.full_like(position, int(position)), round_start=round_start)


class BakesTheRound(KernelRejection):
    """The start of the round is one."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().draw(logits, position, round_start=torch.full_like(round_start, int(round_start)))


class BakesTheBlock(KernelRejection):
    """The position of the first drafted token is one."""

    def decide(self, drafted: Tensor, laws: tuple[Tensor, ...], logits: Tensor, position: Tensor) -> DeviceVerdict:
        return super().decide(drafted, laws, logits, torch.full_like(position, int(position)))


class BakesTheSeed(KernelRejection):
    """The seed is one."""

    def _seed(self) -> Tensor:
        seed = super()._seed()
        return torch.full_like(seed, int(seed))


class KeepsTheFirstLaw(KernelRejection):
    """Tokens are judged by the laws that were drawn from when the step was recorded."""

    def draw(self, logits: Tensor, position: Tensor, *, round_start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        token, law = super().draw(logits, position, round_start=round_start)
        return token, tuple(torch.tensor(part.tolist(), dtype=part.dtype) for part in law)


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("wrong", [BakesThePosition, BakesTheRound, BakesTheBlock, BakesTheSeed, KeepsTheFirstLaw])
def test_what_is_baked_into_a_recording_is_noticed(
    wrong: type[KernelRejection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_rules, "KernelRejection", wrong)
    with pytest.raises(AssertionError, match="another text than the loop's"):
        require_the_loops_texts(plan_of("early_exit"), SAMPLED[0], seeds=range(2), num_tokens=32)
    world = step_world(tiny_model("llama"))
    steps = world.steps(sampling=SAMPLING["rejection"], make_rule=wrong)
    with pytest.raises(HostReadError):
        require_no_host_reads(world, lambda: STEPS["skip_round"](steps))


def test_no_operator_takes_a_number() -> None:
    found = [operator for operator in vars(operators).values() if hasattr(operator, "_opoverload")]
    assert len(found) == 6
    for operator in found:
        kinds = {str(argument.type) for argument in operator._opoverload._schema.arguments}
        assert kinds <= {"Tensor", "Optional[Tensor]", "bool"}


def test_torchs_operators_stay_where_kernels_cannot_serve() -> None:
    cuda, key = torch.device("cuda"), torch.zeros(2, dtype=torch.long)
    sampled, greedy = SAMPLED[3], SamplingSettings()
    pytest.importorskip("triton")
    assert kernels_really_serve(cuda, sampled, MAX_VOCAB)
    assert not kernels_really_serve(cuda, sampled, MAX_VOCAB + 1)
    assert kernels_really_serve(cuda, greedy, MAX_VOCAB + 1)
    assert not kernels_really_serve(torch.device("cpu"), sampled, VOCAB_SIZE)
    assert isinstance(fitting_rule(sampled, key, vocab_size=VOCAB_SIZE), DeviceRejection)
    assert isinstance(fitting_rule(SamplingSettings(1.0, mode="match"), key, vocab_size=VOCAB_SIZE), DeviceMatch)
