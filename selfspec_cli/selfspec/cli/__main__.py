"""The entry point: what was typed, and an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: What was typed after ``selfspec``; by default that of this process.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage, 3 speedup not reached, 130 interrupted.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Imported here, so that Ctrl-C while the program starts is an interruption like any other.
        from selfspec.cli.run import run_command

        return run_command(typed)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
