"""The result of `check` as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.check.result import CheckReport, CheckResult
from edgeopt.report.document import Document, Judgement, Section, Table, Value, make_table


def summarize(report: CheckReport) -> Document:
    """Return what a reader sees: one line a check, the machine and the verdict."""
    baseline = f"{report.baseline}{' written' if report.updated else ''}"
    return Document(
        command="check",
        subject=report.name,
        title=f"edgeopt check {report.name}: {report.verdict}",
        data=report.as_json(),
        sections=(
            Section(table=_table(report)),
            Section(values=(Value("machine", report.trust),), notes=report.notes),
        ),
        summary=(Value("baseline", baseline), Value("verdict", report.shown_verdict)),
        judgements=tuple(Judgement(one.name, one.verdict, one.detail, one.is_blocked) for one in report.results),
        seconds=report.seconds,
    )


def _table(report: CheckReport) -> Table:
    columns: dict[str, Callable[[CheckResult], str]] = {
        "check": lambda one: one.name,
        "verdict": lambda one: str(one.verdict),
        "measured": lambda one: _value(one.measured, one.unit),
        "allowed": lambda one: _value(one.allowed, one.unit),
        "detail": lambda one: one.detail,
    }
    return make_table(report.results, columns, words=["verdict", "detail"])


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "n/a"
    if unit == "x":
        return f"{value:.3f}x"
    return f"{value:.0f} {unit}" if unit == "nodes" else f"{value:+.4f} {unit}".strip()
