"""The result of `bench` as a document: the kind's own figures, then what holds for all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_NOISY
from edgeopt.measurement.bench.block import BenchOfKind
from edgeopt.measurement.bench.finding import first_command, show_findings
from edgeopt.measurement.bench.result import BenchResult, JudgedLimit
from edgeopt.measurement.bench.stored import RESULT
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.resources.trust import Reason, undecided
from edgeopt.report.document import CommandOutcome, Document, JudgedCase, Section, Value, VerdictLines
from edgeopt.system.text import plural


def summarize(result: BenchResult, kind: BenchOfKind) -> Document:
    """Return what a reader sees: what ran, the times, what was asked for beside it, what to make of it.

    Args:
        result: Of a workload.
        kind: Shows its own figures.
    """
    view = kind.view(result)
    return Document(
        result,
        subject=result.name,
        title=view.title,
        sections=(
            Section(values=view.ran),
            *view.sections,
            Section("Trust", values=tuple(_trust(result, view)), is_detail=True),
            *_diagnosis(result, view),
            Section(text=_files(result), is_detail=True),
        ),
        verdict=_verdict(result, view) if view.sentence else None,
        key_figures=view.key_figures,
        judgements=tuple(_judgement(result, limit) for limit in result.judged) if result.is_gate else (),
        seconds=result.seconds,
    )


def _files(result: BenchResult) -> str:
    raw = ", ".join(f"`{name}`" for name in result.raw_files())
    return f"Everything else, with intervals of every figure: `{RESULT}`.{f' Raw samples: {raw}.' if raw else ''}"


def _trust(result: BenchResult, view: BenchView) -> Iterator[Value]:
    """Yield how far to believe the run, and where it ran."""
    if trust := result.trust:
        yield Value("trust", f"{trust.level.upper()}{'' if trust.reasons else ': nothing disturbed the run'}")
        yield from (Value("because", _reason(reason)) for reason in trust.reasons)
        yield from (Value("seen", _reason(sign)) for sign in trust.signs)
        yield Value("limits", ", ".join(f"{name} {value:g}" for name, value in asdict(trust.thresholds).items()))
        if trust.missing:
            yield Value("no sensor", ", ".join(trust.missing))
    machine = result.environment
    text = f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"
    yield Value("machine", f"{text}; fingerprint {machine.hash}")
    if command := machine.command or view.again:
        yield Value("command", command, is_command=True)


def _reason(reason: Reason) -> str:
    return f"{reason} (measured {reason.measured:.3g}, limit {reason.allowed:.3g})"


def _diagnosis(result: BenchResult, view: BenchView) -> Iterator[Section]:
    """Yield what stands out and what mends it; then the evidence, for a page."""
    yield Section("Diagnosis", values=show_findings(result.findings), notes=view.notes)
    if result.why:
        yield Section("Evidence", values=(Value("why", result.why),), is_detail=True)


def _judgement(result: BenchResult, limit: JudgedLimit) -> JudgedCase:
    code = result.gate(limit.verdict)
    text = undecided(result.trust.level, limit.detail) if result.trust and code == EXIT_NOISY else str(limit)
    return JudgedCase.by_exit(limit.name, code, text)


def _verdict(result: BenchResult, view: BenchView) -> VerdictLines:
    warning = result.trust.warning if result.trust else ""
    facts = (*view.facts, *([Value("machine", warning)] if warning else []), *view.more_facts)
    return VerdictLines(_outcome(result), view.sentence, facts, next_command=_next_command(result, view))


def _outcome(result: BenchResult) -> CommandOutcome:
    if result.is_gate:
        return CommandOutcome.by_exit(result.exit_code)
    return CommandOutcome.PASS if result.verdict_word == "PASS" else CommandOutcome.DONE


def _next_command(result: BenchResult, view: BenchView) -> str:
    """Return what would decide, where nothing is decided; else the first thing to mend that takes a command alone."""
    is_open = result.is_gate and result.exit_code in (EXIT_NOISY, EXIT_INCONCLUSIVE)
    return (view.to_decide if is_open else "") or first_command(result.findings)


def show_frame_budget(result: BenchResult, detail: str) -> Value:
    """Return the fact of a budget of frames; one that nobody asked for is told without a verdict of ours.

    Args:
        result: Whose budget it is.
        detail: What was counted, and what it proves.
    """
    if result.is_gate:
        return Value("budget", detail)
    words = {"": "", "PASS": "", "FAIL": "missed: "}
    word = words.get(result.budget_word, "not decided: ")
    return Value("budget", f"{word}{detail}", more="the target's own; --budget makes it a gate")
