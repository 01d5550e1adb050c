from __future__ import annotations

import re

from tests.support.calibrations import calibration
from tests.support.html_checks import assert_harmless, parsed, shown_text
from tests.support.traces import HOSTILE, made_up_trace

from selfspec.views.calibration_html import calibration_html
from selfspec.views.exit_depth_html import exit_depth_html
from selfspec.views.palette import contrast
from selfspec.views.portable import portable


def test_nothing_depends_on_a_style_sheet_or_on_inline_pictures() -> None:
    html = portable(exit_depth_html(made_up_trace(HOSTILE)))
    assert_harmless(html)
    assert "<svg" not in html
    tokens = [a for tag, a in parsed(html).seen if tag == "bdi" and "ss-d" in (a.get("class") or "")]
    assert tokens
    for attributes in tokens:
        colours = re.fullmatch(r"background-color:(#\w{6});color:(#\w{6})", attributes["style"] or "")
        assert colours is not None
        assert contrast(colours[1], colours[2]) >= 4.5


def test_the_words_stay_the_same() -> None:
    trace = made_up_trace()
    before, after = exit_depth_html(trace), portable(exit_depth_html(trace))
    without_pictures = re.sub(r"<svg .*?</svg>", "", before, flags=re.DOTALL)
    assert shown_text(str(after)) == shown_text(without_pictures)


def test_pictures_keep_their_descriptions() -> None:
    html = calibration_html(calibration())
    labels = re.findall(r'<svg [^>]*aria-label="([^"]*)"', html)
    assert labels
    assert re.findall(r'<img alt="([^"]*)"', portable(html)) == labels
