"""Chromium, driven by Playwright: where it is, how it starts, and where its pictures are kept."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

SCREENSHOTS = "SELFSPEC_SCREENSHOTS"
"""Environment variable that names the folder for pictures; without it they go to the test's own folder."""

WAIT_MS = 180_000
"""How long something may take to appear: long, since a busy machine is no fault."""


def chromium() -> str | None:
    """The browser, or None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


needs_browser = pytest.mark.skipif(
    chromium() is None, reason="NOT TESTED: no Chromium here. Run: apt-get install chromium"
)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A headless browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def is_local(url: str) -> bool:
    """Whether a request stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")


def keep(page: Page, name: str, folder: Path, *, whole: bool = False) -> Path:
    """Takes a picture and keeps it.

    Args:
        page: The page.
        name: Name of the picture.
        folder: Where to, unless the environment names another place.
        whole: The whole page, not only what is in view.
    """
    place = Path(os.environ.get(SCREENSHOTS) or folder)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path
