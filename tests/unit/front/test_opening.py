from __future__ import annotations

import inspect
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.calibrations import LINEAR_EXIT, NGRAM, QUANTIZED, calibration, memory_step
from tests.support.saved_models import save_config, save_model
from tests.support.tiny_models import tiny_config

import selfspec
from selfspec.loading_options import OPTIONS
from selfspec.opening import calibration_of, choose_plan, model_spec_of, plan_from
from selfspec_runtime import exactness
from selfspec_runtime.calibration_store import load_calibration, save_calibration
from selfspec_runtime.errors import CalibrationFileError, ModelError, PlanError, UnsupportedModelError, UsageError
from selfspec_runtime.fingerprint import fingerprint
from selfspec_runtime.loading import load_model
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec_runtime.calibration import MemoryStep


def calibrated(path: Path, folder: Path, *steps: MemoryStep, **changes: Any) -> Path:
    """A calibration file made for the model in a folder."""
    loaded = load_model(ModelSpec(model=str(folder)))
    content = calibration(*steps, model=loaded.spec, fingerprint=fingerprint(loaded), **changes)
    save_calibration(path, content, {})
    return path


def test_a_calibration_file_brings_model_and_plan(tiny_folder: Path, tmp_path: Path) -> None:
    model = selfspec.load(str(calibrated(tmp_path / "best.json", tiny_folder)))
    assert model.plan.source is not None
    assert model.plan.source.kind == "ngram"
    assert model.calibration is not None
    assert model.notices == ()


