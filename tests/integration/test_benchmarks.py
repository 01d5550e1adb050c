"""The benchmark, rehearsed on tiny models: what it records and writes, and how it fails."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from benchmarks import rows, run, table
from benchmarks.bandwidth import measure_bandwidth
from benchmarks.contenders import CompileTimeoutError, deadline, own_plain
from benchmarks.contest import Outcome, same_texts, summary
from benchmarks.measured_row import measure_row, read_bytes
from benchmarks.memory import held_bytes, peak_bytes, reset_peak
from benchmarks.rounds import RoundParts
from benchmarks.rows import ROWS
from benchmarks.scale import FULL, QUICK
from benchmarks.steps import is_exact
from tests.support.saved_models import save_config
from tests.support.tiny_models import tiny_config, tiny_model, tiny_target
from tests.support.tiny_tokenizer import tiny_tokenizer

from selfspec.cli.calibrate_options import merge_settings
from selfspec.recipe import read_recipe
from selfspec_calibrate.measurement import RunMeasurement
from selfspec_calibrate.prompt_set import load_prompt_set
from selfspec_runtime.loading import LoadedModel
from selfspec_runtime.model_spec import ModelSpec
from selfspec_runtime.stats import AcceptanceStats, PhaseSeconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.contenders import Contender

SMALL = replace(QUICK, prompts=1, tokens=4, large_prompts=1, large_tokens=6, passes=1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    work = tmp_path_factory.mktemp("rows")
    names = ("planted", "large")
    made = {name: ROWS[name](work, SMALL) for name in names}
    return {
        name: {"name": name, "seconds": 1.0, **measure_row(made[name], SMALL, gguf=None, threads=1, say=str)}
        for name in names
    }


def by_name(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in row["contenders"]}


def test_the_demo_model_decodes_prompts_that_its_plan_was_not_chosen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "DEMO_MODEL", save_config(tmp_path / "shape", tiny_config("llama")))
    row = ROWS["demo-bfloat16"](tmp_path, replace(FULL, prompts=40))
    loaded = LoadedModel(tiny_model("llama"), tiny_tokenizer(), ModelSpec(model="tiny"))
    decoded = {prompt.prompt_id for prompt in row.measured_prompts(loaded)}
    settings = merge_settings(read_recipe("demo").settings, {"model": "m", "prompts": rows.DEMO_PROMPTS})
    known = load_prompt_set(settings, tiny_tokenizer(), max_positions=None, reserve=0)
    assert decoded == {prompt.prompt_id for prompt in known.held_out}
    assert len(decoded) == 20


def test_every_contender_is_measured_or_says_why(measured: dict[str, dict[str, Any]]) -> None:
    planted = by_name(measured["planted"])
    assert list(planted) == [
        "transformers", "static cache", "compiled", "early exit", "prompt lookup", "llama.cpp", "own, plain",
        "own, plan",
    ]  # fmt: skip
    for each in planted.values():
        assert (each["reason"] is None) == (each.get("tokens_per_s") is not None)
    assert {name for name, each in planted.items() if each["reason"]} == {"compiled", "llama.cpp"}
    assert planted["own, plan"]["num_runs"] == 2
    assert planted["early exit"]["num_runs"] == 1
    assert planted["own, plan"]["same_text_as_own_plain"] == 1
    assert planted["transformers"]["over_baseline"]["value"] == 1.0


def test_the_planted_exit_is_always_accepted(measured: dict[str, dict[str, Any]]) -> None:
    assert by_name(measured["planted"])["own, plan"]["acceptance_rate"] == 1.0
    parts = measured["planted"]["round_parts"]
    assert parts["num_draft_tokens"] == 5
    per_round = by_name(measured["planted"])["own, plan"]["tokens_per_round"]
    assert measured["planted"]["ideal"] == pytest.approx(per_round / (5 * parts["c"] + parts["v"]))


def test_random_weights_leave_out_what_depends_on_meaning(measured: dict[str, dict[str, Any]]) -> None:
    large = by_name(measured["large"])
    assert all("would mean nothing" in large[name]["reason"] for name in ("early exit", "prompt lookup"))
    assert large["own, plan"]["tokens_per_s"] > 0
    assert all(each.get("same_text_as_own_plain") is None for each in large.values())
    read = measured["large"]["round_parts"]["draft_bytes"]
    assert 0 < read < measured["large"]["read_bytes"]["own"]


def test_passes_are_timed_for_every_width_and_compared_bit_by_bit(measured: dict[str, dict[str, Any]]) -> None:
    for row in measured.values():
        assert [each["positions"] for each in row["passes"]] == [8, 16]
        for each in row["passes"]:
            assert list(each["pass_s"]) == ["1", "2", "4", "5", "8", "16"]
            assert each["flatness"] == each["pass_s"]["5"] / each["pass_s"]["1"]
        assert isinstance(row["is_exact"], bool)


def test_blocks_that_round_otherwise_are_not_exact() -> None:
    target = tiny_target("llama")
    logits, calls = target.logits, []

    class Shifted:
        model, device, new_cache = target.model, target.device, target.new_cache

        def logits(self, ids: torch.Tensor, cache: Any, **arguments: Any) -> torch.Tensor:
            calls.append(len(ids))
            return logits(ids, cache, **arguments) + (1e-6 if len(ids) == 5 else 0.0)

    assert not is_exact(Shifted(), 8)
    assert calls.count(1) == 17


def test_the_table_holds_what_was_measured(measured: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    arguments = run._parser().parse_args(["--quick", "--only", "planted"])
    failed = {"name": "demo-4bit", "title": "demo-4bit", "failure": "ModelError: there | is none"}
    record = run._record(arguments, [*measured.values(), failed], 60.0)
    text = table.as_markdown(json.loads(json.dumps(record)))
    assert "python benchmarks/run.py --only planted --quick" in text
    assert "No number here means anything".lower() in text.lower()
    assert "**Synthetic acceptance 0.9: the text is not the model's.**" in text
    assert "| own, plan (exit after layer 6, 5 drafts) |" in text
    assert "Not measured: ModelError" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| T(") or "| tokens/s |" in line}
    assert widths == {8}
    assert text.count("| planted, 8 layers of 64, bfloat16 |") == 3


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "benchmarks.md"
    table.write_between_markers(path, "one")
    path.write_text("# Title\n\n" + path.read_text() + "\nthe end\n")
    old = tmp_path / "old.md"
    old.hardlink_to(path)
    table.write_between_markers(path, "two")
    text = path.read_text()
    assert "one" in old.read_text(), "the document is replaced whole"
    assert text.startswith("# Title\n")
    assert text.endswith("the end\n")
    assert "two" in text
    assert "one" not in text


def test_a_row_that_fails_says_why_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(given: Any, work: Path, name: str) -> dict[str, Any]:
        return {"failure": f"{name} is broken"}

    monkeypatch.setattr(run, "_run_child", child)
    output = tmp_path / "table.md"
    assert run.main(["--quick", "--only", "planted", "--only", "large", "--output", str(output)]) == 1
    record = json.loads(output.with_suffix(".json").read_text())
    assert [row["failure"] for row in record["rows"]] == ["planted is broken", "large is broken"]
    assert "Not measured: large is broken" in output.read_text()
    assert "planted: failed" in capsys.readouterr().out


def test_what_was_not_measured_in_full_does_not_replace_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(run, "_run_child", lambda *_: {"failure": "not here"})
    monkeypatch.setattr(table, "write_between_markers", lambda path, text: written.append(path))
    monkeypatch.setattr(run, "write_atomically", lambda path, _: written.append(path))
    run.main(["--quick"])
    run.main(["--only", "large"])
    assert {path.parent.name for path in written} == {"build"}
    run.main([])
    assert written[-1].parent.name == "docs"


@pytest.mark.slow
def test_a_process_of_its_own_measures_a_row(tmp_path: Path) -> None:
    output = tmp_path / "table.md"
    code = run.main(["--quick", "--only", "large", "--prompts", "1", "--output", str(output)])
    record = json.loads(output.with_suffix(".json").read_text())
    assert code == 0, record["rows"]
    assert record["rows"][0]["num_prompts"] == 1
    assert record["rows"][0]["base_bytes"] > 0
    assert record["machine"]["torch"] == torch.__version__


def test_bandwidth_is_the_larger_of_two_readings() -> None:
    found = measure_bandwidth(2**20)
    assert found.bytes_per_s == max(found.sum_bytes_per_s, found.product_bytes_per_s) > 0


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("llama", False)])
def test_input_embeddings_are_read_whole_only_if_the_head_is_tied(family: str, tied: bool) -> None:
    model = tiny_model(family)
    everything = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert read_bytes(model) == everything - (0 if tied else model.get_input_embeddings().weight.numel() * 4)


def test_the_ideal_is_that_of_the_formula() -> None:
    parts = RoundParts(plain_s=2.0, draft_s=0.5, verify_s=2.2, num_draft_tokens=4, draft_bytes=10)
    assert parts.ideal(4.2) == pytest.approx(4.2 / (4 * 0.25 + 1.1))
    assert parts.as_json()["draft_bytes_per_s"] == 20


def test_a_peak_is_seen_and_forgotten() -> None:
    before = held_bytes()
    if before is None:
        pytest.skip("the system does not say what a process holds")
    reset_peak()
    block = torch.ones(2**25)
    del block
    high = peak_bytes()
    assert high is not None
    assert high > before + 2**26
    reset_peak()
    assert (peak_bytes() or 0) < high


def test_a_deadline_ends_what_takes_too_long() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(CompileTimeoutError), deadline(0.01):
        signal.pause()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def measurement(prompt: str, ids: tuple[int, ...], decode_s: float) -> RunMeasurement:
    return RunMeasurement(
        arm="x",
        prompt_id=prompt,
        kind="k",
        num_tokens=len(ids) - 1,
        decode_s=decode_s,
        time_to_first_token_s=0.1,
        stats=AcceptanceStats(num_rounds=2, num_emitted_tokens=len(ids) - 1),
        seconds=PhaseSeconds(verify=0.75 * decode_s, host=0.25 * decode_s),
        token_ids=ids,
    )


@pytest.fixture
def someone() -> Contender:
    return own_plain(LoadedModel(tiny_model("llama"), None, ModelSpec(model="tiny")))


def test_a_summary_is_of_medians_and_totals(someone: Contender) -> None:
    times: Callable[[float], dict[str, list[RunMeasurement]]] = lambda factor: {  # noqa: E731
        f"p{number}": [measurement(f"p{number}", (1, 2, 3), factor * (number + 1))] for number in range(5)
    }
    slow, fast = (Outcome(contender=someone, runs=times(factor)) for factor in (2.0, 1.0))
    fast.runs["p0"] = [measurement("p0", (1, 2, 9), 1.0)]
    told = summary(fast, slow, slow)
    assert told["tokens_per_s"] == pytest.approx(2 / 3)
    assert told["over_baseline"]["value"] == pytest.approx(2.0)
    assert told["over_baseline"]["low"] == pytest.approx(2.0)
    assert told["host_share"] == pytest.approx(0.25)
    assert (same_texts(fast, slow), told["num_texts"]) == (4, 5)
