"""What every test relies on: no network, one thread, and the attention that models are built with."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pytest
import torch

# Read when Triton is imported, which torch alone does not do: without a GPU kernels run in Triton's interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

from selfspec_runtime import verifier
from selfspec_runtime.attention import register_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a shell starts in the background is deaf to Ctrl-C, and so would be all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Sums over several threads may be split differently from run to run, and tests share few cores.
torch.set_num_threads(1)
register_attention()

# The same examples each time: a test must not fail in a change that does not touch it.
settings.register_profile("selfspec", deadline=None, derandomize=True)
settings.load_profile("selfspec")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Has what a test's fixtures draw depend on nothing that ran before."""
    seed_everything()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Has what a test draws be the same whether or not an earlier test built its fixtures."""
    seed_everything()


def seed_everything() -> None:
    """Starts each library's own random numbers anew, for what names no generator (weights of a fresh layer)."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Fails a test that leaves more threads behind.

    Workers that have more threads than cores wait for each other at every operator: the tests that follow in the
    worker then take ten times as long.
    """
    yield
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 1, f"the test leaves torch with {threads} threads"


@pytest.fixture(autouse=True)
def large_prefixes(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the tests' tiny models resume verifications, as models do whose first layers are worth it."""
    monkeypatch.setattr(verifier, "SMALL_PREFIX_BYTES", 0)
