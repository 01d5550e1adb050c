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

        return run_command(with_dashes(typed))
    except KeyboardInterrupt:
        return INTERRUPTED


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Options as they are defined: ``--max_new_tokens`` is ``--max-new-tokens``; values, and all after ``--``, stay."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*(_dashed(argument) for argument in arguments[:end]), *arguments[end:]]


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


if __name__ == "__main__":
    sys.exit(main())
