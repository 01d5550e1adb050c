"""The demo model, where `make model` has put it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DEMO_MODEL = Path(os.environ.get("SELFSPEC_DEMO_MODEL", Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"))

needs_demo_model = pytest.mark.skipif(not (DEMO_MODEL / "config.json").exists(), reason="make model")
