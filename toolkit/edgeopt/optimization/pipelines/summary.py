"""The result of `optimize` for a pipeline as a document: every stage before and after, and what was chosen from."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from edgeopt.errors import NoteKind
from edgeopt.measurement.charts import StagedRun, draw_stages, ms
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.measurement.resources.trust import warning_of
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.pipelines.choice import Combination, StageForm
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    KeyFigure,
    Section,
    Table,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Figure, Limit, Points
from edgeopt.report.formats import write_pages
from edgeopt.system.text import format_budget, format_bytes, format_ms, plural

_READING = (
    "A form's time is a run's time, as often as it runs in a frame; its loss is what the last answers of the whole "
    "lose with this form alone. Times of the whole are of whole frames in turns with the original, speed with its "
    "95 % interval over fresh processes. What is not proven faster as a whole is not chosen."
)


def summarize(report: JointReport) -> Document:
    """Return what a reader sees."""
    notes = tuple(note for note in report.notes if note.kind is not NoteKind.INFO)
    sections = (
        Section(table=_wholes(report), values=_chosen_forms(report), figures=_figures(report)),
        Section("Stages, mean ms a frame", _stages(report), values=_sums(report)),
        Section("Forms of each model", _forms(report)),
        Section("Combinations worth looking at", _front(report), is_detail=True),
        Section("Notes", notes=notes),
        Section("Why", values=(Value("choice", report.reason), Value("mend", report.mend)), is_detail=True),
        Section("How to read it", text=_READING, is_detail=True),
        Section("Where this was measured", values=_facts(report), is_detail=True),
    )
    return Document(
        command="optimize",
        subject=report.pipeline,
        title=f"{report.pipeline}, a pipeline, on {report.target}",
        data=report.as_json(),
        sections=tuple(
            section for section in sections if section.table or section.values or section.notes or section.text
        ),
        verdict=_verdict(report),
        key_figures=_key_figures(report),
        judgements=(JudgedCase.by_exit("budget", report.exit_code, _budget(report)),) if report.budget_asked else (),
    )


def write_joint_report(report: JointReport) -> None:
    """Write `report.json`, `report.md` and what other formats have a file, into the output folder.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    write_pages(summarize(report), report.folder, "report")


def _wholes(report: JointReport) -> Table:
    columns: dict[str, Callable[[Candidate], str]] = {
        "whole": lambda candidate: "original" if candidate.name == BASELINE else candidate.name,
        "speed": lambda candidate: (
            "1.00x" if candidate.name == BASELINE else str(candidate.speed) if candidate.speed else ""
        ),
        "proof": lambda candidate: str(candidate.speed.verdict) if candidate.speed else "",
        report.metric: _accuracy,
        "p50 ms": lambda candidate: _ms(candidate, "p50_ms"),
        "p99 ms": lambda candidate: _ms(candidate, "p99_ms"),
        "budget": lambda candidate: candidate.latency.verdict if candidate.latency else "",
        "size": lambda candidate: format_bytes(candidate.size_bytes),
        "": lambda candidate: "chosen" if candidate.name == report.chosen else "",
    }
    place = [candidate.name for candidate in report.candidates].index(report.chosen)
    less = ["", "size", "p99 ms", "budget", report.metric]
    return make_table(report.candidates, columns, words=["", "proof", "budget"], less=less, chosen=place)


def _accuracy(candidate: Candidate) -> str:
    if candidate.score:
        return f"{candidate.score.value:.4f}" + (f" ({-candidate.drop:+.4f})" if candidate.drop is not None else "")
    return "" if candidate.agreement is None else f"{candidate.agreement:.3f}"


def _ms(candidate: Candidate, part: str) -> str:
    value = getattr(candidate.latency.frame, part) if candidate.latency else None
    return "n/a" if value is None else format_ms(value * 1e6)


def _chosen_forms(report: JointReport) -> tuple[Value, ...]:
    return (Value("forms", ", ".join(f"{stage} {_form(name)}" for stage, name in report.chosen_forms.items())),)


def _form(name: str) -> str:
    return "original" if name == BASELINE else name


def _stages(report: JointReport) -> Table:
    after = {cost.name: cost for cost in report.after}

    def now(cost: StageCost) -> str:
        return format_ms(after[cost.name].mean_ms * 1e6) if cost.name in after else ""

    columns: dict[str, Callable[[StageCost], str]] = {
        "stage": lambda cost: cost.name,
        "form": lambda cost: _form(report.chosen_forms[cost.name]) if cost.name in report.chosen_forms else "",
        "before": lambda cost: format_ms(cost.mean_ms * 1e6),
        "now": now,
        "of the budget": lambda cost: f"{after[cost.name].budget_ratio:.0%}" if cost.name in after else "",
        "runs a frame": lambda cost: f"{cost.runs_mean:.3g}, most {cost.runs_most}" if cost.kind == "model" else "",
    }
    return make_table(report.before, columns, words=["form"])


