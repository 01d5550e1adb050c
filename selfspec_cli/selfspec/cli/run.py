"""Runs a command and turns whatever happens into a message and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec.cli.app import app
from selfspec.cli.console import Terminal
from selfspec.cli.libraries import DEBUG_VARIABLE, debugging
from selfspec.cli.streams import prepare_streams
from selfspec_runtime.errors import SelfspecError

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_command(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
        arguments: Its name, options and values.

    Returns:
        The exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C, where the command did not answer it.
    """
    prepare_streams()
    try:
        app(args=list(arguments), prog_name="selfspec")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SelfspecError as error:
        if debugging():
            raise
        Terminal().error(str(error))
        return error.exit_code
    except Exception as error:
        if debugging():
            raise
        Terminal().error(_told(error))
        return 1
    return 0


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        # Files are written and read with errors of their own: what is left are the streams and the system itself.
        reason = (error.strerror or str(error)).lower()
        place = "" if error.filename is None else f"{error.filename}: "
        return f"The system refused: {place}{reason}. Free what it lacks, and run it again."
    return (
        f"This should not have happened ({type(error).__name__}: {error}). Please report it with what "
        f"{DEBUG_VARIABLE}=1 shows for the same command."
    )