def test_a_folder_finds_its_own_calibration(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    assert selfspec.load(folder).plan.is_plain
    calibrated(folder / "selfspec.json", folder)
    assert not selfspec.load(folder).plan.is_plain
    assert calibration_of(ModelSpec(model=str(folder))) == folder / "selfspec.json"
    assert calibration_of("owner/name") is None


def test_what_is_not_said_is_as_it_was_calibrated(tiny_folder: Path, tmp_path: Path) -> None:
    path = calibrated(tmp_path / "best.json", tiny_folder)
    stored = load_calibration(path)
    recorded = stored.calibration.model
    loading = recorded.model_copy(update={"dtype": "bfloat16", "quantization": "bnb-4bit", "revision": "r"})
    changed = replace(stored, calibration=stored.calibration.model_copy(update={"model": loading}))
    assert model_spec_of(path, changed) == loading
    assert model_spec_of(path, changed, device="cpu").device == "cpu"
    elsewhere = model_spec_of("owner/name", changed)
    assert (elsewhere.model, elsewhere.dtype, elsewhere.quantization) == ("owner/name", "bfloat16", "bnb-4bit")
    assert elsewhere.revision is None
    whole = ModelSpec(model="m", dtype="float32")
    assert model_spec_of(whole, changed) == whole
    assert model_spec_of("m", None) == ModelSpec(model="m")


def test_a_device_that_is_not_here_is_not_insisted_on(tiny_folder: Path, tmp_path: Path) -> None:
    path = calibrated(tmp_path / "best.json", tiny_folder)
    stored = load_calibration(path)
    there = stored.calibration.model.model_copy(update={"device": "cuda:63"})
    moved = replace(stored, calibration=stored.calibration.model_copy(update={"model": there}))
    assert model_spec_of(path, moved).device == "auto"


def test_a_folder_that_moved_together_with_its_file_is_found(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "first" / "model"
    shutil.copytree(tiny_folder, folder)
    calibrated(folder / "selfspec.json", folder)
    calibrated(tmp_path / "first" / "best.json", folder)
    (tmp_path / "first").rename(tmp_path / "second")
    assert selfspec.load(tmp_path / "second" / "model" / "selfspec.json").calibration is not None
    assert selfspec.load(tmp_path / "second" / "best.json").calibration is not None


def test_an_explicit_plan_takes_the_place_of_the_files(tiny_folder: Path, tmp_path: Path) -> None:
    path = calibrated(tmp_path / "best.json", tiny_folder)
    model = selfspec.load(path, plan={"source": {"kind": "early_exit", "exit_layer": 2}})
    assert model.plan.describe().startswith("exit after layer 2")


def test_extra_memory_chooses_among_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    steps = [memory_step(NGRAM), memory_step(QUANTIZED, extra_bytes=270_000, speedup=1.9)]
    save_calibration(path, calibration(*steps), {})
    assert choose_plan(None, file=path).plan == steps[0].plan
    assert choose_plan(None, file=path, limit="30%").plan == steps[1].plan
    with pytest.raises(UsageError, match="not an amount of memory"):
        choose_plan(None, file=path, limit="lots")


def test_a_plan_that_did_not_pay_is_not_used_and_the_reason_is_given(tiny_folder: Path, tmp_path: Path) -> None:
    path = calibrated(tmp_path / "best.json", tiny_folder, memory_step(enabled=False))
    model = selfspec.load(path)
    assert model.plan.is_plain
    assert model.notices == ("Decoding without a draft: It is not faster on held-out prompts.",)


def test_other_weights_are_refused_unless_forced(tiny_folder: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", num_hidden_layers=4, seed=1)
    path = calibrated(tmp_path / "best.json", tiny_folder)
    loaded = load_model(ModelSpec(model=str(other)))
    with pytest.raises(CalibrationFileError, match="for other weights of the same architecture"):
        selfspec.load(loaded.model, loaded.tokenizer, plan=path)
    forced = selfspec.load(loaded.model, loaded.tokenizer, plan=path, force=True)
    assert any("other weights" in notice for notice in forced.notices)
    assert not forced.plan.is_plain


def test_another_structure_is_refused_also_if_forced(tiny_folder: Path, tmp_path: Path) -> None:
    other = load_model(ModelSpec(model=str(save_model(tmp_path / "other", num_hidden_layers=3))))
    path = calibrated(tmp_path / "best.json", tiny_folder)
    with pytest.raises(CalibrationFileError, match="another number of layers"):
        selfspec.load(other.model, other.tokenizer, plan=path, force=True)


def test_a_loaded_model_is_used_as_it_is(tiny_folder: Path) -> None:
    loaded = load_model(ModelSpec(model=str(tiny_folder), attn_implementation="sdpa"))
    model = selfspec.load(loaded.model, loaded.tokenizer, plan=NGRAM)
    assert model.model is loaded.model
    assert len(model.generate("ab", max_new_tokens=3).token_ids) <= 3


def test_a_loaded_model_is_checked(tiny_folder: Path) -> None:
    loaded = load_model(ModelSpec(model=str(tiny_folder)))
    with pytest.raises(UsageError, match="needs its tokenizer"):
        selfspec.load(loaded.model)
    with pytest.raises(UsageError, match=r"stays as it is: device .* model\.to\(device\)"):
        selfspec.load(loaded.model, loaded.tokenizer, device="cpu")
    loaded.model.train()
    with pytest.raises(UsageError, match=r"Call model.eval\(\)"):
        selfspec.load(loaded.model, loaded.tokenizer)
    with pytest.raises(UsageError, match="A dict is no transformers model"):
        selfspec.load({})
    with pytest.raises(UsageError, match="only given together with a model"):
        selfspec.load(str(tiny_folder), loaded.tokenizer)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"source": {"kind": "early_exit", "exit_layer": 4}}, PlanError, "Exit layer 4 does not exist"),
        ({"source": {"kind": "early_exit", "exit_layer": 0}}, UsageError, "exit_layer: Input should be greater"),
        ({"source": {"kind": "layer_skip", "skip": {"mlp": [9]}}}, PlanError, r"sub-layers \[9\]"),
        ({"source": {"kind": "magic"}}, UsageError, "The plan is not one: source"),
        (LINEAR_EXIT, PlanError, "The linear head of exit layer 2 is missing"),
    ],
)
def test_plans_that_do_not_fit_are_refused(
    tiny_folder: Path, plan: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        selfspec.load(tiny_folder, plan=plan)


def test_missing_things_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match="There is no calibration file"):
        selfspec.load(tmp_path / "best.json")
    with pytest.raises(ModelError, match=r"Did you mean .*tiny-llama"):
        selfspec.load(str(tiny_folder).replace("tiny-llama", "tiny-lama"))
    hybrid = save_config(tmp_path / "hybrid", tiny_config("jamba"))
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        selfspec.load(hybrid)


