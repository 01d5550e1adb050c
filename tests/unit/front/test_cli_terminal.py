"""The chat on a real pseudo-terminal: what keys do."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 120.0

pytestmark = pytest.mark.slow


class TerminalChat:
    """A chat process with a pseudo-terminal at both ends.

    Args:
        arguments: What is typed after ``selfspec``.
    """

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "selfspec.cli", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self.master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Reads until the text is there, and returns everything up to it."""
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], TIMEOUT_S)
            assert ready, f"{text!r} did not come; there was {self.seen!r}"
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def press_until(self, keys: str, text: str) -> None:
        """Types keys, again each second, until a text is there.

        A signal that comes between a prompt and the reading of keys is not seen by CPython's readline before the next
        key; people press again, too.
        """
        for _ in range(int(TIMEOUT_S)):
            self.press(keys)
            while text not in self.seen and select.select([self.master], [], [], 1.0)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            if text in self.seen:
                return
        pytest.fail(f"{text!r} did not come; there was {self.seen!r}")

    def ended(self) -> int:
        """Waits for the end and returns the exit code."""
        return self.process.wait(TIMEOUT_S)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def chat(tiny_folder: Path) -> Iterator[TerminalChat]:
    made = TerminalChat("chat", "-m", str(tiny_folder), "--draft", "ngram", "--max-new-tokens", "400")
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGKILL)
        made.process.wait()
    os.close(made.master)


def test_ctrl_c_stops_a_reply_and_ctrl_d_leaves(chat: TerminalChat) -> None:
    chat.wait_for("/help lists the commands")
    chat.wait_for(">>> ")
    chat.press("hello\n")
    chat.wait_for("hello\r\n")
    while not chat.seen:
        chat.seen += os.read(chat.master, 65536).decode(errors="replace")
    chat.press("\x03")
    chat.wait_for("Stopped; the reply so far is kept")
    chat.wait_for(">>> ")
    chat.press("/stats\n")
    assert "interrupted" in chat.wait_for("tokens per round")
    chat.wait_for(">>> ")
    chat.press("/set max_new_tokens=4\n")
    chat.wait_for(">>> ")
    chat.press("and now?\n")
    chat.wait_for("4 tokens")
    chat.wait_for(">>> ")
    chat.press("\x04")
    assert chat.ended() == 0


def test_ctrl_c_between_replies_leaves(chat: TerminalChat) -> None:
    chat.wait_for(">>> ")
    chat.press_until("\x03", "\n")
    assert chat.ended() == 0
    assert "Traceback" not in chat.seen
