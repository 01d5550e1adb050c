"""One style sheet for every view: the notebook's own colours where there are any, light and dark elsewhere."""

from __future__ import annotations

from markupsafe import Markup

from selfspec.views.palette import DEPTH_COLOURS, readable_on

_LIGHT = """
--ss-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1b1f24));
--ss-muted:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#57606a));
--ss-bg:var(--jp-layout-color0,var(--vscode-editor-background,#ffffff));
--ss-soft:var(--jp-layout-color2,var(--vscode-textBlockQuote-background,#eef1f4));
--ss-line:var(--jp-border-color1,var(--vscode-panel-border,#8c959f));
--ss-accent:#0b5cad;--ss-second:#8a4b00;--ss-good:#0b5cad;--ss-weak:#7aa7d6;"""
_DARK = """
--ss-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,#e6edf3));
--ss-muted:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#a3acb6));
--ss-bg:var(--jp-layout-color0,var(--vscode-editor-background,#15191e));
--ss-soft:var(--jp-layout-color2,var(--vscode-textBlockQuote-background,#262c34));
--ss-line:var(--jp-border-color1,var(--vscode-panel-border,#6e7681));
--ss-accent:#7cb7ff;--ss-second:#f0b35e;--ss-good:#7cb7ff;--ss-weak:#3f6a99;"""
MAX_COLUMNS = 12
_DARK_THEMES = ('[data-jp-theme-light="false"]', '[data-vscode-theme-kind="vscode-dark"]')

_RULES = """
.ss{color:var(--ss-fg);background:var(--ss-bg);font:15px/1.5 system-ui,sans-serif;max-width:62rem;text-align:start}
.ss *{box-sizing:border-box}
.ss h1{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem}
.ss h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.ss p{margin:.4rem 0}
.ss .ss-muted,.ss figcaption,.ss caption{color:var(--ss-muted);font-size:.87rem}
.ss figure{margin:.5rem 0}
.ss caption{text-align:start;padding-bottom:.2rem}
.ss-scroll{overflow-x:auto;max-width:100%}
.ss-scroll:focus-visible,.ss summary:focus-visible{outline:2px solid var(--ss-accent);outline-offset:2px}
.ss table{border-collapse:collapse;font-size:.87rem;margin:.3rem 0;color:inherit}
.ss.ss table th,.ss.ss table td{padding:.2rem .4rem;border-bottom:1px solid var(--ss-line);
text-align:start;vertical-align:top;
background:none;color:inherit;white-space:nowrap}
.ss.ss table thead th{white-space:normal;vertical-align:bottom}
.ss.ss table .ss-n{text-align:end;font-variant-numeric:tabular-nums}
.ss tbody th{font-weight:400}
.ss tr.ss-chosen th,.ss tr.ss-chosen td{font-weight:700}
.ss svg{display:block;max-width:none}
.ss svg.ss-fit{width:100%;height:auto;max-width:44rem}
.ss svg text{fill:var(--ss-fg);font:11px system-ui,sans-serif}
.ss svg .ss-small{font-size:9px}
.ss svg .ss-frame{fill:none;stroke:var(--ss-line);stroke-width:1}
.ss svg .ss-grid{stroke:var(--ss-line);stroke-width:.5;opacity:.6}
.ss svg .ss-a{fill:var(--ss-accent)}.ss svg .ss-w{fill:var(--ss-weak)}.ss svg .ss-b{fill:var(--ss-second)}
.ss svg .ss-hollow{fill:none;stroke:var(--ss-second);stroke-width:1.2}
.ss svg .ss-la{fill:none;stroke:var(--ss-accent);stroke-width:2}
.ss svg .ss-lb{fill:none;stroke:var(--ss-second);stroke-width:2;stroke-dasharray:5 3}
.ss svg .ss-exit{stroke:var(--ss-second);stroke-width:2;stroke-dasharray:7 3}
.ss-text{font:14px/2.1 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;border:1px solid var(--ss-line);border-radius:4px;padding:.5rem .7rem}
.ss-t{padding:2px 0 5px;border-radius:2px;forced-color-adjust:none;
text-underline-offset:2px;text-decoration-thickness:2px}
.ss-f1{text-decoration-line:underline;text-decoration-style:solid}
.ss-f2{text-decoration-line:underline;text-decoration-style:wavy;text-decoration-thickness:1px}
.ss-f3{text-decoration-line:underline;text-decoration-style:double;text-decoration-thickness:1px}
.ss-f4{text-decoration-line:underline;text-decoration-style:dotted}
.ss-x{color:var(--ss-fg);outline:1px dashed var(--ss-line);outline-offset:-1px}
.ss ul.ss-key{display:flex;flex-wrap:wrap;gap:.25rem .9rem;list-style:none;padding:0;margin:.4rem 0;font-size:.87rem}
.ss ul.ss-key li{margin:0;list-style:none}
.ss-key .ss-t{padding:1px .4rem 5px}
.ss summary{cursor:pointer;margin-top:1rem}
.ss dl.ss-facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.5rem;
margin:.6rem 0;padding:0}
.ss-facts div{border:1px solid var(--ss-line);border-radius:4px;padding:.35rem .6rem}
.ss .ss-facts dt,.ss .ss-facts dd{float:none;display:block;width:auto;overflow:visible;padding:0;margin:0}
.ss-facts dt{font-weight:400;color:var(--ss-muted);font-size:.82rem}
.ss-facts dd{font-size:1.15rem;font-weight:600}
@media (forced-colors:active){.ss svg .ss-a,.ss svg .ss-w,.ss svg .ss-b{fill:CanvasText}
.ss svg text{fill:CanvasText}.ss svg .ss-la,.ss svg .ss-lb,.ss svg .ss-exit,.ss svg .ss-hollow{stroke:CanvasText}}
@media (prefers-reduced-motion:reduce){.ss *{transition:none!important;animation:none!important}}
@media (max-width:30rem){.ss{font-size:14px}.ss h1{font-size:1.25rem}.ss.ss tbody th{white-space:normal}
.ss svg.ss-fit{overflow:visible}.ss svg.ss-fit text{font-size:16px}}
"""


def _depth_rules() -> str:
    return "".join(
        f".ss-d{number}{{background:{colour};color:{readable_on(colour)}}}.ss svg .ss-d{number}{{fill:{colour}}}\n"
        for number, colour in enumerate(DEPTH_COLOURS)
    )


def _column_rules() -> str:
    """Columns of numbers, and columns whose text may take several lines, by their place in a table."""
    places = range(MAX_COLUMNS)
    numbers = ",".join(f".ss .ss-n{place} tr>:nth-child({place + 1})" for place in places)
    wrapped = ",".join(f".ss .ss-w{place} tr>:nth-child({place + 1})" for place in places)
    return (
        f"{numbers}{{text-align:end;font-variant-numeric:tabular-nums}}\n"
        f"{wrapped}{{white-space:normal;min-width:11rem}}\n@media (max-width:30rem){{{wrapped}{{min-width:8rem}}}}\n"
    )


def _themes() -> str:
    dark = "".join(f"{theme} .ss,{theme}.ss{{{_DARK}}}\n" for theme in _DARK_THEMES)
    return f".ss{{{_LIGHT}}}\n@media (prefers-color-scheme:dark){{.ss{{{_DARK}}}}}\n{dark}"


CSS = _themes() + _RULES + _depth_rules() + _column_rules()
"""Everything, for a ``<style>`` element; no rule reaches beyond elements of class ``ss``."""

STYLE = Markup("<style>{}</style>").format(Markup(CSS))
