"""One recorded draw and verdict serve every position, round and seed, with the tokens of the loop.

On a CPU operators are recorded, and the torch reference runs in the kernels' place; on a GPU kernels, as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.replay_recorder import ReplayRecorder

from selfspec_runtime.drafts.draft import Draft
from selfspec_runtime.executors.kernel_rules import kernel_rule
from selfspec_runtime.executors.recorder import CudaRecorder, Recorder
from selfspec_runtime.kernels import operators
from selfspec_runtime.processors import Processors
from selfspec_runtime.rules import make_rule
from selfspec_runtime.sampling import SamplingSettings

VOCAB_SIZE = 37
HIGH_WORD = 2**31
ASKED = {
    "rejection": SamplingSettings(1.0, top_k=20, top_p=0.95, min_p=0.01),
    "match": SamplingSettings(0.9, mode="match"),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Records CUDA graphs, or operators on a CPU."""
    monkeypatch.setattr(operators, "is_interpreted", lambda: False)
    if request.param == "cpu":
        return ReplayRecorder()
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return CudaRecorder(torch.device("cuda"))


class RecordedRound:
    """A draft token and its verdict, recorded once.

    Args:
        settings: Temperature, filters and mode.
        recorder: Records.
    """

    def __init__(self, settings: SamplingSettings, recorder: Recorder) -> None:
        device = getattr(recorder, "device", torch.device("cpu"))
        self.settings = settings
        self.key, self.outcome = (torch.zeros(size, dtype=torch.long, device=device) for size in (2, 3))
        self.position, self.start = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(2))
        self.logits = torch.zeros(3, VOCAB_SIZE, device=device)
        self._rule = kernel_rule(settings, self.key)
        with torch.no_grad():
            recorder.warm_up(self._run)
            self._recording = recorder.record(self._run)

    def replay(self, logits: torch.Tensor, *, seed: int, position: int, start: int) -> list[int]:
        """The draft token, whether it stands, and the token after."""
        self.logits.copy_(logits)
        numbers = (self.key[:1], seed & 0xFFFFFFFF), (self.key[1:], seed >> 32), (self.position, position)
        for buffer, value in (*numbers, (self.start, start)):
            buffer.fill_(value)
        self._recording.replay()
        read: list[int] = self.outcome.tolist()
        return read

    def expected(self, logits: torch.Tensor, *, seed: int, position: int, start: int) -> list[int]:
        """The same by the torch reference, on the host."""
        loop = make_rule(replace(self.settings, seed=seed), Processors())
        token, law = loop._draw(logits[:1], position, round_start=start)
        verdict = loop._decide(Draft([token], [law]), logits[1:], position)
        return [token, verdict.num_accepted, verdict.token_id]

    def _run(self) -> None:
        token, law = self._rule.draw(self.logits[:1], self.position, round_start=self.start)
        verdict = self._rule.decide(token, law, self.logits[1:], self.position)
        for place, result in enumerate((token, verdict.num_accepted, verdict.token)):
            self.outcome[place : place + 1].copy_(result)


@pytest.mark.parametrize("mode", ASKED)
def test_every_replay_draws_fresh_noise_and_gives_the_loops_tokens(mode: str, recorder: Recorder) -> None:
    recorded = RecordedRound(ASKED[mode], recorder)
    generator, seen = torch.Generator().manual_seed(0), set()
    for text in range(4):
        logits = 2 * torch.randn(3, VOCAB_SIZE, generator=generator)
        logits[1] = logits[0] + torch.randn(VOCAB_SIZE, generator=generator)
        for place in range(12):
            where = {"seed": (HIGH_WORD << 32) | text // 2, "position": 50 + place, "start": 50 + place - place % 3}
            outcome = recorded.replay(logits, **where)
            assert outcome == recorded.expected(logits, **where)
            seen.add((text, *outcome))
    assert len(seen) > 30, "the same logits give other tokens at other positions"
    assert {num_accepted for _, _, num_accepted, _ in seen} == {0, 1}


def test_a_position_drafted_again_in_another_round_gets_fresh_noise(recorder: Recorder) -> None:
    recorded = RecordedRound(ASKED["rejection"], recorder)
    logits = torch.zeros(3, VOCAB_SIZE)
    tokens = {recorded.replay(logits, seed=5, position=60, start=start)[0] for start in range(50, 61)}
    assert len(tokens) > 5
