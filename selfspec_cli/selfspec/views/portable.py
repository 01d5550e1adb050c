"""Makes a view survive where style sheets and inline pictures are stripped: code hosts, notebooks not trusted yet."""

from __future__ import annotations

import base64
import re

from markupsafe import Markup

from selfspec.views.palette import DEPTH_COLOURS, readable_on

_PICTURE = re.compile(r"<svg (.*?)>(.*?)</svg>", re.DOTALL)
_LABEL = re.compile(r'aria-label="([^"]*)"')
_TOKEN = re.compile(r'class="ss-t ss-d(\d)')
# Half-way tones, since such a picture cannot know whether it stands on a light or on a dark page.
_RULES = (
    "text{fill:#7c7c7c;font:11px sans-serif}.ss-small{font-size:9px}"
    ".ss-a{fill:#3d85c6}.ss-w{fill:#9fc5e8}.ss-b{fill:#c27a2c}.ss-hollow{fill:none;stroke:#c27a2c}"
    ".ss-frame{fill:none;stroke:#8c959f}.ss-grid{stroke:#8c959f;stroke-width:.5}"
    ".ss-la{fill:none;stroke:#3d85c6;stroke-width:2}"
    ".ss-lb,.ss-exit{fill:none;stroke:#c27a2c;stroke-width:2;stroke-dasharray:6 3}"
) + "".join(f".ss-d{number}{{fill:{colour}}}" for number, colour in enumerate(DEPTH_COLOURS))


def portable(html: Markup) -> Markup:
    """The same view with its colours at the tokens and its pictures as images that hold their own style.

    Args:
        html: What one of the views made.
    """
    coloured = _TOKEN.sub(_with_colours, html)
    return Markup(_PICTURE.sub(_as_image, coloured))


def _with_colours(found: re.Match[str]) -> str:
    background = DEPTH_COLOURS[int(found[1])]
    return f'style="background-color:{background};color:{readable_on(background)}" {found[0]}'


def _as_image(found: re.Match[str]) -> str:
    attributes, content = found[1], found[2]
    label = _LABEL.search(attributes)
    fitted = 'class="ss-fit"' in attributes
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}><style>{_RULES}</style>{content}</svg>'
    data = base64.b64encode(picture.encode()).decode()
    size = "width:100%;max-width:44rem" if fitted else "max-width:none"
    return f'<img alt="{label[1] if label else ""}" style="{size}" src="data:image/svg+xml;base64,{data}">'
