"""The report of a language model says by how many windows it judged, and what would decide where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation.result import LanguageForm, LanguageReport
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.report.formats import Paper, render
from edgeopt.system.machine.environment import read_environment

RISE = Rise(0.001, -0.03, 0.032)
MOST = 0.02


def told(windows: int, left_windows: int, rise: Rise = RISE) -> str:
    """Return the report of a form that so many of all windows judged, as a terminal shows it."""
    speed = dict.fromkeys(("answer", "TTFT", "TPOT"), Ratio(2.0, 1.9, 2.1, Change.FASTER))
    times = dict.fromkeys(speed, 10.0)
    forms = (
        LanguageForm("fp32", "as given", "a", 4, 9.0, times_ms=times),
        LanguageForm("w8", "", "b", 1, 9.01, rise, times_ms=times, speed=speed, windows=windows, word=Word.NOT_DECIDED),
    )
    report = LanguageReport(
        model="lm",
        target="cpu",
        environment=read_environment(),
        threads=1,
        max_drop=MOST,
        candidates=forms,
        chosen="w8",
        folder=Path("out"),
        bundle=None,
        prompt_tokens=4000,
        output_tokens=8,
        text="text.txt",
        windows=windows,
        window_tokens=4008,
        left_windows=left_windows,
    )
    return " ".join(render(summarize_language(report), "terminal", Paper(80)).split())


@pytest.mark.parametrize(("left_windows", "way"), [(6, True), (1, False)])
def test_windows_that_a_time_limit_left_out_would_decide_where_they_are_enough(left_windows, way):
    needed = RISE.windows_to_decide(2, MOST)
    assert needed == 6
    shown = told(2, left_windows)
    assert "judged by 2 windows of 4008 tokens of text.txt" in shown
    assert (f"give --time-limit more: {needed} of the {2 + left_windows} windows may do" in shown) is way
    assert ("a text of about 6 windows of 4008 tokens in --eval" in shown) is not way
