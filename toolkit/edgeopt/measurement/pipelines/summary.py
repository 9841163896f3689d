"""The `bench` of a pipeline, as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.errors import NoteKind
from edgeopt.measurement.bench.columns import stage_table
from edgeopt.measurement.bench.summary import show_frame_budget
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.charts import budget_line, draw_run
from edgeopt.measurement.frames.summary import show_quantile, show_warmup
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.measurement.pipelines.result import PipelineResult
from edgeopt.measurement.samples import FRAME
from edgeopt.report.document import Section, Table, Value, make_table
from edgeopt.system.text import format_budget, format_ms


def view_pipeline(result: PipelineResult) -> BenchView:
    """Return each stage of the file against the budget, then what is timed in it."""
    drawn = draw_run(result.name, result.samples, budget_line(result.budget_ms))
    times = {name: other for name, other in result.summary.items() if name != FRAME} | {FRAME: result.summary[FRAME]}
    table = stage_table(times)
    stage = next(finding for finding in result.findings if finding.rule == "stage")
    worst = max(result.costs, key=lambda cost: cost.mean_ms)
    return BenchView(
        title=f"{result.name}, a pipeline",
        ran=_what_ran(result),
        sections=(
            Section("Stages against the budget", _costs(result), values=_sum(result), figures=drawn),
            Section("Times (ms)", table, values=_about_times(result)),
        ),
        sentence=_sentence(result),
        facts=(
            show_frame_budget(result, result.budget.detail),
            Value("mend", f"stage {worst.name}, {stage.evidence}"),
        ),
        notes=tuple(note for note in result.notes if note.kind is not NoteKind.INFO),
        again=result.repeat(),
        to_decide=result.repeat("--seconds 60"),
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


def _about_times(result: PipelineResult) -> tuple[Value, ...]:
    frame = result.summary[FRAME]
    lines = [show_quantile(label, FRAME, quantile) for label, quantile in (("p50", frame.p50), ("p99", frame.p99))]
    return (*lines, show_warmup(result.warmup, int(result.samples.warmup.sum())))


def _sentence(result: PipelineResult) -> str:
    frame = result.summary[FRAME]
    slow = f", 1 in 100 more than {format_ms(frame.p99.value_ns)} ms" if frame.p99.value_ns is not None else ""
    return f"{result.name}: half of the frames take at most {format_ms(frame.p50.value_ns)} ms{slow}"
