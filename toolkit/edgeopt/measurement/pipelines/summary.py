"""The `bench` of a pipeline as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.errors import NoteKind
from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times
from edgeopt.measurement.finding import first_command, show_findings
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.measurement.pipelines.result import PipelineResult
from edgeopt.measurement.samples import FRAME, OVERHEAD
from edgeopt.measurement.statistics.budget import Verdict as BudgetVerdict
from edgeopt.measurement.statistics.quantile import Quantile, Summary
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
from edgeopt.report.figures import Emphasis, Figure, Limit
from edgeopt.system.text import format_budget, format_ms, plural


def summarize(result: PipelineResult) -> Document:
    """Return what a reader sees: each stage of the file against the budget, then what is timed in it."""
    notes = tuple(note for note in result.notes if note.kind is not NoteKind.INFO)
    return Document(
        command="bench",
        subject=result.name,
        title=f"{result.name}, a pipeline",
        data=result.as_json(),
        sections=(
            Section(values=_what_ran(result)),
            Section("Stages against the budget", _costs(result), values=_sum(result), figures=_figures(result)),
            Section("Times (ms)", _times(result), values=_quantiles(result)),
            Section("Trust", values=_trust(result)),
            Section("Diagnosis", values=show_findings(result.findings), notes=notes),
            Section("Evidence", values=(Value("why", " ".join(map(str, result.findings))),), is_detail=True),
        ),
        verdict=_verdict(result),
        judgements=(JudgedCase.by_exit("budget", result.exit_code, str(result.budget)),) if result.budget_asked else (),
    )


def _what_ran(result: PipelineResult) -> tuple[Value, ...]:
    description, pipeline = result.given.description, result.given
    stages = ", ".join(stage.name for stage in description.stages)
    return (
        Value("pipeline", f"{description.name}: {stages}"),
        Value("target", pipeline.target.name),
        Value("load", "closed loop, one frame after the other"),
        Value("pictures", f"{len(result.pictures)} of {result.pictures.source}"),
    )


def _costs(result: PipelineResult) -> Table:
    def runs(cost: StageCost) -> str:
        return f"{cost.runs_mean:.3g}, most {cost.runs_most}" if cost.kind == "model" else ""

    columns: dict[str, Callable[[StageCost], str]] = {
        "stage": lambda cost: cost.name,
        "ms a frame": lambda cost: format_ms(cost.mean_ms * 1e6),
        "of the frame": lambda cost: f"{cost.share_ratio:.0%}",
        "of the budget": lambda cost: f"{cost.budget_ratio:.0%}",
        "runs a frame": runs,
    }
    return make_table(result.costs, columns)


def _sum(result: PipelineResult) -> tuple[Value, ...]:
    stages = sum(cost.mean_ms for cost in result.costs)
    text = f"stages {format_ms(stages * 1e6)} + between them {format_ms(result.between_ms * 1e6)}"
    whole = f"= frame {format_ms(result.frame_ms * 1e6)} ms (mean), of a budget of {format_budget(result.budget_ms)} ms"
    return (Value("sum", f"{text} {whole}"),)


def _times(result: PipelineResult) -> Table:
    summary = {name: other for name, other in result.summary.items() if name != FRAME} | {FRAME: result.summary[FRAME]}
    columns: dict[str, Callable[[tuple[str, Summary]], str]] = {
        "stage": lambda pair: pair[0],
        "mean": lambda pair: format_ms(pair[1].mean_ns),
        "p50": lambda pair: format_ms(pair[1].p50.value_ns),
        "p90": lambda pair: format_ms(pair[1].p90.value_ns),
        "p99": lambda pair: format_ms(pair[1].p99.value_ns),
        "max": lambda pair: format_ms(pair[1].max_ns),
    }
    return make_table(summary.items(), columns)


def _quantiles(result: PipelineResult) -> tuple[Value, ...]:
    frame = result.summary[FRAME]
    lines = [Value(label, _quantile(quantile)) for label, quantile in (("p50", frame.p50), ("p99", frame.p99))]
    return (
        *lines,
        Value("warm-up", f"{plural(int(result.samples.warmup.sum()), 'frame')}; then {result.warmup.status}"),
    )


def _quantile(quantile: Quantile) -> str:
    return (
        f"frame {quantile} ms (95 %), {quantile.n} frames" if quantile.value_ns is not None else f"n/a: {quantile.note}"
    )


def _trust(result: PipelineResult) -> tuple[Value, ...]:
    trust, machine = result.trust, result.environment
    text = f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"
    return (
        Value("trust", f"{trust.level.upper()}{'' if trust.reasons else ': nothing disturbed the run'}"),
        *(Value("because", str(reason)) for reason in trust.reasons),
        Value("machine", f"{text}; fingerprint {machine.hash}"),
    )


def _figures(result: PipelineResult) -> tuple[Figure, ...]:
    budget = Limit(f"budget {format_budget(result.budget_ms)} ms", result.budget_ms)
    times = {name: summary.stage_time for name, summary in result.summary.items()}
    stages = {name: time for name, time in times.items() if name not in (FRAME, OVERHEAD)}
    run = TimedRun(result.name, result.samples, Emphasis.CHOSEN)
    drawn = (
        draw_stages([StagedRun(result.name, times[FRAME], stages, Emphasis.CHOSEN)], budget),
        draw_percentiles([run], budget),
        draw_times([run], budget),
    )
    return tuple(one for one in drawn if one)


def _verdict(result: PipelineResult) -> VerdictLines:
    frame, trust = result.summary[FRAME], result.trust
    slow = f", 1 in 100 more than {format_ms(frame.p99.value_ns)} ms" if frame.p99.value_ns is not None else ""
    stage = next(finding for finding in result.findings if finding.rule == "stage")
    worst = max(result.costs, key=lambda cost: cost.mean_ms)
    no_gate = "" if result.budget_asked else " (the target's; --budget makes it a gate)"
    facts = [
        Value("budget", f"{result.budget.detail}{no_gate}"),
        Value("mend", f"stage {worst.name}, {stage.evidence}"),
    ]
    if trust.warning:
        facts.append(Value("machine", trust.warning))
    is_pass = result.budget.verdict is BudgetVerdict.PASS
    outcome = CommandOutcome.PASS if is_pass else CommandOutcome.DONE
    return VerdictLines(
        CommandOutcome.by_exit(result.exit_code) if result.budget_asked else outcome,
        f"{result.name}: half of the frames take at most {format_ms(frame.p50.value_ns)} ms{slow}",
        tuple(facts),
        next_command=first_command(result.findings),
    )
