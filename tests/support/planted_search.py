"""The search for a planted skip set, and random search beside it, by how much they reach after how many evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from tests.support.planted_costs import PlantedCosts, PlantedScorer, planted_traces
from tests.support.planted_skips import PlantedSkips
from tests.support.planted_space import some_space

from selfspec_calibrate.events import Event, Progressed
from selfspec_calibrate.predicted_study import run_predicted_study
from selfspec_calibrate.prediction import Predictor
from selfspec_calibrate.search_space import SearchSpace
from selfspec_calibrate.skip_ranking import skip_set_of
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.plan import DraftPlan

#: Numbers of attentions and MLPs among which the optimum lies: with more or fewer it cannot pay.
SIZES = [(attentions, mlps) for attentions in range(4, 16) for mlps in range(6, 18)]


@dataclass
class PlantedSearch:
    """A problem of 24 layers, so 48 sub-layers, that interact with their neighbours.

    Attributes:
        seed: Of the problem, and of both searches.
        num_layers: Layers.
    """

    seed: int
    num_layers: int = 24
    costs: PlantedCosts = field(init=False)

    def __post_init__(self) -> None:
        self.costs = PlantedCosts(self.num_layers)

    @cached_property
    def problem(self) -> PlantedSkips:
        return PlantedSkips(self.num_layers, self.seed)

    @cached_property
    def scorer(self) -> PlantedScorer:
        return PlantedScorer(planted_traces(1, 40), lambda spec: self.problem.agreement(spec.skip))

    @cached_property
    def space(self) -> SearchSpace:
        return some_space(
            self.num_layers,
            families=("layer_skip",),
            sensitivity=self.problem.sensitivity,
            attention_s=self.costs.attention_s,
            mlp_s=self.costs.mlp_s,
        )

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor(self.scorer.traces, self.scorer, self.costs)

    def speedup(self, skip: LayerSkipSet) -> float:
        """Predicted speedup of a skip set under its best number of drafts."""
        plans = [
            DraftPlan(source=LayerSkipSpec(skip=skip), controller=c) for c in self.space.controllers("layer_skip")[:8]
        ]
        return self.predictor.best_of(plans).speedup

    @cached_property
    def optimum(self) -> float:
        """Of the sets of highest agreement for their size, which a dynamic programme gives, the fastest."""
        return max(self.speedup(self.problem.best_by_size[counts]) for counts in SIZES)

    def search_curve(self, evaluations: int) -> list[float]:
        """The best speedup after 1, 2, ... scored skip sets, as a share of the optimum."""
        curve: list[float] = []

        def listen(event: Event) -> None:
            if isinstance(event, Progressed) and event.best is not None and event.done > len(curve):
                curve.append(event.best / self.optimum)

        run_predicted_study(
            self.space,
            list(self.scorer.traces),
            self.scorer,
            self.costs,
            storage=None,
            study_name="planted",
            num_plans=evaluations,
            seed=self.seed,
            listener=listen,
        )
        return curve

    def random_curve(self, evaluations: int) -> list[float]:
        """The same for sets of a random size that may hold all but the first and the last layer's sub-layers."""
        draw = np.random.default_rng(self.seed)
        inner = np.arange(2, 2 * self.num_layers - 2)
        sizes = draw.integers(1, self.space.max_skipped + 1, evaluations)
        skips = [skip_set_of(draw.choice(inner, size, replace=False).tolist()) for size in sizes]
        return np.maximum.accumulate([self.speedup(skip) / self.optimum for skip in skips]).tolist()
