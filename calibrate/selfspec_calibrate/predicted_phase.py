"""Predicted study: what traces and costs say of hundreds of plans, without decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.budget import PREDICTED_SHARE
from selfspec_calibrate.cost_model import CostModel
from selfspec_calibrate.cost_phase import quantized_available
from selfspec_calibrate.exit_heads import fit_exit_heads, hidden_size
from selfspec_calibrate.folds import folds
from selfspec_calibrate.knapsack import knapsack_seeds
from selfspec_calibrate.plan_parts import is_replayed
from selfspec_calibrate.predicted_study import PredictedStudy, run_predicted_study
from selfspec_calibrate.prediction import Predictor
from selfspec_calibrate.scoring import Scorer, TokenScores
from selfspec_calibrate.search_space import SearchSpace
from selfspec_calibrate.sensitivity import Sensitivity, measure_sensitivity
from selfspec_calibrate.trace_state import compute_states
from selfspec_calibrate.vocabulary_ranks import fit_vocabulary_ranks
from selfspec_runtime.drafts.early_exit import EarlyExitSpec, exit_head_name, fitted_exits
from selfspec_runtime.families import text_config
from selfspec_runtime.processors import build_processors

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Sequence

    from selfspec_calibrate.session import Session
    from selfspec_calibrate.trace import Trace
    from selfspec_calibrate.trace_state import TraceState
    from selfspec_calibrate.workspace import Workspace
    from selfspec_runtime.calibration import CostTable
    from selfspec_runtime.drafts.registry import AnySourceSpec
    from selfspec_runtime.plan import DraftPlan
    from selfspec_runtime.processors import Processors

NAME = "predicted"
NUM_PLANS = 280

#: Ranks of linear heads beside the whole, as shares of the hidden size: they learn from fewer tokens, and hold less.
RANK_SHARES = (1 / 32, 1 / 8)

#: Trace rows on which single sub-layers are scored, and exits for which a linear head is fitted.
SENSITIVITY_ROWS = 500
MAX_LINEAR_EXITS = 12

#: Share of the phase's seconds that single sub-layers may take.
SENSITIVITY_PART = 0.4
#: The same for skip sets by hidden states.
FRONTS_PART = 0.1


@dataclass(frozen=True)
class ExitCurves:
    """Draft agreement by exit layer.

    Attributes:
        raw: With the model's own head, at layers ``1 .. L - 1``.
        linear: Through a fitted linear head, scored on other prompts than it was fitted on; None where none was.
    """

    raw: tuple[float, ...]
    linear: tuple[float | None, ...]


@dataclass(frozen=True)
class Forecast:
    """What is known of plans before any of them has decoded.

    Attributes:
        study: All predictions, best first.
        space: The plans to choose from.
        traces: Plain traces of the search prompts.
        scorer: Scores drafts on them.
        cost: Seconds of passes.
        max_new_tokens: Length limit of the generations.
        exits: Agreement by exit layer.
        sensitivity: Agreement without each single sub-layer.
    """

    study: PredictedStudy
    space: SearchSpace
    traces: Sequence[Trace]
    scorer: Scorer
    cost: CostModel
    max_new_tokens: int
    exits: ExitCurves
    sensitivity: Sensitivity

    def predictor_of(self, num_prompts: int) -> Predictor:
        """Predicts plans on the first search prompts alone."""
        scores = ChosenScores(self.scorer, tuple(range(len(self.traces[:num_prompts]))))
        return Predictor(self.traces[:num_prompts], scores, self.cost, max_new_tokens=self.max_new_tokens)

    def speedup_on(self, plan: DraftPlan, prompt_ids: Collection[str]) -> float | None:
        """A plan's predicted speedup on some search prompts; None where they say nothing of it.

        Args:
            plan: The plan.
            prompt_ids: The prompts.
        """
        places = [place for place, trace in enumerate(self.traces) if trace.prompt_id in prompt_ids]
        some = [self.traces[place] for place in places]
        if not is_replayed(plan) or not any(trace.num_scored for trace in some):
            return None
        scores = ChosenScores(self.scorer, tuple(places))
        return Predictor(some, scores, self.cost, max_new_tokens=self.max_new_tokens).predict(plan).speedup


@dataclass(frozen=True)
class ChosenScores:
    """A scorer's scores on some traces.

    Attributes:
        scorer: Scores all traces.
        places: Places of those that are wanted.
    """

    scorer: Scorer
    places: tuple[int, ...]

    def scores(self, spec: AnySourceSpec) -> tuple[TokenScores, ...]:
        """One entry per wanted trace."""
        found = self.scorer.scores(spec)
        return tuple(found[place] for place in self.places)


def forecast(
    session: Session,
    workspace: Workspace,
    traces: Sequence[Trace],
    costs: CostTable,
    *,
    seconds: float,
    listener: events.Listener,
) -> Forecast:
    """Fits exit heads, ranks tokens, scores sub-layers and exits, and searches plans.

    Args:
        session: The loaded model; its arrays receive what is fitted.
        workspace: Where the study is kept.
        traces: Plain traces of the search prompts.
        costs: Seconds of passes.
        seconds: Seconds that the search may take.
        listener: Hears of progress.
    """
    target, sampling = session.target, session.generation.sampling
    listener(events.PhaseStarted(NAME, NUM_PLANS, PREDICTED_SHARE))
    listener(events.Progressed(NAME, 0, "states along the traces"))
    states = compute_states(target, traces, sampling, processors_for=lambda length: _processors(session, length))
    scorer = _scorer(session, traces, states, listener)
    listener(events.Progressed(NAME, 0, "single sub-layers"))
    sensitivity = measure_sensitivity(
        target, states, sampling, max_rows=SENSITIVITY_ROWS, max_seconds=SENSITIVITY_PART * seconds
    )
    exits = exit_curves(scorer, target.num_layers, session.arrays)
    cost = CostModel(costs, target.num_layers)
    space = _space(session, costs, cost, sensitivity)
    if "layer_skip" in space.searched:
        listener(events.Progressed(NAME, 0, "skip sets by hidden states"))
        fronts = knapsack_seeds(target, traces, cost, max_seconds=FRONTS_PART * seconds)
        space = replace(space, skip_fronts=fronts)
    study = run_predicted_study(
        space,
        traces,
        scorer,
        cost,
        storage=workspace.storage,
        study_name=workspace.study_name(NAME),
        num_plans=NUM_PLANS,
        seed=session.settings.seed,
        listener=listener,
        deadline=monotonic() + seconds,
        max_new_tokens=session.generation.max_new_tokens,
    )
    return Forecast(study, space, traces, scorer, cost, session.generation.max_new_tokens, exits, sensitivity)


def linear_exits(num_layers: int) -> tuple[int, ...]:
    """Exits worth a linear head: from a quarter of the depth on, evenly, and the last ones."""
    first = max(num_layers // 4, 1)
    candidates = range(first, num_layers)
    step = max(-(-len(candidates) // MAX_LINEAR_EXITS), 1)
    return tuple(sorted({*candidates[::step], num_layers - 1}))


def linear_ranks(width: int) -> tuple[int, ...]:
    """Ranks worth a try for a hidden size, ascending."""
    return tuple(sorted({max(round(share * width), 1) for share in RANK_SHARES}))


def exit_curves(scorer: Scorer, num_layers: int, arrays: Container[str]) -> ExitCurves:
    """Scores every exit, raw and through whatever linear heads there are."""
    heads = {layer for layer in range(1, num_layers) if exit_head_name(layer) in arrays}
    raw = tuple(scorer.agreement(EarlyExitSpec(exit_layer=layer)) for layer in range(1, num_layers))
    linear = tuple(
        scorer.agreement(EarlyExitSpec(exit_layer=layer, head="linear")) if layer in heads else None
        for layer in range(1, num_layers)
    )
    return ExitCurves(raw, linear)


def _scorer(
    session: Session, traces: Sequence[Trace], states: Sequence[TraceState], listener: events.Listener
) -> Scorer:
    layers = linear_exits(session.target.num_layers) if _wants_exits(session) else ()
    listener(events.Progressed(NAME, 0, "linear exit heads"))
    heads = fit_exit_heads(session.target, traces, layers, rank=linear_ranks(hidden_size(session.target))[-1])
    vocab_size = int(text_config(session.loaded.model.config).vocab_size)
    ranks = fit_vocabulary_ranks(traces, vocab_size, always=session.defaults.eos_token_ids)
    session.arrays.update({**heads.final, **ranks.final})
    session.fold_arrays.update({**heads.scoring, **ranks.scoring})
    fold = dict(zip((trace.prompt_id for trace in traces), folds(traces), strict=True))
    # By the ids of today: a template may name the day, and stored traces hold those of theirs.
    searched = [prompt for prompt in session.prompts.search if prompt.prompt_id in fold]
    session.fold_of.update({prompt.token_ids: fold[prompt.prompt_id] for prompt in searched})
    return Scorer(session.target, states, session.generation.sampling, session.fold_arrays)


def _wants_exits(session: Session) -> bool:
    return bool({"early_exit", "ngram_first"} & set(session.settings.families)) and session.target.num_layers > 1


def _space(session: Session, costs: CostTable, cost: CostModel, sensitivity: Sensitivity) -> SearchSpace:
    context = costs.context_lengths[len(costs.context_lengths) // 2]
    fitted = fitted_exits(session.arrays)
    return SearchSpace(
        num_layers=session.target.num_layers,
        families=session.settings.families,
        max_draft_tokens=session.settings.max_draft_tokens,
        linear_exits=fitted,
        linear_ranks=linear_ranks(hidden_size(session.target)) if fitted else (),
        sensitivity=sensitivity if sensitivity.attention or sensitivity.mlp else None,
        quantized_available=costs.quantized_pass_s is not None and quantized_available(session),
        attention_s=cost.attention_s(context),
        mlp_s=cost.mlp_s(context),
    )


def _processors(session: Session, prompt_length: int) -> Processors:
    return build_processors(
        session.loaded.model.generation_config,
        prompt_length=prompt_length,
        eos_token_ids=session.defaults.eos_token_ids,
        device=session.target.device,
        greedy=session.generation.sampling.greedy,
    )
