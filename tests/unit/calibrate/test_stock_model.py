from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.saved_models import save_model

from selfspec_calibrate import stock_model as module
from selfspec_calibrate.stock_model import stock_model
from selfspec_runtime.loading import LoadedModel, load_model
from selfspec_runtime.model_spec import ModelSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("stock"))


def loaded(folder: Path, *, pack: bool) -> LoadedModel:
    return load_model(ModelSpec(model=str(folder), device="cpu", pack=pack))


def kinds(model: object) -> set[str]:
    return {type(each).__name__ for each in model.modules()}  # type: ignore[attr-defined]


def test_a_repacked_model_is_compared_with_an_unpacked_copy_in_stock_attention(folder: Path) -> None:
    ours = loaded(folder, pack=True)
    model, notices = stock_model(ours)
    assert not notices
    assert "LeanLayer" not in kinds(model)
    assert "LeanLayer" in kinds(ours.model)
    assert model.config._attn_implementation == "sdpa"
    assert model.dtype == ours.model.dtype


def test_a_model_that_was_not_repacked_is_its_own_stock_model(folder: Path) -> None:
    ours = loaded(folder, pack=False)
    assert stock_model(ours) == (ours.model, ())


def test_without_room_for_a_copy_the_user_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = loaded(folder, pack=True)
    monkeypatch.setattr(module, "_free_bytes", lambda: 0.0)
    model, notices = stock_model(ours)
    assert model is ours.model
    assert "repacked" in notices[0]


def test_files_in_memory_make_way_for_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  7000 kB\n")
    monkeypatch.setattr(module, "MEMORY_TABLE", table)
    assert module._free_bytes() == 7000 * 1024
    monkeypatch.setattr(module, "MEMORY_TABLE", tmp_path / "none")
    assert module._free_bytes() == module._free_pages_bytes()
