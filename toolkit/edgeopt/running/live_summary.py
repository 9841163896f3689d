"""How a bundle did on a source, as a document."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from edgeopt.errors import EXIT_MISSED, Note, NoteKind
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.report.document import CommandOutcome, Document, JudgedCase, Section, Value, VerdictLines, make_table
from edgeopt.running.live import LiveResult
from edgeopt.runtime.drift.state import DriftState
from edgeopt.runtime.stats import Times
from edgeopt.runtime.stream import StreamStats
from edgeopt.runtime.stream.levels import FULL
from edgeopt.system.text import format_budget, format_ms, plural, typed_duration

_FEW = 20
"""Pictures whose answers say more than their times."""
_MOST_EVENTS = 8
"""The last ones; all that are kept are in the data."""


def summarize(result: LiveResult) -> Document:
    """Return what a reader sees: what became of the frames, the times, what happened, the verdict."""
    stats = result.stats
    is_short = result.is_on_demand and stats.served < _FEW and not result.failure
    return Document(
        result,
        subject=result.bundle,
        title=f"{result.bundle} on {result.source}",
        sections=(
            Section(values=tuple(_counts(result)), is_detail=is_short),
            Section("Stages (ms)", make_table(_rows(stats), _COLUMNS), is_detail=is_short),
            Section(notes=tuple(_events(stats)), is_detail=True),  # a terminal saw them happen
        ),
        verdict=None if result.failure else _verdict(result),
        judgements=(_judgement(result),) if result.budget else (),
        seconds=result.seconds,
    )


_COLUMNS = {
    "stage": lambda row: row[0],
    "p50": lambda row: _ms(row[1].p50_ms),
    "p90": lambda row: _ms(row[1].p90_ms),
    "p99": lambda row: _ms(row[1].p99_ms),
}


def _ms(value: float | None) -> str:
    return format_ms(None if value is None else value * 1e6)


def _rows(stats: StreamStats) -> list[tuple[str, Times]]:
    return [*stats.stages.items(), ("age", stats.age)] if stats.served else []


def _counts(result: LiveResult) -> Iterator[Value]:
    stats = result.stats
    yield Value("source", f"{result.source}, {result.seconds:.1f} s")
    parts = (("served", stats.served), ("dropped", stats.dropped), ("failed", stats.failed))
    text = ", ".join(f"{count} {word}" for word, count in parts if count or word == "served")
    yield Value(
        "frames", f"{stats.fed} fed: {text}; {stats.missed} of the served over {format_budget(stats.budget_ms)} ms"
    )
    if not result.is_on_demand:
        yield Value("queue", stats.queue + _growth(stats))
    if stats.answers_per_s is not None:
        yield Value("rate", f"{stats.answers_per_s:.1f} answers a second")
    if stats.gaps:
        yield Value("gaps", f"{plural(stats.gaps, 'gap')}, {stats.gap_s:.1f} s together")
    if stats.level != FULL:
        yield Value("level", f"{stats.level} ({stats.artefact})")
    if (tried := stats.pipelining) is not None:
        used = "overlap" if tried.used else "do not overlap"
        periods = f"{tried.serial_period_ms:.1f} ms a frame in turns, {tried.pipelined_period_ms:.1f} ms overlapped"
        yield Value("stages", f"they {used}: {periods}, {tried.added_age_ms:+.1f} ms of age")
    if stats.drift is not None:
        yield Value("drift", _drift(stats.drift))
    if result.learned:
        yield Value("usual", result.learned)
    if result.saved:
        yield Value("saved", result.saved)
    if result.viewed:
        yield Value("view", result.viewed)


def _drift(state: DriftState) -> str:
    looks = f"{plural(state.looks, 'frame')} looked at"
    if not state.levels:
        return f"{looks}, compared with nothing"
    began = ", ".join(f"{kind} {count}" for kind, count in state.began.items() if count)
    lasting = "; ".join(map(str, state.active))
    return f"{looks}: {began}{f'; now: {lasting}' if lasting else '; all over'}" if began else f"none, {looks}"


def _growth(stats: StreamStats) -> str:
    growth = stats.waiting_growth_ratio
    return f": waiting grows by {growth:.2f} s a second" if growth is not None and growth > 0.01 else ""


def _events(stats: StreamStats) -> Iterator[Note]:
    hidden = len(stats.events) - _MOST_EVENTS
    if hidden > 0:
        yield Note(NoteKind.INFO, f"{plural(hidden, 'event')} before these")
    for event in stats.events[-_MOST_EVENTS:]:
        yield Note(NoteKind.INFO, str(event))


def _verdict(result: LiveResult) -> VerdictLines:
    stats, judged = result.stats, result.budget
    end = " until it was interrupted" if result.interrupted else ""
    if judged is None:
        age = f", p50 {_ms(stats.age.p50_ms)} ms, p99 {_ms(stats.age.p99_ms)} ms" if stats.served else ""
        return VerdictLines(CommandOutcome.DONE, f"{plural(stats.served, 'frame')} answered{end}{age}")
    code = f" --code {quote(str(result.code))}" if result.code else ""
    bench = f"edgeopt bench {quote(result.bundle)}{code} --budget {typed_duration(judged.budget_ms)}"
    return VerdictLines(
        CommandOutcome.DONE if result.is_cut else CommandOutcome.by_exit(result.exit_code),
        f"{_told(result, judged)}{end}",
        next_command=bench if judged.verdict.exit_code == EXIT_MISSED else "",
    )


def _judgement(result: LiveResult) -> JudgedCase:
    assert result.budget is not None
    return JudgedCase.by_exit(f"{result.bundle} budget", result.exit_code, _told(result, result.budget))


def _told(result: LiveResult, judged: BudgetResult) -> str:
    """Return what the budget's frames prove; where frames can be lost, these are misses too."""
    return judged.told("" if result.is_on_demand else " or lost")
