"""What a regression gate found: one verdict a check, an exit code, JUnit XML and Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_NOISY, EXIT_PASS, Note
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.recipes.recipe import Check
from edgeopt.report.page import render

SCHEMA = 1
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold; file names may."""


class CheckVerdict(StrEnum):
    """What one check proves."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check."""

    name: str
    verdict: CheckVerdict
    measured: float | None = None
    """In `unit`; None: nothing was measured."""
    allowed: float | None = None
    """In `unit`: more is a failure."""
    detail: str = ""
    unit: str = "x"
    """`x` is a ratio to the baseline; else the metric's name, or `nodes`."""
    is_blocked: bool = False
    """Whether only the noise of the machine keeps it from a verdict."""

    def __str__(self) -> str:
        return f"{self.verdict} {self.name}: {self.detail}"


@dataclass(frozen=True)
class CheckReport:
    """All checks of one run."""

    name: str
    baseline: str
    results: tuple[CheckResult, ...]
    thresholds: Check
    trust: str
    """TRUSTED, or NOISY or INVALID with the reasons."""
    notes: tuple[Note, ...]
    seconds: float
    """How long it all took."""
    updated: bool = False
    """Whether the baseline was written from this run; nothing was checked then."""

    @property
    def verdict(self) -> str:
        """`FAIL`, `NOISY`, `INCONCLUSIVE`, `PASS`, or `UPDATED`."""
        verdicts = {one.verdict for one in self.results}
        if self.updated:
            return "UPDATED"
        if CheckVerdict.FAIL in verdicts:
            return "FAIL"
        if any(one.is_blocked for one in self.results):
            return "NOISY"
        is_proven = CheckVerdict.PASS in verdicts and CheckVerdict.INCONCLUSIVE not in verdicts
        return "PASS" if is_proven else "INCONCLUSIVE"

    @property
    def shown_verdict(self) -> str:
        """The verdict with what it leaves out."""
        skipped = [one.name for one in self.results if one.verdict is CheckVerdict.SKIPPED]
        return f"{self.verdict}; not checked: {', '.join(skipped)}" if skipped else self.verdict

    @property
    def exit_code(self) -> int:
        """0 pass or updated; 2 a check failed, proven; 4 the machine is too noisy to say; 3 not decided."""
        exits = {"FAIL": EXIT_MISSED, "NOISY": EXIT_NOISY, "INCONCLUSIVE": EXIT_INCONCLUSIVE}
        return exits.get(self.verdict, EXIT_PASS)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"schema": SCHEMA, "verdict": self.verdict, "exit_code": self.exit_code} | asdict(self)


def judge_time(
    name: str, ratio: Ratio | None, allowed: float, blocked: str = "", why_none: str = "", option: str = "--seconds"
) -> CheckResult:
    """Judge times, or memory, by the interval of their ratio.

    Args:
        name: Of the check.
        ratio: Of the baseline's to these; its margin is what the machine makes of no difference. None: not comparable.
        allowed: The largest share of the baseline's that passes.
        blocked: Why the machine is too noisy for a verdict; empty: it is not.
        why_none: Why there is no ratio.
        option: What makes the interval narrower.
    """
    if ratio is None:
        return CheckResult(name, CheckVerdict.INCONCLUSIVE, None, allowed, why_none)
    measured, low, high = 1 / ratio.speedup, 1 / ratio.high, 1 / ratio.low
    shown = f"{measured:.3f} [{low:.3f}, {high:.3f}] of the baseline's, {allowed:.3f} allowed"
    if blocked:
        detail = f"{shown}; the machine is too noisy: {blocked}"
        return CheckResult(name, CheckVerdict.INCONCLUSIVE, measured, allowed, detail, is_blocked=True)
    if high <= allowed:
        return CheckResult(name, CheckVerdict.PASS, measured, allowed, shown)
    if low > max(allowed, 1 + ratio.margin):
        return CheckResult(name, CheckVerdict.FAIL, measured, allowed, shown)
    null = f"; the baseline differs from itself by up to {ratio.margin:.1%}" if low > allowed else ""
    detail = f"{shown}{null}; more {option} would decide"
    return CheckResult(name, CheckVerdict.INCONCLUSIVE, measured, allowed, detail)


def judge_accuracy(drop: Drop | None, now: Scored, allowed: float, why_none: str = "") -> CheckResult:
    """Judge an accuracy by the interval of its drop over pictures.

    Args:
        drop: Against the baseline on the same pictures; None: not comparable.
        now: The accuracy itself.
        allowed: The largest drop that passes, in the metric's unit.
        why_none: Why there is no drop.
    """
    if drop is None:
        return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, allowed, why_none, now.accuracy.metric)
    shown = f"{now.accuracy} on {now.accuracy.n} pictures; drop {drop}, {allowed:g} allowed"
    if drop.high <= allowed + 1e-9:
        verdict = CheckVerdict.PASS
    elif drop.low > allowed + 1e-9:
        verdict = CheckVerdict.FAIL
    else:
        verdict, shown = CheckVerdict.INCONCLUSIVE, f"{shown}; more labelled pictures would decide"
    return CheckResult("accuracy", verdict, drop.value, allowed, shown, now.accuracy.metric)


