"""Where Optuna studies are kept: SQLite beside the output, or a database that the user names."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import optuna
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from selfspec_runtime.errors import SelfspecError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

SQLITE_TIMEOUT_S = 60
"""How long to wait for a dashboard that reads, or for another study that writes."""

STORAGE_FAILURES = (optuna.exceptions.StorageInternalError, SQLAlchemyError, sqlite3.Error)


def sqlite_url(path: Path) -> str:
    """URL of a database file."""
    return URL.create("sqlite", database=path.resolve().as_posix()).render_as_string()


def is_file(url: str) -> bool:
    """Whether a URL names a file of this machine, which the folder's lock then guards."""
    return url.startswith("sqlite:")


def check_storage(url: str) -> None:
    """Finds out, without writing anything, whether a URL is one, and whether its kind of database can be used.

    Raises:
        UsageError: It is none, or a package is missing.
    """
    try:
        make_url(url).get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise _unusable(url, error) from error


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """Opens or creates a storage.

    Args:
        url: SQLAlchemy URL.

    Raises:
        UsageError: It is no URL, or of a kind of database for which a package is missing.
        SelfspecError: The database cannot be reached or written, or is damaged.
    """
    try:
        arguments: dict[str, Any] = {}
        if is_file(url):
            arguments["engine_kwargs"] = {"connect_args": {"timeout": SQLITE_TIMEOUT_S}}
            _write_ahead(url)
        return optuna.storages.RDBStorage(url, **arguments)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise _unusable(url, error) from error
    except STORAGE_FAILURES as error:
        raise storage_error(url, error) from error


def _unusable(url: str, error: Exception) -> UsageError:
    shown = re.sub("(?<=://).*@", "***@", url)  # it may be no URL that could be parsed, and hold a password
    return UsageError(
        f"The storage {shown!r} cannot be used: {error}. Give --storage a URL such as sqlite:///study.db."
    )


def storage_error(url: str, error: Exception) -> SelfspecError:
    """What to tell the user when the storage fails; a password in the URL is not shown."""
    cause = error.__cause__ or error
    reason = str(getattr(cause, "orig", None) or cause).splitlines()[0]
    message = (
        f"The measurements cannot be stored in {make_url(url).render_as_string()}: {reason}. What was stored before is "
        "kept. See to free space and write access, then run the same command again; if the file is damaged, add "
        "--restart."
    )
    return SelfspecError(message)


def _write_ahead(url: str) -> None:
    """Lets a dashboard read while we write; a file system that cannot do so keeps SQLite's own mode."""
    place = make_url(url).database
    if place and place != ":memory:":
        with closing(sqlite3.connect(place, timeout=SQLITE_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
