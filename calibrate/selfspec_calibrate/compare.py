"""The comparison from end to end: every family's best plan and the calibrated one, side by side.

load → probe → prompts → traces → cost model → predicted study → timed study of every family → one held-out run → file
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from selfspec_calibrate import events
from selfspec_calibrate.block_store import BlockStore
from selfspec_calibrate.budget import VERDICT_SHARE
from selfspec_calibrate.comparison import Comparison, SpecBenchResult
from selfspec_calibrate.comparison_rows import ComparisonRows
from selfspec_calibrate.divergence import divergence_margin
from selfspec_calibrate.family_contest import contestants
from selfspec_calibrate.held_out import HeldOut
from selfspec_calibrate.interleave import OUT_OF_MEMORY
from selfspec_calibrate.pipeline import sampling_record
from selfspec_calibrate.search import run_search
from selfspec_calibrate.session import open_session
from selfspec_calibrate.spec_bench import SpecBench, read_turns, spec_bench_groups
from selfspec_calibrate.timed_phase import plan_memory
from selfspec_calibrate.verdict_phase import select_plans
from selfspec_calibrate.workspace import Workspace
from selfspec_runtime.atomic import write_atomically
from selfspec_runtime.errors import SelfspecError
from selfspec_runtime.machine import describe_machine
from selfspec_runtime.memory import weight_bytes
from selfspec_runtime.plan import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_calibrate.family_contest import Contestant
    from selfspec_calibrate.held_out import HeldOutRuns
    from selfspec_calibrate.selection import Selected
    from selfspec_calibrate.session import Session
    from selfspec_calibrate.settings import CalibrationSettings
    from selfspec_runtime.plan import DraftPlan

NAME = "held-out"

#: Families whose best plans are expected to be measured at most, for the budget: each runs twice per prompt.
EXPECTED_FAMILIES = 14


def compare(
    settings: CalibrationSettings, listener: events.Listener = events.ignore, *, spec_bench: bool = False
) -> Comparison:
    """Measures the best plan of every family beside plain decoding, and writes what was found.

    Args:
        settings: As for `calibrate`; ``output`` is the comparison's file.
        listener: Hears of progress and of what the user should know.
        spec_bench: Whether the prompt file is Spec-Bench's ``question.jsonl``: then second turns are asked too, and its
            groups are reported by its own definition beside.

    Returns:
        The comparison, which was also written to ``settings.output``.

    Raises:
        SelfspecError: Something that the user can put right; the message says what.
        Interrupted: Ctrl-C; everything measured is saved, and the same command goes on from there.
    """
    session = open_session(settings)
    for notice in session.notices:
        listener(events.Noted(notice))
    turns = read_turns(settings.prompts, session.prompts.file.prompts) if spec_bench else {}
    with Workspace.open(settings, session.fingerprint, session.prompts.file.sha256, listener=listener) as workspace:
        search = run_search(session, workspace, listener, verdict_runs=_verdict_runs(settings), every_family=True)
        selected = select_plans(session, workspace, search)
        found = contestants(search.timed, search.roster.left_out, num_prompts=search.allowance.num_timed)
        measured = _measure(session, workspace, _plans(found, selected), turns, listener)
        comparison = _comparison(
            session,
            found,
            selected,
            measured,
            num_timed=search.allowance.num_timed,
            common_s=search.common_s,
            spec_bench=spec_bench,
        )
    write_atomically(settings.output, comparison.model_dump_json(indent=1).encode())
    return comparison


def _verdict_runs(settings: CalibrationSettings) -> float:
    """Runs per held-out prompt: each family's plan, two calibrated ones and plain decoding, twice each."""
    return 2.0 * (min(len(settings.families), EXPECTED_FAMILIES) + 3)


def _plans(found: Sequence[Contestant], selected: Sequence[Selected]) -> list[DraftPlan]:
    plans = [each.best.plan for each in found if each.best is not None] + [each.plan for each in selected]
    return list(dict.fromkeys(plan for plan in plans if not plan.is_plain))


def _measure(
    session: Session,
    workspace: Workspace,
    plans: list[DraftPlan],
    turns: dict[str, tuple[str, ...]],
    listener: events.Listener,
) -> HeldOutRuns:
    prompts = session.prompts.held_out
    limit = session.target.max_positions
    bench = SpecBench(
        turns,
        session.loaded.tokenizer,
        None if limit is None else limit - session.generation.max_new_tokens,
        system=session.settings.system,
        template_kwargs=session.settings.template_kwargs,
    )
    num_prompts = len(prompts) + sum(len(turns.get(prompt.prompt_id, ())) > 1 for prompt in prompts)
    listener(events.PhaseStarted(NAME, num_prompts, VERDICT_SHARE))
    target = session.target
    return HeldOut(
        make_engine=session.engine,
        prompts=prompts,
        settings=(session.generation,),
        margin=lambda prompt, common, settings: divergence_margin(target, prompt, common, settings),
        seed=session.settings.seed,
        store=BlockStore(workspace, "comparison.json"),
        listener=listener,
        name=NAME,
        follow_up=bench.follow_up if turns else None,
    ).measure(plans)


def _comparison(
    session: Session,
    found: Sequence[Contestant],
    selected: Sequence[Selected],
    measured: HeldOutRuns,
    *,
    num_timed: int,
    common_s: float,
    spec_bench: bool,
) -> Comparison:
    rows = ComparisonRows(
        runs=measured,
        extra_bytes=cache(partial(held_bytes, session)),
        weight_bytes=weight_bytes(session.loaded.model),
    )
    families = rows.families(found)
    calibrated = rows.calibrated(selected, families)
    named = [(each.family, each.best.plan) for each in families if each.best is not None and each.best.results]
    named += [(f"calibrated, {each.step} step", each.measured.plan) for each in calibrated if each.measured.results]
    return Comparison(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        selfspec_version=version("selfspec"),
        model=session.loaded.spec,
        fingerprint=session.fingerprint,
        machine=describe_machine(session.target.device),
        sampling=sampling_record(session.generation.sampling),
        max_new_tokens=session.generation.max_new_tokens,
        data=session.prompts.record(),
        num_timed=num_timed,
        families=families,
        calibrated=calibrated,
        spec_bench=tuple(_spec_bench(name, plan, measured) for name, plan in named) if spec_bench else (),
        common_s=common_s,
    )


def held_bytes(session: Session, plan: DraftPlan) -> int:
    """What a plan holds beyond the model; of one for which no engine can be made, what it would be expected to hold."""
    try:
        return session.engine(plan).extra_bytes
    except (SelfspecError, *OUT_OF_MEMORY):
        return plan_memory(session).extra_bytes(plan)


def _spec_bench(name: str, plan: DraftPlan, measured: HeldOutRuns) -> SpecBenchResult:
    return SpecBenchResult(name=name, plan=plan, groups=spec_bench_groups(measured.runs(PLAIN), measured.runs(plan)))
