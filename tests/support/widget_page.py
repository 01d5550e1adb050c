"""A page that runs one widget in a browser without a notebook: the real script, a stand-in for the kernel's side."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from selfspec.notebook.view import View

_PAGE = """<!DOCTYPE html><html lang="en"{theme}><head><meta charset="utf-8"><title>Widget</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{margin:0;padding:12px;background:{ground}}}{css}</style>
</head>
<body><div id="{fallback}">fallback</div><div id="place"></div>
<script type="module">
const state = {state};
const replies = {replies};
for (const [name, value] of Object.entries(state)) if (value && value.bytes !== undefined) {{
  const raw = Uint8Array.from(atob(value.bytes), (c) => c.charCodeAt(0));
  state[name] = new DataView(raw.buffer);
}}
const listeners = [];
window.sent = [];
window.model = {{
  get: (name) => state[name],
  send: (message) => {{ window.sent.push(message); const reply = replies[JSON.stringify(message)];
    if (reply) listeners.forEach((each) => each(reply)); }},
  on: (_, listener) => listeners.push(listener),
  off: (_, listener) => listeners.splice(listeners.indexOf(listener), 1),
}};
const source = {esm};
const module = await import(URL.createObjectURL(new Blob([source], {{ type: "text/javascript" }})));
const el = document.getElementById("place");
try {{
  await module.default.render({{ model: window.model, el }});
  {script}
  document.body.dataset.done = "yes";
}} catch (error) {{ document.body.dataset.error = String(error && error.stack || error); }}
</script></body></html>"""


def widget_page(view: View, *, script: str = "", replies: Mapping[str, Any] | None = None, dark: bool = False) -> str:
    """The page.

    Args:
        view: The widget.
        script: What happens to it, in JavaScript; ``el`` is where it was put.
        replies: The kernel's answers, by message as compact JSON.
        dark: Whether the notebook's theme is dark.
    """
    state = {name: _plain(getattr(view, name)) for name in view.keys if not name.startswith("_") and name != "layout"}
    return _PAGE.format(
        theme=' data-jp-theme-light="false"' if dark else "",
        ground="#111" if dark else "#fff",
        css=view._css,
        fallback=view.fallback_id,
        state=_inline(state),
        replies=_inline(dict(replies or {})),
        esm=_inline(view._esm),
        script=script,
    )


def chromium() -> str | None:
    """The browser, or None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def final_dom(page: Path) -> str:
    """The document after its scripts ran."""
    command = [
        str(chromium()), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom",
        page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _plain(value: Any) -> Any:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes | memoryview) else value


def _inline(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")
