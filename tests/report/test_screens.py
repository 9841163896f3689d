"""Screens at three widths are as they were; `python tests/update_screens.py` writes them anew."""

from __future__ import annotations

import sys

import pytest
from screens import DOCUMENTS, FOLDER, UPDATE, WIDTHS, kept_original, screens

from edgeopt.report.formats import Paper, render
from edgeopt.system.text import columns


@pytest.fixture(scope="module")
def shown():
    return screens()


@pytest.mark.skipif(sys.platform == "win32", reason="paths are written otherwise")
def test_every_screen_is_as_it_was(shown):
    stored = {one.name: one.read_text("utf-8") for one in FOLDER.iterdir()}
    assert stored.keys() == shown.keys(), UPDATE
    for name, text in shown.items():
        assert text == stored[name], f"{name} changed; if that is wanted: {UPDATE}"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_but_commands(shown, width):
    for name in DOCUMENTS:
        for line in shown[f"{name}.{width}.txt"].splitlines():
            assert columns(line) <= width or "edgeopt " in line, (name, line)


def test_a_wider_terminal_shows_every_figure_of_a_narrower_one(shown):
    for name in DOCUMENTS:
        narrow, *wider = ({*shown[f"{name}.{width}.txt"].split()} for width in WIDTHS)
        for words in wider:
            lost = {word for word in narrow - words if word[0].isdigit()}
            assert not lost, (name, lost)


@pytest.mark.parametrize("name", ["optimize", "optimize-stays", "bench", "compare", "check", "quantize"])
def test_the_verdict_is_the_last_block(shown, name):
    verdict = DOCUMENTS[name]().verdict
    last = shown[f"{name}.80.txt"].split("\n\n")[-1]
    assert last.startswith(f"{verdict.outcome} ")
    assert last.rstrip().endswith(verdict.next_command)


def test_no_fail_stands_beside_a_noisy_machine():
    document = kept_original()
    text = render(document, "markdown", Paper(0))
    assert "NOISY" in text
    assert "FAIL" not in text
    assert "33.3 ms" in text, "the column of the budget is there"