def test_an_executor_may_be_chosen(tiny_folder: Path) -> None:
    assert selfspec.load(tiny_folder, executor="eager").engine.executor == "eager"
    assert selfspec.load(tiny_folder).engine.executor == "auto"
    with pytest.raises(UsageError, match="needs a CUDA device"):
        selfspec.load(tiny_folder, executor="cuda_graph")


def test_exact_decoding_is_refused_where_a_block_differs_from_single_steps(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = selfspec.load(tiny_folder, plan=NGRAM, exact=True)
    assert opened.plan == plan_from(NGRAM)
    monkeypatch.setattr(exactness, "differences", lambda target, *, start, widths: iter([(2, 0.25)]))
    with pytest.raises(UsageError, match=r"block of \d+ rows differs .* 0.25"):
        selfspec.load(tiny_folder, plan=NGRAM, exact=True)
    assert selfspec.load(tiny_folder, plan=NGRAM).plan == opened.plan


def test_how_to_load_may_be_said_as_a_newcomer_would(tiny_folder: Path, tmp_path: Path) -> None:
    for said in ("bfloat16", "bf16", torch.bfloat16):
        assert selfspec.load(tiny_folder, dtype=said).engine.target.dtype == torch.bfloat16
    path = calibrated(tmp_path / "best.json", tiny_folder)
    assert selfspec.load(path, dtype="bfloat16", trust_remote_code=False).loaded.spec.dtype == "bfloat16"
    assert selfspec.load(ModelSpec(model=str(tiny_folder)), dtype="float32").loaded.spec.dtype == "float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int7"}, "dtype cannot be 'int7': use one of auto, float32, float16, bfloat16"),
        ({"dtype": torch.int8}, "dtype cannot be 'int8'"),
        ({"quantization": "4bit"}, "quantization cannot be '4bit': use one of none, bnb-4bit, bnb-8bit"),
        ({"executor": "warp"}, "executor cannot be 'warp': use one of auto, eager, cuda_graph"),
        ({"device": 0}, "device cannot be 0: give text"),
        ({"trust_remote_code": "yes"}, "trust_remote_code cannot be 'yes': give True or False"),
        ({"torch_dtype": "bfloat16"}, "The number format is given as dtype"),
        ({"load_in_4bit": True}, 'quantization="bnb-4bit"'),
        ({"device_map": "auto"}, "one device, which is given as device"),
        ({"dtpye": "bfloat16"}, "Did you mean dtype?"),
        ({"zzz": 1}, "It has tokenizer, plan"),
    ],
)
def test_what_cannot_be_said_of_loading_is_an_error_of_the_tree(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as told:
        selfspec.load("model", **options)
    assert message in str(told.value)


def test_every_option_of_load_is_listed() -> None:
    parameters = [name for name in inspect.signature(selfspec.load).parameters if name not in ("source", "unsupported")]
    assert sorted(OPTIONS) == sorted(parameters)


def test_a_loaded_model_stays_as_it_is(tiny_folder: Path) -> None:
    loaded = load_model(ModelSpec(model=str(tiny_folder), pack=False))
    with pytest.raises(UsageError, match="dtype is chosen when it is loaded"):
        selfspec.load(loaded.model, loaded.tokenizer, dtype="float32")
    assert selfspec.load(loaded.model, loaded.tokenizer, executor="eager").loaded.spec.executor == "eager"
