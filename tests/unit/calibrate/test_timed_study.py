from __future__ import annotations

import errno
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.support.plan_world import BEST, NGRAM, exit_plan, neighbours, speedup_of, token_s
from tests.support.scripted import ScriptedFactory, scripted_prompts
from tests.support.workspaces import fast_workspace_in

from selfspec_calibrate.events import Event, Noted, Progressed
from selfspec_calibrate.plan_queue import PATIENCE
from selfspec_calibrate.timed_study import TimedStudy
from selfspec_calibrate.workspace import Workspace
from selfspec_runtime.calibration import TimedPlan
from selfspec_runtime.errors import Interrupted, NumericalError, PlanError, SelfspecError
from selfspec_runtime.generation import GenerationSettings
from selfspec_runtime.plan import PLAIN, DraftPlan

SETTINGS = GenerationSettings(max_new_tokens=100)
PROMPTS = scripted_prompts(8, kinds=("chat", "code"))
STATE = optuna.trial.TrialState


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with fast_workspace_in(tmp_path) as opened:
        yield opened


def _study(workspace: Workspace, factory: ScriptedFactory, **changes: Any) -> TimedStudy:
    values = {"leaders": [(exit_plan(8), 1.4), (exit_plan(6, 4), 1.6)], "neighbours": neighbours, "prompts": PROMPTS}
    return TimedStudy(workspace=workspace, make_engine=factory, settings=SETTINGS, **{**values, **changes})


def _plans(timed: tuple[TimedPlan, ...]) -> list[DraftPlan]:
    return [each.plan for each in timed]


def _trials(workspace: Workspace) -> list[optuna.trial.FrozenTrial]:
    (name,) = optuna.get_all_study_names(workspace.storage)
    return optuna.load_study(study_name=name, storage=workspace.storage).trials


def _no_neighbours(_plan: DraftPlan) -> list[DraftPlan]:
    return []


class TestSearch:
    def test_the_best_plan_is_found_from_leaders_that_are_not_it(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s)).run()
        assert timed[0].plan == BEST
        assert timed[0].measured_speedup == pytest.approx(2.0, rel=0.05)
        assert timed[0].num_prompts == len(PROMPTS)

    def test_plain_decoding_is_the_first_trial_and_is_as_fast_as_itself(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s), max_trials=2).run()
        first = _trials(workspace)[0]
        assert first.value == 1.0
        assert list(first.intermediate_values.values()) == [1.0] * len(PROMPTS)
        assert [each.measured_speedup for each in timed if each.plan == PLAIN] == [1.0]

    def test_where_nothing_helps_plain_decoding_comes_first(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(lambda plan, ids: 1.0 if plan.is_plain else 1.1)
        timed = _study(workspace, factory).run()
        assert timed[0].plan == PLAIN
        assert all(each.measured_speedup < 1.0 for each in timed[1:])

    def test_leaders_come_first_and_keep_their_prediction(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s), max_trials=2).run()
        predicted = {each.plan: each.predicted_speedup for each in timed}
        assert predicted == {PLAIN: 1.0, exit_plan(8): 1.4, exit_plan(6, 4): 1.6}

    def test_neighbours_are_predicted_too(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s), predict=speedup_of, max_trials=6).run()
        later = [each for each in timed if each.plan not in (PLAIN, exit_plan(8), exit_plan(6, 4))]
        assert len(later) == 4
        assert all(each.predicted_speedup == speedup_of(each.plan) for each in later)

    def test_no_plan_is_timed_twice(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        leaders = [(BEST, 1.5), (BEST, 1.2), (exit_plan(4), None)]
        timed = _study(workspace, factory, leaders=leaders).run()
        assert Counter(factory.built).most_common(1)[0][1] == 1
        assert len(set(_plans(timed))) == len(timed)
        assert {each.num_runs for each in timed} == {1}
        assert timed[0].predicted_speedup == 1.5

    def test_the_search_ends_by_itself_when_neighbours_bring_nothing(self, workspace: Workspace) -> None:
        many = [exit_plan(9, drafts) for drafts in range(1, 40)]
        timed = _study(workspace, ScriptedFactory(token_s), leaders=[(BEST, None)], neighbours=lambda _plan: many).run()
        assert timed[0].plan == BEST
        assert len(timed) - 2 == PATIENCE

    def test_or_when_there_are_no_more_neighbours(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s), neighbours=_no_neighbours).run()
        assert len(timed) == 3

    def test_the_same_seed_gives_the_same_search(self, tmp_path: Path) -> None:
        found = []
        for name in ("a", "b"):
            with fast_workspace_in(tmp_path / name) as workspace:
                found.append(_study(workspace, ScriptedFactory(token_s), seed=4).run())
        assert found[0] == found[1]


