from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from selfspec_calibrate.interruption import InterruptGuard, interrupted_message, interruptible
from selfspec_runtime.errors import Interrupted


@pytest.fixture(autouse=True)
def _python_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_is_a_request_and_the_second_an_exception() -> None:
    with InterruptGuard() as guard:
        assert not guard.requested
        signal.raise_signal(signal.SIGINT)
        assert guard.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_afterwards_ctrl_c_is_what_it_was() -> None:
    with InterruptGuard():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with InterruptGuard() as guard:
        signal.raise_signal(signal.SIGINT)
    assert not guard.requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_nothing_is_changed() -> None:
    found: list[object] = []

    def work() -> None:
        with InterruptGuard() as guard:
            found.extend([guard.requested, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False, signal.default_int_handler]


def test_between_prompts_a_request_ends_the_work_with_the_way_to_go_on() -> None:
    done = []

    def work() -> None:
        with interruptible("3 prompts are saved") as guard:
            for number in range(3):
                guard.check()
                signal.raise_signal(signal.SIGINT)
                done.append(number)

    with pytest.raises(Interrupted, match="3 prompts are saved"):
        work()
    assert done == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_are_what_they_were() -> None:
    with pytest.raises(ZeroDivisionError), interruptible("nothing is saved"):
        raise ZeroDivisionError


def test_the_message_says_how_to_go_on() -> None:
    message = interrupted_message("3 plans are saved in a.study")
    assert "3 plans are saved in a.study" in message
    assert "same command" in message
    assert "--restart" in message
