"""A timed study on a planted model, to be run, killed and run again: ``python -m tests.support.resumed_study``.

The seconds are scripted: one for each pass of the target and a share of it for each pass of the draft. The text, the
counts and the trials are real.

Arguments: a folder; the number of the generation at which to die, or 0; the signal to die by.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.plan_world import exit_plan
from tests.support.tiny_models import build_model, planted, prompt_ids, tiny_config
from tests.support.workspaces import workspace_in

from selfspec_calibrate.measurement import MeasuredPrompt
from selfspec_calibrate.timed_study import TimedStudy
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.engine import Engine
from selfspec_runtime.generation import Generation, GenerationSettings
from selfspec_runtime.plan import DraftPlan
from selfspec_runtime.stats import PhaseSeconds
from selfspec_runtime.target import Target

NUM_LAYERS, PLANTED_EXIT = 6, 2
LEADERS = [(exit_plan(5, 3), 1.1), (exit_plan(4, 2), 1.2)]


@dataclass
class CountedEngine:
    """An engine whose generations are written into a file, and one of which is the process's last."""

    engine: Engine
    log: Path
    dies_at: int
    dies_by: signal.Signals

    def generate(self, prompt_ids: list[int], settings: GenerationSettings) -> Generation:
        with self.log.open("a") as file:
            entry = {"plan": self.engine.plan.describe(), "prompt": prompt_ids[0], "length": settings.max_new_tokens}
            file.write(json.dumps(entry) + "\n")
        if self.dies_at and len(self.log.read_text().splitlines()) == self.dies_at:
            os.kill(os.getpid(), self.dies_by)
        generation = self.engine.generate(prompt_ids, settings)
        return replace(generation, seconds=_scripted(generation, self.engine.plan))

    @property
    def extra_bytes(self) -> int:
        return 0


def _scripted(generation: Generation, plan: DraftPlan) -> PhaseSeconds:
    depth = plan.source.exit_layer if isinstance(plan.source, EarlyExitSpec) else 0
    draft = generation.stats.num_draft_passes * (0.1 + 0.9 * depth / NUM_LAYERS)
    return PhaseSeconds(prefill=1.0, draft=draft, verify=float(generation.stats.num_rounds))


def _neighbours(plan: DraftPlan) -> list[DraftPlan]:
    assert isinstance(plan.source, EarlyExitSpec)
    depth, drafts = plan.source.exit_layer, plan.max_draft_tokens
    steps = ((depth - 1, drafts), (depth + 1, drafts), (depth, drafts - 1), (depth, drafts + 1))
    return [exit_plan(k, n) for k, n in steps if 1 <= k < NUM_LAYERS and 1 <= n <= 4]


def main(folder: Path, dies_at: int, dies_by: signal.Signals) -> None:
    """Runs the study and writes the result, unless it dies before."""
    model = planted(build_model(tiny_config("llama", num_hidden_layers=NUM_LAYERS)), exit_layer=PLANTED_EXIT)
    target = Target(model)
    prompts = [MeasuredPrompt(f"p{seed}", "chat", tuple(prompt_ids(seed=seed))) for seed in range(5)]
    with workspace_in(folder) as workspace:
        study = TimedStudy(
            workspace=workspace,
            make_engine=lambda plan: CountedEngine(Engine(target, None, plan), folder / "log", dies_at, dies_by),
            prompts=prompts,
            settings=GenerationSettings(max_new_tokens=12),
            leaders=LEADERS,
            neighbours=_neighbours,
            max_trials=8,
        )
        timed = study.run()
    (folder / "result.json").write_text(json.dumps([each.model_dump(mode="json") for each in timed]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), signal.Signals(int(sys.argv[3])))