class TestMeasuring:
    def test_two_plans_share_the_baseline_in_mirrored_blocks(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        _study(workspace, factory, prompts=PROMPTS[:1], max_trials=2).run()
        plain, first, second = (plan.describe() for plan in (PLAIN, exit_plan(8), exit_plan(6, 4)))
        warm_ups = sorted([plain, first, second])
        assert sorted(factory.log[:3]) == warm_ups
        assert factory.log[3:] == [plain, first, second, second, first, plain]

    def test_the_value_is_a_ratio_of_totals(self, workspace: Workspace) -> None:
        """The plan halves the time of the long prompt and doubles that of the short one."""
        factory = ScriptedFactory(
            lambda plan, ids: (10.0, 1.0)[ids[0]] * (1.0 if plan.is_plain else (0.5, 2.0)[ids[0]])
        )
        leaders = [(NGRAM, None)]
        timed = _study(workspace, factory, prompts=scripted_prompts(2), leaders=leaders).run()
        assert timed[0].measured_speedup == pytest.approx((10 + 1) / (5 + 2))

    def test_a_plan_that_is_far_behind_is_given_up_early(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        timed = _study(workspace, factory, leaders=[(exit_plan(1, 6), None)], neighbours=_no_neighbours).run()
        assert [(each.plan, each.num_prompts) for each in timed] == [(PLAIN, 8), (exit_plan(1, 6), 2)]
        assert _trials(workspace)[1].state == STATE.PRUNED

    def test_a_plan_that_is_a_little_behind_on_every_prompt_is_given_up_by_the_test(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(lambda plan, ids: 1.0 if plan.is_plain else 1.05)
        timed = _study(workspace, factory, leaders=[(NGRAM, None)]).run()
        assert timed[1].num_prompts == 4

    def test_what_is_lost_on_one_kind_may_be_won_on_another(self, workspace: Workspace) -> None:
        """Chat prompts are even, code prompts odd; each batch sees both before it judges."""
        factory = ScriptedFactory(lambda plan, ids: 1.0 if plan.is_plain else (1.2, 0.3)[ids[0] % 2])
        timed = _study(workspace, factory, leaders=[(NGRAM, None)]).run()
        assert timed[0].plan == NGRAM
        assert timed[0].num_prompts == 8

    def test_given_up_plans_come_last_however_fast_they_looked(self, workspace: Workspace) -> None:
        timed = _study(workspace, ScriptedFactory(token_s)).run()
        whole = [each.num_prompts == len(PROMPTS) for each in timed]
        assert whole == sorted(whole, reverse=True)
        assert False in whole
        speeds = [each.measured_speedup for each in timed if each.num_prompts == len(PROMPTS)]
        assert speeds == sorted(speeds, reverse=True)

    def test_no_settings_are_changed_by_a_trial(self, workspace: Workspace) -> None:
        engines = []
        factory = ScriptedFactory(token_s)

        def make_engine(plan: DraftPlan) -> Any:
            engines.append(factory(plan))
            return engines[-1]

        _study(workspace, make_engine, max_trials=4).run()
        for engine in engines:
            assert engine.settings[0].max_new_tokens < SETTINGS.max_new_tokens
            assert all(each is SETTINGS for each in engine.settings[1:])

    def test_prompts_that_end_at_once_say_nothing(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s, num_tokens=1)
        heard: list[Event] = []
        timed = _study(workspace, factory, leaders=[(BEST, None)], listener=heard.append).run()
        assert _plans(timed) == [PLAIN]
        assert any("more than one token" in event.text for event in heard if isinstance(event, Noted))


class TestLimits:
    def test_the_number_of_trials_is_kept(self, workspace: Workspace) -> None:
        for wanted in (1, 3, 3, 6):
            timed = _study(workspace, ScriptedFactory(token_s), max_trials=wanted).run()
            assert len(timed) - 1 == wanted

    def test_no_prompt_is_begun_after_the_deadline(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        one_block, warm_ups = 6, 3

        def clock() -> float:
            return float(len(factory.log))

        deadline = warm_ups + 2 * one_block + 1.0
        timed = _study(workspace, factory, deadline=deadline, clock=clock).run()
        assert len(factory.log) == warm_ups + 3 * one_block
        assert [each.num_prompts for each in timed] == [8, 3, 3]

    def test_a_deadline_that_has_passed_leaves_plain_decoding(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        timed = _study(workspace, factory, deadline=0.0, clock=lambda: 1.0).run()
        assert _plans(timed) == [PLAIN]
        assert factory.log == []

    def test_so_many_plans_are_settled_whatever_the_deadline(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        timed = _study(workspace, factory, deadline=0.0, clock=lambda: 1.0, at_least=2).run()
        assert set(_plans(timed)) == {PLAIN, exit_plan(8), exit_plan(6, 4)}
        assert {each.num_prompts for each in timed if each.plan == exit_plan(6, 4)} == {len(PROMPTS)}

    def test_what_the_deadline_cut_short_is_taken_up_again(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s)
        _study(workspace, factory, deadline=10.0, clock=lambda: float(len(factory.log))).run()
        cut = len(factory.log)
        timed = _study(workspace, factory, max_trials=2).run()
        assert [each.num_prompts for each in timed if not each.plan.is_plain] == [8, 8]
        measured_before = (cut - 3) // 6
        assert len(factory.log) - cut == 3 + (8 - measured_before) * 6


class TestFailures:
    def test_a_plan_that_cannot_be_built_has_failed_with_its_reason(self, workspace: Workspace) -> None:
        def refuse(plan: DraftPlan) -> Exception | None:
            return PlanError("no such layer") if plan == exit_plan(8) else None

        heard: list[Event] = []
        timed = _study(workspace, ScriptedFactory(token_s, refuse=refuse), listener=heard.append).run()
        assert exit_plan(8) not in _plans(timed)
        assert timed[0].plan == BEST
        failed = _trials(workspace)[1]
        assert (failed.state, failed.user_attrs["reason"]) == (STATE.FAIL, "no such layer")
        assert any("no such layer" in event.text for event in heard if isinstance(event, Noted))

    def test_a_plan_that_fails_on_one_prompt_does_not_look_fast(self, workspace: Workspace) -> None:
        def token_or_error(plan: DraftPlan, ids: tuple[int, ...]) -> float:
            if plan == exit_plan(8) and ids == (5,):
                raise NumericalError("NaN")
            return 0.01 if plan == exit_plan(8) else token_s(plan, ids)

        timed = _study(workspace, ScriptedFactory(token_or_error), max_trials=2).run()
        assert exit_plan(8) not in _plans(timed)
        assert exit_plan(6, 4) in _plans(timed)

    def test_a_failed_plan_is_not_tried_again(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s, refuse=lambda plan: PlanError("no") if plan == BEST else None)
        for _ in range(2):
            _study(workspace, factory, leaders=[(BEST, None)], neighbours=_no_neighbours).run()
        assert factory.built.count(BEST) == 1

    def test_memory_that_runs_out_fails_the_plan_alone(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s, refuse=lambda plan: MemoryError() if plan == exit_plan(8) else None)
        timed = _study(workspace, factory, max_trials=2).run()
        assert exit_plan(6, 4) in _plans(timed)
        assert "Memory ran out" in _trials(workspace)[1].user_attrs["reason"]

    def test_where_plain_decoding_fails_the_study_fails(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s, refuse=lambda plan: NumericalError("NaN") if plan.is_plain else None)
        with pytest.raises(NumericalError):
            _study(workspace, factory).run()
        assert STATE.RUNNING not in {trial.state for trial in _trials(workspace)}

    def test_a_fault_of_the_program_leaves_no_trial_running(self, workspace: Workspace) -> None:
        factory = ScriptedFactory(token_s, refuse=lambda plan: None if plan.is_plain else ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            _study(workspace, factory).run()
        assert STATE.RUNNING not in {trial.state for trial in _trials(workspace)}

    def test_a_storage_that_fails_is_named(self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise optuna.exceptions.StorageInternalError("disk full") from OSError(errno.ENOSPC, "No space left")

        study = _study(workspace, ScriptedFactory(token_s))
        monkeypatch.setattr(optuna.Trial, "report", full)
        with pytest.raises(SelfspecError, match=r"study\.sqlite3.*No space left.*free space"):
            study.run()


class TestInterruption:
    @pytest.fixture(autouse=True)
    def _python_handler(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def _pressing(self, at: int, *, times: int = 1) -> tuple[ScriptedFactory, Callable[..., float]]:
        """A factory whose generation number ``at`` is interrupted."""
        factory = ScriptedFactory(token_s)

        def pressed(plan: DraftPlan, ids: tuple[int, ...]) -> float:
            if len(factory.log) == at:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return token_s(plan, ids)

        factory.token_s = pressed
        return factory, pressed

    def test_the_prompt_is_finished_and_everything_is_saved(self, workspace: Workspace) -> None:
        factory, _ = self._pressing(at=11)
        with pytest.raises(Interrupted, match=r"0 timed plans are saved in .*out\.json\.study.*same command") as raised:
            _study(workspace, factory).run()
        assert raised.value.exit_code == 130
        assert len(factory.log) == 3 + 2 * 6
        trials = _trials(workspace)
        assert [len(trial.user_attrs["pairs"]) for trial in trials[1:]] == [2, 2]
        assert [trial.state for trial in trials] == [STATE.COMPLETE, STATE.FAIL, STATE.FAIL]

    def test_pressed_twice_it_ends_at_once_and_what_was_saved_is_saved(self, workspace: Workspace) -> None:
        factory, _ = self._pressing(at=11, times=2)
        with pytest.raises(Interrupted):
            _study(workspace, factory).run()
        assert len(factory.log) == 11
        trials = _trials(workspace)
        assert [len(trial.user_attrs["pairs"]) for trial in trials[1:]] == [1, 1]
        assert STATE.RUNNING not in {trial.state for trial in trials}

    def test_an_interrupted_study_ends_as_it_would_have_ended(self, tmp_path: Path) -> None:
        with fast_workspace_in(tmp_path / "whole") as workspace:
            whole = ScriptedFactory(token_s)
            expected = _study(workspace, whole).run()
        with fast_workspace_in(tmp_path / "cut") as workspace:
            log: list[str] = []
            for at in (5, 20, 33, 50):
                factory, _ = self._pressing(at=at)
                with pytest.raises(Interrupted):
                    _study(workspace, factory).run()
                log += factory.log
            last = ScriptedFactory(token_s)
            found = _study(workspace, last).run()
        assert found == expected
        repeated_warm_ups = 4 * 3
        assert len(log) + len(last.log) <= len(whole.log) + repeated_warm_ups

    def test_afterwards_ctrl_c_is_what_it_was(self, workspace: Workspace) -> None:
        _study(workspace, ScriptedFactory(token_s), max_trials=1).run()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class TestResuming:
    def test_a_finished_study_measures_nothing_again(self, workspace: Workspace) -> None:
        first = _study(workspace, ScriptedFactory(token_s)).run()
        again = ScriptedFactory(token_s)
        assert _study(workspace, again).run() == first
        assert again.log == []

    def test_other_prompts_or_lengths_are_another_study(self, workspace: Workspace) -> None:
        _study(workspace, ScriptedFactory(token_s), max_trials=2).run()
        for change in ({"prompts": PROMPTS[:4]}, {"repeats": 2}):
            factory = ScriptedFactory(token_s)
            _study(workspace, factory, max_trials=2, **change).run()
            assert factory.log != []

    def test_progress_is_told(self, workspace: Workspace) -> None:
        heard: list[Event] = []
        _study(workspace, ScriptedFactory(token_s), max_trials=3, listener=heard.append).run()
        told = [event for event in heard if isinstance(event, Progressed)]
        assert [event.done for event in told] == [1, 2, 3]
        assert told[0].detail == exit_plan(8).describe()
        assert told[-1].best == pytest.approx(1.6, rel=0.1)
