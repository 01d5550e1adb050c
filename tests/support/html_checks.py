"""What every piece of HTML must satisfy, checked by parsing it."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def parsed(html: str) -> _Balance:
    """The parsed document, its elements balanced."""
    parser = _Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open, f"never closed: {parser.open}"
    return parser


def assert_harmless(html: str) -> None:
    """Asserts that nothing runs, loads, or acts, and that every picture has a description.

    Pictures may be images that hold all of their data; these are looked into.
    """
    for data in re.findall(r' src="data:image/svg\+xml;base64,([^"]*)"', html):
        picture = base64.b64decode(data).decode()
        ElementTree.fromstring(picture)
        assert_harmless(picture.replace(' xmlns="http://www.w3.org/2000/svg"', ""))
    html = re.sub(r'<img alt="([^"]+)" style="[^"]*" src="data:image/svg\+xml;base64,[^"]*">', r"\1", html)
    document = parsed(html)
    tags = {tag for tag, _ in document.seen}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form", "img"}
    for tag, attributes in document.seen:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert not {"src", "href", "xlink:href"} & set(attributes), (tag, attributes)
        assert tag != "svg" or attributes.get("aria-label")
    assert not re.search(r"https?://|//[a-z]|url\(|@import|javascript:", html)
    assert html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\u2028]", html)


def shown_text(html: str) -> str:
    """All text of a document, style sheets apart."""
    return "".join(parsed(html).text)
