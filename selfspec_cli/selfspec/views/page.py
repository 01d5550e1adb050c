"""A view as a file of its own: no script, and no permission to load anything."""

from __future__ import annotations

from markupsafe import Markup

_PAGE = Markup(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>body{{margin:0;padding:1rem;background:#ffffff}}
main{{max-width:62rem;margin:0 auto}}
@media (prefers-color-scheme:dark){{body{{background:#15191e}}}}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
)


def page(title: str, body: Markup) -> str:
    """A whole HTML document that works from disk and offline.

    Args:
        title: Title of the window; escaped.
        body: The view.
    """
    return str(_PAGE.format(title=title, body=body))
