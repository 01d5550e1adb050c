"""The object around the rows, as in ``{"data": [...]}``."""

from __future__ import annotations

from selfspec_calibrate.prompts.place import Place, Row

_USUAL_NAMES = ("data", "rows", "prompts", "examples", "samples", "instances", "items", "questions")


def open_wrapper(row: Row) -> list[Row]:
    """Take the rows out of a file's only object.

    Args:
        row: A row that no shape matches.

    Returns:
        The elements of the object's list of rows, numbered from 1; the row itself if it has no such list.
    """
    if not isinstance(row.value, dict):
        return [row]
    lists = {key: value for key, value in row.value.items() if _holds_rows(value)}
    usual = [key for key in _USUAL_NAMES if key in lists]
    keys = usual[:1] or list(lists)
    if len(keys) != 1:
        return [row]
    path, line = row.place.path, row.place.line
    return [Row(Place(path, line, number), value) for number, value in enumerate(lists[keys[0]], start=1)]


def _holds_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict | list | str) for item in value)
