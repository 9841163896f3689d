"""The parts of a document that all reports of `optimize` share: its frame, its table of candidates, their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.report.result import FramesReport, Report, Reported
from edgeopt.report.document import Document, JudgedCase, KeyFigure, Section, Table, VerdictLines, make_table
from edgeopt.report.formats import write_pages
from edgeopt.system.text import format_bytes, format_drop, format_score

C = TypeVar("C", bound=Reported)
Columns = dict[str, Callable[[C], str]]
_LESS_TIMES = ("load", "upload", "download", "p99 ms", "postprocess", "preprocess", "p50 ms")


def make_document(
    report: Report[Any],
    sections: Iterable[Section],
    verdict: VerdictLines,
    *,
    title: str = "",
    key_figures: tuple[KeyFigure, ...] = (),
    judgements: tuple[JudgedCase, ...] = (),
) -> Document:
    """Return what a reader sees of a report.

    Args:
        report: The report.
        sections: The kind's own tables and charts; those that are empty are left out.
        verdict: The words for a reader of nothing else.
        title: The heading; empty: what on which target.
        key_figures: The few figures that a manager asks for.
        judgements: What was judged.
    """
    return Document(
        report,
        subject=report.model,
        title=title or f"{report.model} on {report.target}",
        sections=tuple(
            each for each in sections if each.table or each.values or each.notes or each.text or each.figures
        ),
        verdict=verdict,
        key_figures=key_figures,
        judgements=judgements,
        seconds=report.seconds,
    )


def write_document(report: Report[Any], document: Document) -> None:
    """Write `report.json`, `report.md` and what other formats have a file, into the output folder.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    write_pages(document, report.folder, "report")


def make_candidates_table(
    report: Report[C],
    columns: Columns[C],
    *,
    rows: Sequence[C] | None = None,
    words: Sequence[str] = (),
    less: Sequence[str] = (),
) -> Table:
    """Return a row for each candidate; the chosen one stands out.

    Args:
        report: The report.
        columns: Head to cell; the first names the row.
        rows: The candidates; None: all.
        words: See `Table.words`.
        less: See `Table.less`.
    """
    rows = report.candidates if rows is None else rows
    chosen = [candidate.name for candidate in rows].index(report.chosen)
    return make_table(rows, columns, words=words, less=less, chosen=chosen)


def frame_columns(report: FramesReport, device: str = "on device") -> Columns[Candidate]:
    """Return the columns of candidates that are timed by whole frames, without the name.

    Args:
        report: The report.
        device: Words for a metric with the numbers of the device itself.
    """
    return {
        "speed": lambda candidate: _speed(candidate, is_timed=not report.untimed),
        "predicted": lambda candidate: str(candidate.predicted.speed) if candidate.predicted else "",
        "ms there": lambda candidate: str(candidate.predicted.time) if candidate.predicted else "",
        "proof": lambda candidate: str(candidate.speed.verdict) if candidate.speed else "",
        report.metric: _score,
        f"{report.metric} {device}": lambda candidate: (
            format_score(candidate.simulated.value) if candidate.simulated else ""
        ),
        "drop": lambda candidate: (
            "" if candidate.drop is None or candidate.name == BASELINE else format_drop(candidate.drop)
        ),
        "at most": lambda candidate: format_drop(candidate.drop_most),
        "accuracy": lambda candidate: candidate.word,
        "p50 ms": lambda candidate: ms_or_none(candidate.latency.frame.p50_ms) if candidate.latency else "",
        "p99 ms": lambda candidate: ms_or_none(candidate.latency.frame.p99_ms) if candidate.latency else "",
        f"{report.budget_ms:.1f} ms": report.budget_word,
        "size": size_of,
    }


def make_frames_table(report: FramesReport, columns: Columns[Candidate]) -> Table:
    """Return a row for each candidate that is timed by whole frames."""
    budget = f"{report.budget_ms:.1f} ms"
    less = ["", "at most", budget, report.metric, "channels", "size", "wire", *_LESS_TIMES, "drop"]
    return make_candidates_table(report, columns, words=["", "proof", "accuracy"], less=less)


def size_of(candidate: Reported) -> str:
    """Return the size of a candidate's model."""
    return format_bytes(candidate.size_bytes)


def ms_or_none(value: float | None) -> str:
    """Return a time, or that there are too few frames to say."""
    return "n/a" if value is None else f"{value:.2f}"


def _score(candidate: Candidate) -> str:
    if candidate.score:
        return format_score(candidate.score.value)
    return "n/a" if candidate.agreement is None else f"agree {candidate.agreement:.3f}"


def _speed(candidate: Candidate, *, is_timed: bool) -> str:
    if candidate.predicted:
        return str(candidate.speed) if candidate.speed else ""
    if candidate.name == BASELINE and is_timed:
        return "1.00x"
    return str(candidate.speed) if candidate.speed else "not measured"
