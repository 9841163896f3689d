"""Every format writes every document: hostile names do nothing, lines keep the terminal's width, verdicts are told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgeopt.errors import EXIT_MISSED, EXIT_NOISY, EXIT_PASS, Note, NoteKind, NotFoundError
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    KeyFigure,
    Section,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.report.figures import Axis, Bar, Bars, ChartPoint, Estimate, Picture, Points
from edgeopt.report.formats import Paper, find, names, render, write_pages
from edgeopt.report.result import HEAD, PlainResult
from edgeopt.system.text import printable

EVIL = "\x1b[31m[/d]<script>\u202e|x](y)"
NOTHING = PlainResult(command="c")
COMMAND = f"edgeopt {'word ' * 30}end"


def document(
    name: str = "model", *, judgements: tuple[JudgedCase, ...] = (), data: Mapping[str, object] | None = None
) -> Document:
    columns = {
        "name": lambda one: name,
        "verdict": lambda one: "PASS",
        **{f"figure {i}": lambda one: "1234.567" for i in range(9)},
        "empty": lambda one: "",
        "why": lambda one: f"{name} and then many words " * 4,
    }
    section = Section(
        title=f"About {name}",
        table=make_table(range(3), columns, words=["verdict", "why"], chosen=1),
        text=f"how to read {name} " * 8,
        values=(Value("why", f"because of {name} " * 9), Value("first", COMMAND, is_command=True)),
        figures=(
            Picture(title=name, text=name, file="a.png"),
            Bars(
                title=name, text=name, axis=Axis(name, name), parts=(name,), bars=(Bar(name, (1.0,), ((name, name),)),)
            ),
            Points(
                title=name,
                text=name,
                x=Axis(name, name),
                y=Axis(name),
                points=(ChartPoint(name, Estimate(1.0), Estimate(2.0), ((name, name),)),),
            ),
        ),
        notes=(Note(NoteKind.WARNING, f"beware of {name}", "mend it"),),
    )
    detail = Section("For a page", text="many words", is_detail=True)
    return Document(
        PlainResult(command="check", figures=data or {}),
        subject=name,
        title=f"Check of {name}",
        sections=(section, detail),
        verdict=VerdictLines(CommandOutcome.FAIL, f"{name} is slow", (Value("budget", name),), f"out/{name}", COMMAND),
        key_figures=(KeyFigure(name, name, name),),
        judgements=judgements,
        seconds=1.5,
    )


@pytest.mark.parametrize("form", names())
def test_a_name_from_a_file_drives_nothing(form):
    text = render(document(EVIL, judgements=(JudgedCase(EVIL, "FAIL", EVIL),)), form)
    assert not [one for one in text if printable(one) != one and one != "\n"], text
    assert "<script>\u202e" not in text
    assert "<script>\\u202e" not in text or form in ("terminal", "json")
    assert text.endswith("\n")


def test_lines_keep_the_width_of_a_terminal_and_commands_are_whole():
    lines = render(document(), "terminal", Paper(80)).splitlines()
    assert any(COMMAND in line for line in lines)
    assert all(len(line) <= 80 for line in lines if "edgeopt" not in line)


@pytest.mark.parametrize(("width", "figures"), [(60, 1), (80, 3), (100, 5), (140, 9)])
def test_a_table_leaves_columns_out_and_never_a_digit(width, figures):
    lines = render(document(), "terminal", Paper(width)).splitlines()
    (heads,) = [line for line in lines if line.startswith("  name")]
    assert heads.count("figure") == figures
    rows = [line for line in lines if line.lstrip("* ").startswith("model  ")]
    assert [row.count(" 1234.567 ") for row in rows] == [figures] * 3
    assert rows[1].startswith("* model"), "the chosen row is marked without colours too"
    assert all(len(line) <= width for line in lines if "edgeopt" not in line)


def test_the_least_important_columns_go_first_and_narrow_ones_come_back():
    columns = {name: lambda one, name=name: name * 12 for name in "abcd"} | {"e": lambda one: "e" * 8}
    table = make_table([0], columns, less=["e", "c", "b", "d"])
    shown = {width: _heads(table, width) for width in (80, 60, 50, 38, 5)}
    assert shown[80] == list("abcde")
    assert shown[60] == list("abcd")
    assert shown[50] == list("abde"), "without c there is room for e again"
    assert shown[38] == list("ade")
    assert shown[5] == list("ad"), "a name and one figure are always there"


@pytest.mark.parametrize("width", [24, 40, 80])
def test_columns_of_a_whole_table_that_have_no_room_follow_below(width):
    columns = {name: lambda one, name=name: f"{one}{name * 12}" for name in "abcd"}
    table = make_table([0, 1], columns, less=["b"], is_whole=True)
    text = render(Document(NOTHING, "s", "t", (Section(table=table),)), "terminal", Paper(width))
    assert all(len(line) <= max(width, 28) for line in text.splitlines())
    for one in (0, 1):
        rows = [line.split() for line in text.splitlines() if line.startswith(f"{one}a")]
        assert sorted({cell for row in rows for cell in row}) == [f"{one}{name * 12}" for name in "abcd"]
        assert len(rows) == {24: 3, 40: 3, 80: 1}[width]


def _heads(table, width: int) -> list[str]:
    return render(Document(NOTHING, "s", "t", (Section(table=table),)), "terminal", Paper(width)).split("\n")[0].split()


def test_one_clause_on_a_terminal_and_the_rest_on_a_page():
    note = Note(NoteKind.WARNING, "out of time", "give more", more="untried: a; b")
    shown = Document(NOTHING, "s", "t", (Section(values=(Value("p50", "1 ms", more="9 frames"),), notes=(note,)),))
    assert render(shown, "terminal") == "p50        1 ms\nwarning    out of time (give more)\n"
    assert "- p50: 1 ms; 9 frames\n\n- warning: out of time (give more); untried: a; b\n" in render(shown, "markdown")


def test_the_verdict_stands_out_and_its_facts_are_under_one_another():
    verdict = VerdictLines(
        CommandOutcome.NOT_DECIDED, "word " * 20, (Value("budget", "33 ms"),), "out/b", "edgeopt bench out/b"
    )
    shown = Document(NOTHING, "s", "t", verdict=verdict)
    assert render(shown, "terminal", Paper(80)).splitlines() == [
        "NOT DECIDED " + ("word " * 13).strip(),
        "            " + ("word " * 7).strip(),
        "budget      33 ms",
        "bundle      out/b",
        "next        edgeopt bench out/b",
    ]
    assert render(shown, "terminal", Paper(80, is_coloured=True)).startswith("\x1b[1;30;43mNOT DECIDED\x1b[0m")


def test_a_pipe_gets_whole_lines():
    text = render(document(), "terminal")
    assert ("because of model " * 9).strip() in text
    assert len([line for line in text.splitlines() if line.startswith("  name ")]) == 1
    assert "\x1b" not in text


def test_a_terminal_is_told_the_verdict_last_and_a_page_first():
    last = render(document(), "terminal").splitlines()[-4:]
    assert [one.split()[0] for one in last] == ["FAIL", "budget", "bundle", "next"]
    assert render(document(), "markdown").splitlines()[2] == "**FAIL**: model is slow"
    assert "For a page" in render(document(), "markdown")
    assert "For a page" not in render(document(), "terminal")


def test_colours_are_for_terminals_that_want_them():
    text = render(document(), "terminal", Paper(80, is_coloured=True))
    assert "\x1b[1;30;41mFAIL\x1b[0m" in text
    assert "\x1b[32mPASS\x1b[0m" in text
    assert text.count("\x1b[") == 2 * text.count("\x1b[0m")


def test_wide_characters_take_two_columns():
    table = make_table(["数字", "ab"], {"name": str, "n": lambda one: "1"})
    lines = render(Document(NOTHING, "s", "t", (Section(table=table),)), "terminal").splitlines()
    assert lines == ["name  n", "数字  1", "ab    1"]


def test_a_column_that_says_nothing_is_left_out():
    assert "empty" not in render(document(), "markdown")


def test_json_is_the_data_and_knows_no_nan(tmp_path: Path):
    text = render(document(data={"a": (1, float("nan")), "b": [float("inf"), "x"]}), "json")
    values = json.loads(text, parse_constant=pytest.fail)
    assert [*values][: len(HEAD)] == [*HEAD]
    assert {name: values[name] for name in "ab"} == {"a": [1, None], "b": [None, "x"]}


@pytest.mark.parametrize(
    ("code", "verdict", "is_noise"),
    [(EXIT_PASS, "PASS", False), (EXIT_MISSED, "FAIL", False), (EXIT_NOISY, "INCONCLUSIVE", True)],
)
def test_a_budget_is_a_test_case_too(code, verdict, is_noise):
    judged = JudgedCase.by_exit("budget", code, "seen")
    assert (judged.verdict, judged.is_noise) == (verdict, is_noise)
    (case,) = ElementTree.fromstring(render(document(judgements=(judged,)), "junit"))[0]
    assert case.get("classname") == "edgeopt.check"
    assert [child.get("type") for child in case if child.tag == "error"] == ["noise"] * is_noise


def test_pages_lie_beside_a_result(tmp_path: Path):
    write_pages(document(), tmp_path, "check")
    assert {one.name for one in tmp_path.iterdir()} == {f"check{find(name).suffix}" for name in names()} - {"check"}


def test_an_unknown_format_is_named_with_the_known_ones():
    with pytest.raises(NotFoundError, match="no format named 'yaml'"):
        find("yaml")


def test_a_long_name_keeps_its_ends_where_it_has_no_room_and_is_whole_elsewhere():
    name = f"/block{'/layer' * 9}/Conv"
    section = Section(table=make_table([name], {"node": str, "n": lambda one: "1"}))
    shown = Document(NOTHING, "s", "t", (section,))
    row = render(shown, "terminal", Paper(40)).splitlines()[1]
    assert row.startswith("/block/layer")
    assert row.endswith("/layer/Conv  1")
    assert len(row) == 40
    assert [
        name in render(shown, form, paper) for form in ("terminal", "markdown") for paper in (Paper(), Paper(80))
    ] == [True] * 4


def test_a_column_that_says_n_a_of_every_row_is_left_out():
    columns = {"name": str, "p50": lambda one: f"{one}.0", "p99": lambda _: "n/a", "some": lambda one: one or "n/a"}
    assert make_table([0, "3"], columns).heads == ("name", "p50", "some")
