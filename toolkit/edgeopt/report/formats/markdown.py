"""Markdown: a page beside the result, or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgeopt.report.document import Document, Section, Table, Value, VerdictLines
from edgeopt.report.formats import Format, Paper

_MARKS = {"<": "&lt;", "|": "\\|", "](": "]\\(", "][": "]\\[", "]:": "]\\:"}


def escape(text: str) -> str:
    """Return Markdown that shows the text: no HTML, no link, no end of a table's cell."""
    for mark, shown in _MARKS.items():
        text = text.replace(mark, shown)
    return text


def _render(document: Document, _: Paper) -> str:
    blocks = [f"# {escape(document.title)}", *(_verdict(document.verdict) if document.verdict else ())]
    for section in document.sections:
        parts = [*_section(section)]  # nothing where there are charts only
        blocks += [f"## {escape(section.title)}", *parts] if section.title and parts else parts
    return "\n\n".join(blocks) + "\n"


def _verdict(verdict: VerdictLines) -> Iterator[str]:
    yield f"**{verdict.outcome}**: {escape(verdict.sentence)}"
    yield from _list(verdict.facts)
    where = (Value("bundle", verdict.bundle), Value("next", verdict.next_command))
    yield from _list(value for value in where if value.text)


def _section(section: Section) -> Iterator[str]:
    if section.table and section.table.rows:
        yield "\n".join(_table(section.table))
    if section.text:
        yield escape(section.text)
    yield from _list(section.values)
    for figure in section.figures:
        if figure.file:
            yield f"![{escape(figure.title)}]({escape(figure.file)})"
    yield from _list(map(Value.of_note, section.notes))


def _table(table: Table) -> Iterator[str]:
    for cells in (table.heads, ("---",) * len(table.heads), *table.rows):
        yield f"| {' | '.join(map(escape, cells))} |"


def _list(values: Iterable[Value]) -> Iterator[str]:
    if lines := [f"- {escape(value.label)}: {escape(value.whole)}" for value in values]:
        yield "\n".join(lines)


FORMAT = Format(_render, suffix=".md")
