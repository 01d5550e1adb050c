from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.calibrations import QUANTIZED, calibration, memory_step

from selfspec.cli.calibrate_options import FileOptions, SearchOptions, VerdictOptions, file_layers, merge_settings
from selfspec_calibrate.events import Listener, Noted, PhaseStarted, Progressed
from selfspec_calibrate.settings import CalibrationSettings
from selfspec_runtime.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine

    from selfspec_runtime.calibration import Calibration


class Pipeline:
    """Stands in for the calibration: remembers what it was asked for and gives back a made-up result."""

    def __init__(self) -> None:
        self.asked: list[CalibrationSettings] = []
        self.result: Calibration = calibration(
            memory_step(speedup=1.25), memory_step(QUANTIZED, name="quantized", extra_bytes=270_000, speedup=1.9)
        )
        self.error: BaseException | None = None

    def calibrate(self, settings: CalibrationSettings, listener: Listener) -> Calibration:
        self.asked.append(settings)
        listener(Noted("The budget affords 64 tokens."))
        listener(PhaseStarted("timed study", 2, 1.0))
        listener(Progressed("timed study", 1, "n-gram 1-3", 1.25))
        if self.error is not None:
            raise self.error
        settings.output.write_text("{}")
        return self.result

    def dry_run(self, settings: CalibrationSettings) -> Any:
        self.asked.append(settings)
        return types.SimpleNamespace(lines=("model: a tiny one", "prompts: 20 [/INST]"))


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    made = Pipeline()
    module = types.ModuleType("selfspec_calibrate.pipeline")
    module.calibrate = made.calibrate  # type: ignore[attr-defined]
    module.dry_run = made.dry_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "selfspec_calibrate.pipeline", module)
    return made


BASE = ("calibrate", "-m", "model", "-p", "data.jsonl")


def test_tables_go_to_stdout_and_progress_to_stderr(selfspec_command: CommandLine, pipeline: Pipeline) -> None:
    run = selfspec_command(*BASE, "-o", "best.json")
    assert run.code == 0
    assert "1.25x [1.10, 1.45]" in run.out
    assert "Use it with --max-extra-memory 27%." in run.out
    assert "predicted" in run.out
    assert "The budget affords 64 tokens." in run.err
    assert "best so far 1.25x" in run.err
    assert "Written to best.json. Use it: selfspec chat best.json" in run.err
    assert "budget" not in run.out


@pytest.mark.parametrize("form", ["json", "md"])
def test_other_formats_are_whole_documents(selfspec_command: CommandLine, pipeline: Pipeline, form: str) -> None:
    run = selfspec_command(*BASE, "--format", form, "-q")
    assert run.err == ""
    if form == "json":
        assert json.loads(run.out)["steps"]["rows"][1]["extra_bytes"] == 270_000
    else:
        assert run.out.count("**") == 6


