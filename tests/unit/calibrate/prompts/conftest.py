from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.prompt_files import Folder


@pytest.fixture
def write(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