def _sums(report: JointReport) -> tuple[Value, ...]:
    before, now = (sum(cost.mean_ms for cost in costs) for costs in (report.before, report.after))
    return (Value("sum", f"{format_ms(before * 1e6)} before, {format_ms(now * 1e6)} now"),)


def _forms(report: JointReport) -> Table:
    listed = [form for forms in report.forms for form in forms]
    columns: dict[str, Callable[[StageForm], str]] = {
        "stage": lambda other: other.stage,
        "form": lambda other: _form(other.name),
        "ms a frame": lambda other: format_ms(other.frame_ms * 1e6),
        "the whole loses": lambda other: f"{other.loss:.4f}",
        "": lambda other: "chosen" if report.chosen_forms[other.stage] == other.name else "",
    }
    return make_table(listed, columns, words=["form", ""])


def _front(report: JointReport) -> Table:
    columns: dict[str, Callable[[Combination], str]] = {
        "combination": str,
        "ms a frame": lambda combination: format_ms(combination.frame_ms * 1e6),
        "loses": lambda combination: f"{combination.loss:.4f}",
    }
    return make_table(report.front, columns)


def _figures(report: JointReport) -> tuple[Figure, ...]:
    limit = Limit(f"budget {format_budget(report.budget_ms)} ms", report.budget_ms)
    staged = [
        StagedRun(
            "original" if candidate.name == BASELINE else candidate.name,
            candidate.latency.frame,
            candidate.latency.stages,
            Emphasis.CHOSEN if candidate.name == report.chosen else Emphasis.FIRST,
        )
        for candidate in report.candidates
        if candidate.latency
    ]
    drawn = (draw_stages(staged, limit), _combinations(report, limit))
    return tuple(one for one in drawn if one)


def _combinations(report: JointReport, limit: Limit) -> Points | None:
    if len(report.front) < 2:
        return None
    points = tuple(
        ChartPoint(
            str(combination),
            Estimate(combination.frame_ms),
            Estimate(combination.loss),
            (("takes", ms(combination.frame_ms)), ("loses", f"{combination.loss:.4f}")),
            Emphasis.CHOSEN if combination == report.measured else Emphasis.PLAIN,
        )
        for combination in report.front
    )
    fastest = report.front[-1]
    text = (
        f"{plural(len(points), 'combination')}; the fastest takes {ms(fastest.frame_ms)} and loses {fastest.loss:.4f}."
    )
    return Points(
        title="What each millisecond costs",
        text=text,
        x=Axis("frame time, expected", "ms"),
        y=Axis(f"{report.metric} lost, expected", from_zero=True),
        points=points,
        limit=limit,
    )


def _facts(report: JointReport) -> tuple[Value, ...]:
    machine = report.environment
    return (
        Value("target", report.target),
        Value("machine", f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"),
        Value("fingerprint", machine.hash),
        Value("judged on", f"{plural(report.pictures, 'picture')}, by {report.metric}"),
        Value("trust", report.trust),
        *(Value(f"forms of {stage}", file) for stage, file in report.reports.items()),
    )


def _key_figures(report: JointReport) -> tuple[KeyFigure, ...]:
    best, key_figures = report.best, []
    if best.speed:
        proof = f"95 % interval {best.speed.low:.2f} to {best.speed.high:.2f}"
        key_figures.append(KeyFigure("Speed, whole frames", f"{best.speed.speedup:.2f}x", proof))
    if best.latency and best.latency.frame.p50_ms is not None:
        key_figures.append(
            KeyFigure("Frame time, p50", ms(best.latency.frame.p50_ms), f"budget {format_budget(report.budget_ms)} ms")
        )
    if accuracy := _accuracy(best):
        key_figures.append(KeyFigure(report.metric.capitalize(), accuracy, "of the last answers"))
    return tuple(key_figures)


def _budget(report: JointReport) -> str:
    latency = report.best.latency
    return f"{report.verdict}: {latency.detail}" if latency else "not measured"


def _verdict(report: JointReport) -> VerdictLines:
    best = report.best
    forms = ", ".join(f"{stage} {_form(name)}" for stage, name in report.chosen_forms.items())
    if best.name == BASELINE:
        sentence = f"{report.pipeline} keeps its models as they came"
    else:
        sentence = f"{report.pipeline} is {best.speed} as fast with {forms}"
    facts = [Value("chosen", report.reason)]
    if best.latency:
        gate = "" if report.budget_asked else " (the target's; --budget makes it a gate)"
        facts.append(Value("budget", f"{best.latency.detail}{gate}"))
    if report.verdict != "PASS":
        facts.append(Value("mend", report.mend))
    if warning := warning_of(report.trust):
        facts.append(Value("machine", warning, more=report.trust.partition("; ")[2]))
    outcome = CommandOutcome.by_exit(report.exit_code) if report.budget_asked else CommandOutcome.DONE
    code = f" --code {shlex.quote(report.code)}" if report.code else ""
    return VerdictLines(
        outcome,
        sentence,
        tuple(facts),
        bundle=str(report.bundle),
        next_command=f"edgeopt bench {shlex.quote(str(report.bundle))}{code}",
    )
