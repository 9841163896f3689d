"""The result of `optimize` for a pipeline as a document: every stage before and after, and what was chosen from."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from edgeopt.errors import NoteKind
from edgeopt.measurement.charts import ms
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.pipelines.choice import Combination, StageForm
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.report.charts import budget_of, key_figures, stages_of
from edgeopt.optimization.report.columns import Columns, frame_columns, make_document, make_frames_table
from edgeopt.optimization.report.verdict import (
    accuracy_of_choice,
    budget_of_choice,
    judgements_of,
    kept,
    machine_of,
    outcome_of,
)
from edgeopt.report.document import Document, Section, Table, Value, VerdictLines, make_table
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Figure, Points
from edgeopt.system.text import format_ms, format_score, plural

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
    title = f"{report.model}, a pipeline, on {report.target}"
    verdict, figures = _verdict(report), key_figures(report)
    return make_document(report, sections, verdict, title=title, key_figures=figures, judgements=judgements_of(report))


def _wholes(report: JointReport) -> Table:
    columns: Columns[Candidate] = {
        "whole": lambda candidate: _form(candidate.name),
        **frame_columns(report),
        "": lambda candidate: "chosen" if candidate.name == report.chosen else "",
    }
    return make_frames_table(report, columns)


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
        "the whole loses": lambda other: format_score(other.loss),
        "": lambda other: "chosen" if report.chosen_forms[other.stage] == other.name else "",
    }
    return make_table(listed, columns, words=["form", ""])


def _front(report: JointReport) -> Table:
    columns: dict[str, Callable[[Combination], str]] = {
        "combination": str,
        "ms a frame": lambda combination: format_ms(combination.frame_ms * 1e6),
        "loses": lambda combination: format_score(combination.loss),
    }
    return make_table(report.front, columns)


def _figures(report: JointReport) -> tuple[Figure, ...]:
    drawn = (stages_of(report), _combinations(report))
    return tuple(figure for figure in drawn if figure)


def _combinations(report: JointReport) -> Points | None:
    if len(report.front) < 2:
        return None
    points = tuple(
        ChartPoint(
            str(combination),
            Estimate(combination.frame_ms),
            Estimate(combination.loss),
            (("takes", ms(combination.frame_ms)), ("loses", format_score(combination.loss))),
            Emphasis.CHOSEN if combination == report.measured else Emphasis.PLAIN,
        )
        for combination in report.front
    )
    fastest = report.front[-1]
    loses = f"takes {ms(fastest.frame_ms)} and loses {format_score(fastest.loss)}"
    text = f"{plural(len(points), 'combination')}; the fastest {loses}."
    return Points(
        title="What each millisecond costs",
        text=text,
        x=Axis("frame time, expected", "ms"),
        y=Axis(f"{report.metric} lost, expected", from_zero=True),
        points=points,
        limit=budget_of(report),
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


def _verdict(report: JointReport) -> VerdictLines:
    best = report.best
    forms = ", ".join(f"{stage} {_form(name)}" for stage, name in report.chosen_forms.items())
    if best.name == BASELINE:
        sentence = f"{report.model} keeps its models as they came"
    else:
        sentence = f"{report.model} is {best.speed} as fast with {forms}{kept(best)}"
    facts = (
        Value("chosen", report.reason),
        *accuracy_of_choice(report),
        budget_of_choice(report),
        Value("mend", report.mend if report.verdict != "PASS" else ""),
        machine_of(report),
    )
    code = f" --code {shlex.quote(report.code)}" if report.code else ""
    return VerdictLines(
        outcome_of(report),
        sentence,
        tuple(fact for fact in facts if fact.text),
        bundle=str(report.bundle),
        next_command=f"edgeopt bench {shlex.quote(str(report.bundle))}{code}",
    )