def judge_agreement(agreement: float, least: float, pictures: int, *, proves: bool) -> CheckResult:
    """Judge how far answers are the baseline's, where no labels are given.

    Args:
        agreement: 0 to 1.
        least: That passes.
        pictures: On which it was judged.
        proves: Whether too little is a failure; else labels could still find the other answers right.
    """
    shown = f"no labels; answers agree in {agreement:.3f} with the baseline's on {pictures} samples, {least:g} asked"
    if agreement >= least:
        verdict = CheckVerdict.PASS
    else:
        verdict, shown = (CheckVerdict.FAIL, shown) if proves else (CheckVerdict.INCONCLUSIVE, f"{shown}: pass --eval")
    return CheckResult("accuracy", verdict, 1 - agreement, 1 - least, shown, "agreement")


def skipped(name: str) -> CheckResult:
    """Return that a check was left out by wish."""
    return CheckResult(name, CheckVerdict.SKIPPED, None, None, "left out with --skip", "")


def judge_size(now_bytes: int, then_bytes: int, allowed: float) -> CheckResult:
    """Judge the size of the model, which is no estimate."""
    ratio = now_bytes / then_bytes
    verdict = CheckVerdict.PASS if ratio <= allowed else CheckVerdict.FAIL
    detail = f"{now_bytes} bytes, the baseline's {then_bytes}: {ratio:.3f}, {allowed:.3f} allowed"
    return CheckResult("size", verdict, ratio, allowed, detail)


def judge_placement(
    now: Mapping[str, int], now_off: int, then: Mapping[str, int], then_off: int, allowed: int
) -> CheckResult:
    """Judge how many nodes moved off the device.

    Args:
        now: Nodes by provider; empty where the engine does not say.
        now_off: Nodes elsewhere than on the first provider.
        then: The baseline's.
        then_off: The baseline's.
        allowed: How many more may be elsewhere.
    """
    if not now:
        held = "; the baseline's did" if then else ""
        verdict = CheckVerdict.INCONCLUSIVE if then else CheckVerdict.SKIPPED
        return CheckResult("placement", verdict, None, allowed, f"the engine does not say{held}", "nodes")
    moved = now_off - then_off
    verdict = CheckVerdict.PASS if moved <= allowed else CheckVerdict.FAIL
    shown = ", ".join(f"{count} on {provider}" for provider, count in now.items())
    detail = f"{shown}; {now_off} off the device, the baseline's {then_off}, {allowed} more allowed"
    return CheckResult("placement", verdict, moved, allowed, detail, "nodes")


def write_junit(report: CheckReport) -> str:
    """Return JUnit XML: a failure is proven, an error is a check without a verdict."""
    counts = {verdict: sum(one.verdict is verdict for one in report.results) for verdict in CheckVerdict}
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"edgeopt check {report.name}"),
        tests=str(len(report.results)),
        failures=str(counts[CheckVerdict.FAIL]),
        errors=str(counts[CheckVerdict.INCONCLUSIVE]),
        skipped=str(counts[CheckVerdict.SKIPPED]),
        time=f"{report.seconds:.3f}",
    )
    for one in report.results:
        case = ElementTree.SubElement(suite, "testcase", classname="edgeopt.check", name=one.name, time="0.000")
        if tag := _JUNIT_TAGS.get(one.verdict):
            kind = "noise" if one.is_blocked else one.verdict.lower()
            attributes = {"message": _clean(one.detail)} | ({} if tag == "skipped" else {"type": kind})
            ElementTree.SubElement(case, tag, attributes)
        ElementTree.SubElement(case, "system-out").text = _clean(one.detail)
    suites = ElementTree.Element("testsuites", {key: suite.attrib[key] for key in ("tests", "failures", "errors")})
    suites.append(suite)
    ElementTree.indent(suites)
    text: str = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


_JUNIT_TAGS = {CheckVerdict.FAIL: "failure", CheckVerdict.INCONCLUSIVE: "error", CheckVerdict.SKIPPED: "skipped"}


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)


CHECK_HEADS = ("check", "verdict", "measured", "allowed", "")


def check_rows(report: CheckReport) -> list[tuple[str, ...]]:
    """Return one row a check, as text."""
    return [
        (one.name, str(one.verdict), _value(one.measured, one.unit), _value(one.allowed, one.unit), one.detail)
        for one in report.results
    ]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "n/a"
    if unit == "x":
        return f"{value:.3f}x"
    return f"{value:.0f} {unit}" if unit == "nodes" else f"{value:+.4f} {unit}".strip()


def render_check(report: CheckReport) -> str:
    """Return a Markdown table, for a pull request."""
    return render("check.md.jinja", report=report, heads=CHECK_HEADS, rows=check_rows(report))
