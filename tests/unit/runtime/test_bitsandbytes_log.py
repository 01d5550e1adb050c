from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import selfspec_runtime.quantized_loading  # noqa: F401 - importing it is what puts the filter there
from selfspec_runtime.bitsandbytes_log import LOGGER, hush_missing_kernel

if TYPE_CHECKING:
    from logging import Logger

SAID = "Failed to load CPU gemm_4bit_forward from kernels-community: %s. Please make sure"


@pytest.fixture
def logger() -> Logger:
    return logging.getLogger(LOGGER)


def test_the_line_about_the_hub_kernel_is_dropped_alone(logger: Logger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        logger.warning(SAID, "no module")
        logger.warning("Another matter: %s", "kept")
        logging.getLogger("elsewhere").warning(SAID, "kept")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "Another matter",
        "Failed to load CPU gemm_4bit_forward from kernels-community",
    ]


def test_it_is_put_there_once(logger: Logger) -> None:
    hush_missing_kernel()
    number = len(logger.filters)
    hush_missing_kernel()
    assert len(logger.filters) == number


def test_bitsandbytes_still_says_it_there() -> None:
    backend = pytest.importorskip("bitsandbytes.backends.cpu.ops")
    assert backend.__name__ == LOGGER
    assert SAID[:36] in Path(backend.__file__).read_text(encoding="utf-8")
