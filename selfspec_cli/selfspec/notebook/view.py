"""What the widgets have in common: what a notebook stores, and what it shows where no widget runs."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from markupsafe import Markup

from selfspec.views.page import page
from selfspec.views.portable import portable
from selfspec_runtime.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

# Where scripts run, the widget takes the page away. Where they do not, the page hides the output that follows,
# which is the widget's and could only say that it is missing.
_FALLBACK = Markup(
    '<div id="{identity}"><style>'
    ".jp-OutputArea-child:has(#{identity})+.jp-OutputArea-child:has(.jupyter-widgets),"
    ".output:has(#{identity})+.output:has(.jupyter-widgets){{display:none}}"
    "</style>\n{content}</div>"
)


class View(anywidget.AnyWidget):  # type: ignore[misc]
    """Base of the widgets."""

    fallback_id = traitlets.Unicode().tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(fallback_id=f"ss-{secrets.token_hex(6)}", **traits)

    @property
    @abstractmethod
    def title(self) -> str:
        """Title of the saved page."""

    @abstractmethod
    def static_html(self) -> Markup:
        """The view without script."""

    @abstractmethod
    def plain_text(self) -> str:
        """The view as text."""

    def save_html(self, path: str | Path) -> None:
        """Writes the view as one file that works from disk and offline.

        Args:
            path: Where to.

        Raises:
            SelfspecError: It cannot be written.
        """
        write_atomically(Path(path), page(self.title, self.static_html()).encode())

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget for notebooks that run it, HTML without script and plain text for all others."""
        bundle: Any = super()._repr_mimebundle_(**kwargs) or ({}, {})
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/html": str(self._fallback()), "text/plain": self.plain_text()}, metadata

    def _ipython_display_(self) -> None:
        """Shows the page first and the widget after it, in an output of its own.

        A notebook that is opened again shows only the richest form of an output, even where that one can no longer
        run; so the form that always works gets an output too.
        """
        display: Any = import_module("IPython.display").display

        data, metadata = self._repr_mimebundle_()
        page_only = {kind: data.pop(kind) for kind in ("text/html", "text/plain")}
        display(page_only, raw=True)
        if data:
            display(data, metadata=metadata, raw=True)

    def _fallback(self) -> Markup:
        return _FALLBACK.format(identity=self.fallback_id, content=portable(self.static_html()))


def joined_by_nul(texts: Iterable[str]) -> bytes:
    """Texts as one trait; what stands in for hidden characters leaves no NUL in them."""
    return "\0".join(text.replace("\0", "␀") for text in texts).encode("utf-8", "replace")
