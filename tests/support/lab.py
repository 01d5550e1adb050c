"""A real JupyterLab in a real browser, without network: a server of its own, and notebooks that are run in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nbformat
from tests.support.browser import WAIT_MS, is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, Page

QUIET = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
}


@dataclass
class Lab:
    """A running server.

    Attributes:
        url: Where it answers.
        folder: What it serves.
    """

    url: str
    folder: Path

    def write(self, name: str, cells: Sequence[str]) -> None:
        """Writes a notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)

    def write_again(self, name: str, notebook: Any) -> None:
        """Writes a notebook with its outputs under another name."""
        nbformat.write(notebook, self.folder / name)

    def read(self, name: str) -> Any:
        """Reads a notebook back."""
        return nbformat.read(self.folder / name, as_version=4)

    def opened(self, browser: Browser, path: str, **context: Any) -> Page:
        """A page of JupyterLab or Notebook, with everything beyond the server refused."""
        page = browser.new_context(viewport={"width": 1200, "height": 1000}, **context).new_page()
        page.set_default_timeout(WAIT_MS)
        page.route("**/*", lambda route: route.continue_() if is_local(route.request.url) else route.abort())
        page.goto(f"{self.url}/{path}")
        return page


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """Starts a server for a folder and stops it, with all of its kernels, in the end."""
    port = _free_port()
    root, private = folder / "work", folder / "private"
    root.mkdir()
    for name, content in QUIET.items():
        path = private / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    names = {"CONFIG": "JUPYTER_CONFIG_DIR", "DATA": "JUPYTER_DATA_DIR", "RUNTIME": "JUPYTER_RUNTIME_DIR"}
    env = {
        **os.environ,
        **{variable: str(private / name) for name, variable in names.items()},
        "JUPYTERLAB_SETTINGS_DIR": str(private / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "IPYTHONDIR": str(private / "ipython"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as server,
    ):
        try:
            lab = Lab(f"http://127.0.0.1:{port}", root)
            _wait_for(lab, server)
            yield lab
        finally:
            server.terminate()


CONNECTED = """() => {
  const session = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  return session?.isReady && session.session?.kernel?.connectionStatus === "connected"
    && session.session.kernel.status === "idle";
}"""


def run_all(page: Page) -> None:
    """Starts every cell of the notebook in front; the outputs say when they are done."""
    page.wait_for_function(CONNECTED)  # sooner, a dialog asks for a kernel
    do(page, "notebook:run-all-cells", wait_for=".jp-Notebook .jp-Cell")


def do(page: Page, name: str, *, wait_for: str = "body", **arguments: Any) -> None:
    """Starts one of JupyterLab's commands; its end is for the caller to see, since some promises never settle."""
    page.wait_for_selector(wait_for, state="attached")
    page.wait_for_function("() => window.jupyterapp?.shell && document.querySelector('.jp-NotebookPanel')")
    page.evaluate("() => window.jupyterapp.restored.then(() => true)")
    page.evaluate("([name, given]) => { window.jupyterapp.commands.execute(name, given); }", [name, arguments])


def set_theme(page: Page, name: str) -> None:
    """Switches to the light or the dark theme and waits for its style sheet."""
    do(page, "apputils:change-theme", theme=f"JupyterLab {name}")
    is_light = "true" if name == "Light" else "false"
    page.wait_for_selector(f'body[data-jp-theme-light="{is_light}"]', state="attached")
    page.wait_for_function(
        "(light) => (getComputedStyle(document.body).getPropertyValue('--jp-layout-color0').includes('#111') "
        "|| getComputedStyle(document.body).getPropertyValue('--jp-layout-color0').includes('rgb(17') ) !== light",
        arg=name == "Light",
    )


def _wait_for(lab: Lab, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert server.poll() is None, "JupyterLab ended at once; see server.log"
        try:
            with urllib.request.urlopen(f"{lab.url}/api/status", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("JupyterLab does not answer; see server.log")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
