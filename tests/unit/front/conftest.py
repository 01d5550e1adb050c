from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import CommandLine
from tests.support.saved_models import save_model

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec import SpeculativeModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with four layers and a chat template, as a user's folder; not to be written to."""
    return save_model(tmp_path_factory.mktemp("models") / "tiny-llama", num_hidden_layers=4)


@pytest.fixture(scope="session")
def ngram_model(tiny_folder: Path) -> SpeculativeModel:
    """The tiny model with an n-gram plan; shared."""
    import selfspec

    return selfspec.load(str(tiny_folder), plan={"source": {"kind": "ngram"}})


@pytest.fixture
def selfspec_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    """The command line, in an empty folder."""
    return CommandLine(capsys, monkeypatch, tmp_path)
