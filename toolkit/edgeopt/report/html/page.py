"""A document as one page: verdict, key figures, sections with tables and charts, the data itself."""

from __future__ import annotations

import base64
import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from edgeopt import __version__
from edgeopt.report.document import Document, KeyFigure, Section, Table, Value
from edgeopt.report.figures import Bars, BeforeAfter, Cells, Emphasis, Figure, Intervals, Lines, Points
from edgeopt.report.html.bars import draw_bars, draw_intervals
from edgeopt.report.html.chart import group, key_of, scrolled, tip_of, wrap
from edgeopt.report.html.lines import draw_lines
from edgeopt.report.html.markup import Markup, join, raw, tag
from edgeopt.report.html.points import draw_points

_KINDS = {".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml"}
_MOST_BYTES = 1 << 20
"""Most bytes of one picture: a page is mailed."""


def draw_picture(figure: Figure, folder: Path | None) -> Markup | None:
    """Return the picture in a figure's file; None where it is not to be had."""
    source = _data(figure.file, folder)
    if source is None:
        return None
    return wrap(figure, tag("img", src=source, alt=figure.text or figure.title, class_="picture"))


def draw_before_after(figure: BeforeAfter, folder: Path | None) -> Markup | None:
    """Return the pictures that are there, each under a slider; None without any."""
    slides = []
    for pair in figure.pairs:
        before, after = _data(pair.before, folder), _data(pair.after, folder)
        if before is not None and after is not None:
            slides.append(_slide(figure, pair.name, before, after))
    return wrap(figure, tag("div", *slides, class_="slides")) if slides else None


def _slide(figure: BeforeAfter, name: str, before: str, after: str) -> Markup:
    return tag(
        "div",
        tag("img", src=before, alt=f"{name}, {figure.before}", class_="before"),
        tag("img", src=after, alt=f"{name}, {figure.after}", class_="after"),
        tag("span", figure.before, class_="which left"),
        tag("span", figure.after, class_="which right"),
        tag(
            "input",
            type="range",
            min="0",
            max="100",
            value="50",
            aria_label=f"{name}: {figure.before} to {figure.after}",
        ),
        class_="slide",
    )


def _data(file: str, folder: Path | None) -> str | None:
    """Return the address of a file's content; None where it is none of ours, absent or too large."""
    if folder is None or not file or (kind := _KINDS.get(Path(file).suffix)) is None:
        return None
    try:
        data = (folder / file).read_bytes()
    except OSError:
        return None
    return f"data:{kind};base64,{b64encode(data).decode('ascii')}" if len(data) <= _MOST_BYTES else None


def draw_cells(figure: Cells) -> Markup:
    """Return one square a thing, in order; squares flow like words."""
    squares = [
        tag(
            "span",
            class_=f"mark cell {'refused' if cell.is_refused else Emphasis.PLAIN}",
            tabindex="-1",
            role="img",
            aria_label="; ".join((cell.name, cell.kind, *(f"{label} {text}" for label, text in cell.facts))),
            data_name=cell.name,
            data_tip=tip_of(cell.facts),
        )
        for cell in figure.cells
    ]
    kinds = {cell.kind: "refused" if cell.is_refused else "taken" for cell in figure.cells}
    field = tag("div", *squares, class_="field plot", role="group", aria_label=figure.text)
    marks = [(cell.name, cell.facts) for cell in figure.cells if cell.is_refused]
    return wrap(figure, field, marks=marks, key=key_of([(f"cell {style}", kind) for kind, style in kinds.items()]))


_HERE = Path(__file__).parent
_OUTCOME = re.compile(r"\b(PASS|FAIL|INCONCLUSIVE|NOISY|INVALID|FASTER|SLOWER|EQUIVALENT|UNCONFIRMED|SKIPPED)\b")
"""Outcomes in cells and values; the outcome of the whole is marked in another way."""
_LONG = 90
"""Letters of a sentence from which it is set smaller."""
_TONES = {
    "PASS": "good",
    "FASTER": "good",
    "FAIL": "bad",
    "SLOWER": "bad",
    "INVALID": "bad",
    "DONE": "plain",
    "EQUIVALENT": "plain",
}


def make_page(document: Document, data: str, folder: Path | None) -> str:
    """Return the page as HTML that loads nothing and runs no script but its own.

    Args:
        document: What it shows.
        data: The document's data as JSON, which the page holds for who wants it.
        folder: In which pictures lie; None: without pictures.
    """
    sections = [markup for markup in (_section(part, folder) for part in document.sections) if markup]
    main = tag("main", _head(document), *sections, _foot(document), id="main")
    page = join([tag("a", "To the result", href="#main", class_="skip"), main, tag("div", id="tip", hidden=True)])
    # in a script element nothing but its end is special
    held = tag("script", raw(data.replace("<", "\\u003c")), type="application/json", id="data")
    html = tag("html", _about(document), tag("body", page, held, tag("script", raw(_file("page.js")))), lang="en")
    return f"<!doctype html>\n{html}\n"


@cache
def _file(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _about(document: Document) -> Markup:
    digest = base64.b64encode(hashlib.sha256(_file("page.js").encode()).digest()).decode("ascii")
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=rules),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{document.title} · edgeopt {document.command}"),
        tag("style", raw(_file("page.css"))),
    )


