"""Databases that cannot be used are refused before any work, and without showing a password."""

from __future__ import annotations

import pytest

from selfspec_calibrate.study_storage import check_storage
from selfspec_runtime.errors import UsageError


@pytest.mark.parametrize("url", ["nosuchkind://me:secret@host/db", "no url", "oracle+nothing://me:secret@host"])
def test_what_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be used: .* Give --storage a URL") as refused:
        check_storage(url)
    assert "secret" not in str(refused.value)


def test_a_file_of_this_machine_can_be_used() -> None:
    check_storage("sqlite:///study.db")
