"""The entry point: runs a command and turns whatever happens into a message and an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from selfspec.cli.app import app
from selfspec.cli.console import Terminal
from selfspec.cli.libraries import DEBUG_VARIABLE, debugging
from selfspec_runtime.errors import SelfspecError

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
    _write_any_text()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=with_dashes(typed), prog_name="selfspec")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SelfspecError as error:
        if debugging():
            raise
        Terminal().error(str(error))
        return error.exit_code
    except Exception as error:
        if debugging():
            raise
        Terminal().error(_unexpected(error))
        return 1
    return 0


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Options as they are defined: ``--max_new_tokens`` is ``--max-new-tokens``; values, and all after ``--``, stay."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*(_dashed(argument) for argument in arguments[:end]), *arguments[end:]]


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _unexpected(error: Exception) -> str:
    return (
        f"This should not have happened ({type(error).__name__}: {error}). Please report it with what "
        f"{DEBUG_VARIABLE}=1 shows for the same command."
    )


def _write_any_text() -> None:
    """A terminal that is not UTF-8 gets a replacement for what it cannot show, and no error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