def _head(document: Document) -> Markup:
    verdict = document.verdict
    brand = tag("span", "edgeopt", class_="brand")
    if verdict is None:
        return tag("header", tag("p", brand, f" {document.command}", class_="kicker"), tag("h1", document.title))
    title = document.title.removeprefix(f"edgeopt {document.command} ").removesuffix(f": {verdict.outcome}")
    outcome = tag("b", verdict.outcome, class_=f"outcome pill {_TONES.get(verdict.outcome, 'open')}")
    command = Value("next", verdict.next_command, is_command=True)
    where = Value("bundle", verdict.bundle)
    return tag(
        "header",
        tag("p", brand, f" {document.command} · {title}", class_="kicker"),
        tag("p", outcome, class_="state"),
        tag("h1", verdict.sentence, class_="long" if len(verdict.sentence) > _LONG else None),
        _key_figures(document.key_figures),
        _values([*verdict.facts, *(value for value in (where, command) if value.text)]),
    )


def _key_figures(figures: tuple[KeyFigure, ...]) -> Markup | None:
    if not figures:
        return None
    shown = [
        tag(
            "div",
            tag("dt", figure.label),
            tag("dd", figure.text, class_="large"),
            tag("dd", figure.detail, class_="detail"),
        )
        for figure in figures
    ]
    return tag("dl", *shown, class_="key-figures")


def _section(section: Section, folder: Path | None) -> Markup | None:
    figures = [drawn for figure in section.figures if (drawn := draw(figure, folder))]
    table = _table(section.table, section.title) if section.table and section.table.rows else None
    notes = [Value.of_note(note) for note in section.notes]
    if not (figures or table or section.text or section.values or notes):
        return None
    text = tag("p", section.text, class_="reading") if section.text else None
    charts = tag("div", *figures, class_="figures") if figures else None
    inside = [charts, table, text, _values(section.values), _values(notes)]
    if section.is_folded and section.title:
        return tag("section", tag("details", tag("summary", tag("h2", section.title)), *inside))
    if section.title:
        return tag("section", tag("h2", section.title), *inside)
    heading = tag("h2", "Overview", class_="unseen") if figures else None  # who hears the page finds charts below one
    return tag("section", heading, *inside)


def draw(figure: Figure, folder: Path | None) -> Markup | None:
    """Return a figure as HTML; None where there is nothing to be seen of it."""
    match figure:
        case Points() if figure.points:
            return draw_points(figure)
        case Lines() if figure.lines:
            return draw_lines(figure)
        case Bars() if figure.bars:
            return draw_bars(figure)
        case Intervals() if figure.rows:
            return draw_intervals(figure)
        case Cells() if figure.cells:
            return draw_cells(figure)
        case BeforeAfter():
            return draw_before_after(figure, folder) or draw_picture(figure, folder)
    return draw_picture(figure, folder)


def _table(table: Table, title: str) -> Markup:
    table = _measured(table)
    head = tag(
        "tr", *(tag("th", other, scope="col", class_=_kind(table, other, i)) for i, other in enumerate(table.heads))
    )
    rows = [
        tag(
            "tr",
            *(_cell(table, cell, i) for i, cell in enumerate(cells)),
            class_="chosen" if n == table.chosen else None,
        )
        for n, cells in enumerate(table.rows)
    ]
    whole = tag("table", tag("thead", head), tag("tbody", *rows))
    return group(*scrolled(whole, title or "Figures"))


def _measured(table: Table) -> Table:
    """Return the table without columns of figures that nothing told: no sensor, too few frames."""
    columns = [column for column in zip(table.heads, *table.rows, strict=True) if not {*column[1:]} <= {"n/a"}]
    heads, *rows = zip(*columns, strict=True)
    return replace(table, heads=heads, rows=tuple(rows))


def _cell(table: Table, text: str, column: int) -> Markup:
    if column == 0:
        return tag("th", text, scope="row")
    return tag("td", _highlighted(text), class_=_kind(table, table.heads[column], column))


def _kind(table: Table, head: str, column: int) -> str | None:
    return "words" if column == 0 or head in table.words else None


def _values(values: Iterable[Value]) -> Markup | None:
    shown = [part for value in values for part in (tag("dt", value.label), _told(value))]
    return tag("dl", *shown, class_="values") if shown else None


def _told(value: Value) -> Markup:
    if not value.is_command:
        return tag("dd", _highlighted(value.whole))
    copy = tag("button", "Copy", type="button", class_="copy", hidden=True)
    return tag("dd", tag("code", value.text), copy, class_="command")


def _highlighted(text: str) -> Markup:
    """Return text with the words of verdicts set apart."""
    parts: list[str] = []
    for i, part in enumerate(_OUTCOME.split(text)):
        parts.append(tag("b", part, class_=f"outcome {_TONES.get(part, 'open')}") if i % 2 else part)
    return join(parts)


def _foot(document: Document) -> Markup:
    name = f"{document.command}.json"
    button = tag("button", f"Download {name}", type="button", id="download", data_file=name, hidden=True)
    text = f"Made by edgeopt {__version__}. This page holds all its data and loads nothing."
    return tag("footer", tag("p", text), button)