def test_every_flag_arrives_in_the_settings(selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    flags = (
        "--revision", "main", "--dtype", "float32", "--device", "cpu", "--load-in-4bit", "--adapter-path", "lora",
        "--attn-implementation", "sdpa", "--trust-remote-code", "--gguf-file", "a.gguf",
        "--output", "out/best.json", "--storage", "sqlite:///x.db", "--restart", "--prompt-field", "ask",
        "--skip-bad-lines", "--limit", "30", "--held-out", "0.4", "--budget", "2m", "--trials", "9",
        "--families", "ngram,early-exit", "--max-draft-tokens", "6", "--max-extra-memory", "30%",
        "--also-temperature", "0.7, 1.0", "--require-speedup", "1.1", "--temperature", "0.5", "--top-p", "0.9",
        "--top-k", "40", "--min-p", "0.05", "--seed", "3", "--max-new-tokens", "64", "--system", "be brief",
        "--chat-template", "chat.jinja", "--chat-template-kwargs", '{"enable_thinking": false}',
    )  # fmt: skip
    assert selfspec_command(*BASE, *flags).code == 0
    assert pipeline.asked == [
        CalibrationSettings.model_validate(
            {
                "model": {
                    "model": "model",
                    "revision": "main",
                    "dtype": "float32",
                    "device": "cpu",
                    "quantization": "bnb-4bit",
                    "adapter_path": "lora",
                    "attn_implementation": "sdpa",
                    "trust_remote_code": True,
                    "gguf_file": "a.gguf",
                },
                "prompts": "data.jsonl",
                "output": "out/best.json",
                "storage": "sqlite:///x.db",
                "restart": True,
                "prompt_field": "ask",
                "skip_bad_lines": True,
                "limit": 30,
                "held_out_fraction": 0.4,
                "budget_s": 120.0,
                "max_trials": 9,
                "families": ("ngram", "early_exit"),
                "max_draft_tokens": 6,
                "max_extra_memory": "30%",
                "also_temperatures": (0.7, 1.0),
                "require_speedup": 1.1,
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.05,
                "seed": 3,
                "max_new_tokens": 64,
                "system": "be brief",
                "template_kwargs": {"enable_thinking": False, "chat_template": "{{ messages }}"},
            }
        )
    ]
    assert (tmp_path / "out" / "best.json").is_file()


def test_every_setting_is_named_as_the_command_line_has_it() -> None:
    from typer.main import get_command

    from selfspec.cli.app import app
    from selfspec_calibrate.settings import option_of

    command: Any = get_command(app)
    options = {name for option in command.commands["calibrate"].params for name in option.opts}
    assert {option_of(field) for field in CalibrationSettings.model_fields} <= options


def test_no_setting_is_without_a_flag() -> None:
    """What a recipe can set, the command line can set."""
    from selfspec.cli.options import SamplingOptions, TemplateOptions

    options = {
        *FileOptions(prompts=Path(), output=Path(), storage="s", restart=True, prompt_field="f", skip_bad_lines=True,
                     limit=2, held_out=0.5).given(),
        *SearchOptions(budget="1s", trials=1, families="ngram", max_draft_tokens=1).given(),
        *VerdictOptions(max_extra_memory="0", also_temperature="1", require_speedup=1.0).given(),
        *SamplingOptions(temperature=1.0, top_p=1.0, top_k=1, min_p=0.1, seed=1, max_new_tokens=8).given(),
        *TemplateOptions(system="s", chat_template_kwargs='{"a": 1}').given(),
        "model",
    }  # fmt: skip
    assert options == set(CalibrationSettings.model_fields)


def test_the_command_line_goes_before_the_file_and_the_file_before_the_recipe(
    selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("budget_s: 77\nmodel:\n  dtype: float32\nmax_new_tokens: 32\n")
    run = selfspec_command(*BASE, "--recipe", "cpu-nuc-bf16", "-C", "own.yaml", "--max-new-tokens", "16")
    assert run.code == 0
    settings = pipeline.asked[0]
    assert (settings.budget_s, settings.max_new_tokens, settings.max_extra_memory) == (77, 16, "30%")
    assert (settings.model.model, settings.model.dtype, settings.model.device) == ("model", "float32", "cpu")


def test_a_file_may_be_a_recipe_and_name_model_and_prompts(
    selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("when: Always.\nsettings:\n  model: ./tuned\n  prompts: p.jsonl\n")
    assert selfspec_command("calibrate", "-C", "own.yaml").code == 0
    assert pipeline.asked[0].model.model == "./tuned"
    assert pipeline.asked[0].prompts == Path("p.jsonl")


@pytest.mark.parametrize(
    ("reached", "required", "enabled", "code"),
    [(1.25, 1.2, True, 0), (1.25, 1.3, True, 3), (1.25, 1.2, False, 3), (0.9, 1.0, False, 0)],
)
def test_a_required_speedup_decides_the_exit_code_after_the_file_is_written(
    selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path, reached: float, required: float, enabled: bool,
    code: int,
) -> None:  # fmt: skip
    pipeline.result = calibration(memory_step(speedup=reached, enabled=enabled))
    run = selfspec_command(*BASE, "--require-speedup", required)
    assert run.code == code
    assert (tmp_path / "selfspec.json").is_file()
    assert run.out
    assert ("--require-speedup asks for" in run.err) == (code == 3)


def test_a_calibration_that_finds_nothing_ends_with_0(selfspec_command: CommandLine, pipeline: Pipeline) -> None:
    pipeline.result = calibration(memory_step(speedup=0.9, enabled=False))
    run = selfspec_command(*BASE)
    assert run.code == 0
    assert "(not enabled)" in run.out
    assert "It is not faster on held-out prompts." in run.out


def test_a_dry_run_writes_nothing(selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path) -> None:
    run = selfspec_command(*BASE, "--dry-run", "-o", "new/best.json")
    assert (run.code, run.out) == (0, "model: a tiny one\nprompts: 20 [/INST]\n")
    assert list(tmp_path.iterdir()) == []


def test_the_real_dry_run_resolves_model_and_prompts(
    selfspec_command: CommandLine, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps({"prompt": f"question {n}"}) for n in range(6)))
    run = selfspec_command("calibrate", "-m", tiny_folder, "-p", "data.jsonl", "--dry-run")
    assert run.code == 0
    assert "LlamaForCausalLM, 4 layers" in run.out
    assert "3 to search on, 3 held out" in run.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl"]
    for storage in ("foo", "foo://x", "oracle://x"):
        refused = selfspec_command(
            "calibrate", "-m", tiny_folder, "-p", "data.jsonl", "--dry-run", "--storage", storage
        )
        assert (refused.code, f"The storage {storage!r} cannot be used" in refused.err) == (2, True)
    missing = selfspec_command("calibrate", "-m", tiny_folder, "-p", "nowhere.jsonl", "--dry-run")
    assert missing.code == 2
    assert "nowhere.jsonl" in missing.err


def test_an_interrupted_calibration_says_how_to_go_on(selfspec_command: CommandLine, pipeline: Pipeline) -> None:
    pipeline.error = Interrupted("Interrupted; everything is saved. Run the same command to go on.")
    run = selfspec_command(*BASE)
    assert run.code == 130
    assert "Run the same command to go on" in run.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate"], "--model MODEL is needed"),
        (["calibrate", "-m", "model"], "--prompts FILE is needed"),
        ([*BASE, "--budget", "soon"], "'soon' is not a time"),
        ([*BASE, "--trials", "0"], "--trials cannot be 0: input should be greater than or equal to 1"),
        ([*BASE, "--held-out", "1.5"], "--held-out cannot be 1.5"),
        ([*BASE, "--families", "magic"], "--families cannot be 'magic'"),
        ([*BASE, "--also-temperature", "hot"], "--also-temperature is 'hot'"),
        ([*BASE, "--max-draft-tokens", "99"], "--max-draft-tokens cannot be 99"),
        ([*BASE, "--seed", "-1"], "--seed cannot be -1"),
        ([*BASE, "--seed", str(2**64)], "--seed cannot be 18446744073709551616"),
        ([*BASE, "--temperature", "inf"], "--temperature cannot be inf"),
        ([*BASE, "--temperature", "1e-30"], "--temperature cannot be 1e-30"),
        ([*BASE, "--also-temperature", "-1"], "--also-temperature cannot be -1"),
        ([*BASE, "--also-temperature", "nan"], "--also-temperature cannot be nan"),
        ([*BASE, "--require-speedup", "inf"], "--require-speedup cannot be inf"),
        ([*BASE, "--families", ""], "--families cannot be (): name at least one kind of draft"),
        ([*BASE, "-o", ".", "--dry-run"], "is a folder. Name a file with --output"),
        ([*BASE, "--recipe", "none"], "There is no recipe 'none'"),
        ([*BASE, "-C", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        ([*BASE, "-C", "typo.yaml"], "There is no setting 'budgets'"),
        ([*BASE, "-C", "model.yaml"], "There is no setting 'model.dtpye'"),
        ([*BASE, "-o", "."], "is a folder. Name a file with --output"),
    ],
)
def test_wrong_settings_are_said_before_any_work(
    selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "typo.yaml").write_text("budgets: 5")
    (tmp_path / "model.yaml").write_text("model:\n  dtpye: float32")
    run = selfspec_command(*arguments)
    assert (run.code, run.out) == (2, "")
    assert message in run.err
    assert pipeline.asked == []


def test_a_place_that_cannot_be_written_is_said_before_any_work(
    selfspec_command: CommandLine, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    run = selfspec_command(*BASE, "-o", "file/best.json")
    assert run.code == 1
    assert "cannot be written" in run.err
    assert pipeline.asked == []


def test_layers_are_merged_field_by_field() -> None:
    settings = merge_settings(
        {"model": {"dtype": "float32", "device": "cpu"}, "budget_s": 5, "prompts": "a"},
        {"model": "m"},
        {"model": {"device": "cuda"}, "prompts": "b"},
    )
    assert settings.model.model_dump(exclude_defaults=True) == {"model": "m", "dtype": "float32", "device": "cuda"}
    assert (settings.budget_s, settings.prompts) == (5, Path("b"))


def test_without_files_there_are_empty_layers() -> None:
    assert file_layers(FileOptions()) == ({}, {})
    with pytest.raises(UsageError, match="--model MODEL is needed"):
        merge_settings({}, {})
