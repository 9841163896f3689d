"""The result of `check` as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.check.result import CheckReport, CheckResult, CheckVerdict
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    Section,
    Table,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.report.figures import Axis, Emphasis, Estimate, Figure, Intervals, Row

_EMPHASES = {CheckVerdict.FAIL: Emphasis.CHOSEN, CheckVerdict.PASS: Emphasis.PLAIN}


def ratio_charts(report: CheckReport) -> tuple[Figure, ...]:
    """Return the checks that are ratios to the baseline, and how much is allowed of each."""
    rows = tuple(
        Row(
            result.name,
            Estimate(result.measured, result.low, result.high),
            ((result.verdict, f"{result.measured:.3f} of the baseline's"), ("allowed", f"{result.allowed:.3f}")),
            result.allowed,
            _EMPHASES.get(result.verdict, Emphasis.FAINT),
        )
        for result in report.results
        if result.unit == "x" and result.measured is not None and result.allowed is not None
    )
    if not rows:
        return ()
    return (
        Intervals(
            title="Against the baseline",
            text="With 95 % intervals; the red mark is what is allowed, left of it passes.",
            axis=Axis("ratio", "times the baseline's"),
            rows=rows,
        ),
    )


def summarize(report: CheckReport) -> Document:
    """Return what a reader sees: one line a check, the machine and the verdict."""
    return Document(
        report,
        subject=report.name,
        title=f"edgeopt check {report.name}: {report.verdict}",
        sections=(
            Section(table=_table(report), figures=ratio_charts(report)),
            Section(values=tuple(_detail(result) for result in report.results if _is_worth_a_line(result))),
            Section(notes=report.notes),
            Section("Details", values=tuple(map(_detail, report.results)), is_detail=True),
        ),
        verdict=_verdict(report),
        judgements=tuple(
            JudgedCase(result.name, result.verdict, result.detail, result.is_blocked) for result in report.results
        ),
        seconds=report.seconds,
    )


def _detail(check: CheckResult) -> Value:
    return Value(check.name, check.detail)


def _is_worth_a_line(check: CheckResult) -> bool:
    """Whether a reader asks why; that the machine was too noisy is told once, in the verdict."""
    return check.verdict in (CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE) and not check.is_blocked


_SAID = {
    CheckVerdict.FAIL: "worse than the baseline",
    CheckVerdict.INCONCLUSIVE: "not decided",
    CheckVerdict.PASS: "as good as the baseline",
}


def _verdict(report: CheckReport) -> VerdictLines:
    """Return what fails first, then what is not decided, then what passes."""
    level, _, reasons = report.trust.partition("; ")
    facts = [Value("baseline", f"{report.baseline}{' written' if report.updated else ''}")]
    facts.append(Value("machine", level, more=reasons))
    if left := _names(report, CheckVerdict.SKIPPED):
        facts.append(Value("not checked", ", ".join(left)))
    if report.updated:
        return VerdictLines(CommandOutcome.DONE, f"{report.name}: the baseline is written", tuple(facts))
    found = {text: _names(report, word) for word, text in _SAID.items()}
    clauses = [f"{', '.join(names)} {text}" for text, names in found.items() if names]
    sentence = f"{report.name}: {'; '.join(clauses) or 'nothing was checked'}"
    return VerdictLines(CommandOutcome.by_exit(report.exit_code), sentence, tuple(facts))


def _names(report: CheckReport, verdict: CheckVerdict) -> list[str]:
    return [result.name for result in report.results if result.verdict is verdict]


def _table(report: CheckReport) -> Table:
    columns: dict[str, Callable[[CheckResult], str]] = {
        "check": lambda check: check.name,
        "verdict": lambda check: str(check.verdict),
        "measured": lambda check: _value(check.measured, check.unit),
        "allowed": lambda check: _value(check.allowed, check.unit),
    }
    return make_table(report.results, columns, words=["verdict"])


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "n/a"
    if unit == "x":
        return f"{value:.3f}x"
    if unit == "ms":
        return f"{value:.3g} ms"
    return f"{value:.0f} {unit}" if unit == "nodes" else f"{value:+.4f} {unit}".strip()
