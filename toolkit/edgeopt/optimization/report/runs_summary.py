"""Several earlier runs as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.samples import FRAME
from edgeopt.optimization.report.runs import EarlierRun, differences
from edgeopt.report.document import CommandOutcome, Document, Section, Table, Value, VerdictLines, make_table
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Facts, Figure, Limit, Points
from edgeopt.report.result import PlainResult
from edgeopt.system.text import format_budget, format_bytes, format_drop, plural


def summarize_runs(runs: Sequence[EarlierRun]) -> Document:
    """Return what a reader sees: one row a run, then where the times go, then what differs between the machines."""
    labels = ", ".join(run.label for run in runs)
    result = PlainResult(
        command="report",
        figures={"runs": [run.as_json() for run in runs]},
        kind=runs[0].kind if len({run.kind for run in runs}) == 1 else "",
        environment=runs[0].environment if len(runs) == 1 else None,
    )
    return Document(
        result,
        subject=labels,
        title=f"{plural(len(runs), 'run')}: {labels}",
        sections=(
            Section(table=_table(runs), figures=_overview(runs)),
            Section("Where the time goes", figures=_times(runs), is_detail=True),
            Section("What differs between the runs", _differences(runs), is_detail=True),
            Section("Where they lie", values=tuple(Value(run.label, str(run.folder)) for run in runs), is_detail=True),
        ),
        verdict=_verdict(runs),
    )


def _verdict(runs: Sequence[EarlierRun]) -> VerdictLines:
    timed = [(p50, run) for run in runs if run.latency and (p50 := run.latency.frame.p50_ms) is not None]
    apart = Value("proof", "none: these runs were made apart; edgeopt compare measures models in turns")
    if not timed:
        return VerdictLines(CommandOutcome.DONE, f"{plural(len(runs), 'run')}, none of them measured", (apart,))
    p50, first = min(timed, key=lambda pair: pair[0])
    most = f" of {len(timed)} runs" if len(timed) > 1 else ""
    sentence = f"{first.label} has the shortest median {first.whole}{most}: {ms(p50)}"
    return VerdictLines(CommandOutcome.DONE, sentence, (apart,))


def _table(runs: Sequence[EarlierRun]) -> Table:
    columns: dict[str, Callable[[EarlierRun], str]] = {
        "run": lambda earlier_run: earlier_run.label,
        "model": lambda earlier_run: earlier_run.model,
        "target": lambda earlier_run: earlier_run.target,
        "chosen": lambda earlier_run: earlier_run.chosen,
        "accuracy": lambda earlier_run: earlier_run.accuracy.short if earlier_run.accuracy else "",
        "size": lambda earlier_run: "" if earlier_run.size_bytes is None else format_bytes(earlier_run.size_bytes),
        "p50 ms": lambda earlier_run: _ms(earlier_run, "p50_ms"),
        "p99 ms": lambda earlier_run: _ms(earlier_run, "p99_ms"),
        "budget": lambda earlier_run: _judged(earlier_run) if earlier_run.latency else "not measured",
        "speed": lambda earlier_run: earlier_run.speed,
        "device": lambda earlier_run: earlier_run.device,
        "machine": lambda earlier_run: earlier_run.trust.partition(";")[0],
    }
    less = ["machine", "device", "target", "size", "p99 ms", "model", "budget"]
    return make_table(runs, columns, words=["model", "target", "chosen", "device", "machine"], less=less)


def _judged(earlier_run: EarlierRun) -> str:
    """Return the budget of a frame, and what is proven of it; of answers, whose limits are several, the proof alone."""
    if earlier_run.budget_ms is None:
        return earlier_run.verdict
    return f"{format_budget(earlier_run.budget_ms)} ms {earlier_run.verdict}"


def _ms(earlier_run: EarlierRun, part: str) -> str:
    value = getattr(earlier_run.latency.frame, part) if earlier_run.latency else None
    return "n/a" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _overview(runs: Sequence[EarlierRun]) -> tuple[Figure, ...]:
    """Return accuracy over time, where all runs were scored alike."""
    known = [run for run in runs if run.accuracy and run.latency and run.latency.frame.p50_ms is not None]
    if len(known) < 2 or len({earlier_run.accuracy.metric for earlier_run in known if earlier_run.accuracy}) > 1:
        return ()
    points = tuple(_point(earlier_run, _emphasis(i)) for i, earlier_run in enumerate(known))
    return (
        Points(
            title="Accuracy against time",
            text="What each run chose; up and left is better.",
            x=Axis(f"{known[0].whole} time, p50", "ms"),
            y=Axis(known[0].accuracy.metric if known[0].accuracy else ""),
            points=points,
            limit=_budget(known),
        ),
    )


def _point(earlier_run: EarlierRun, emphasis: Emphasis) -> ChartPoint:
    assert earlier_run.accuracy is not None
    assert earlier_run.latency is not None
    return ChartPoint(
        earlier_run.label,
        Estimate(earlier_run.latency.frame.p50_ms or 0.0),
        Estimate(earlier_run.accuracy.value),
        _facts(earlier_run),
        emphasis,
    )


def _facts(earlier_run: EarlierRun) -> Facts:
    known = {
        "model": earlier_run.model,
        "target": earlier_run.target,
        "device": earlier_run.device,
        "chosen": earlier_run.chosen,
        f"{earlier_run.whole} p50": f"{_ms(earlier_run, 'p50_ms')} ms",
        f"{earlier_run.whole} p99": f"{_ms(earlier_run, 'p99_ms')} ms",
        "accuracy": earlier_run.accuracy.short if earlier_run.accuracy else "",
        "drop": format_drop(earlier_run.drop),
    }
    return tuple((label, text) for label, text in known.items() if text)


def _times(runs: Sequence[EarlierRun]) -> tuple[Figure, ...]:
    budget = _budget(runs)
    staged = [
        StagedRun(run.label, run.latency.frame, run.latency.stages, _emphasis(i))
        for i, run in enumerate(runs)
        if run.latency and run.whole == FRAME  # only the stages of a frame add up to it
    ]
    timed = [TimedRun(run.label, run.samples, _emphasis(i)) for i, run in enumerate(runs) if run.samples]
    figures = (draw_stages(staged, budget), draw_percentiles(timed, budget), draw_times(timed, budget))
    return tuple(figure for figure in figures if figure)


def _emphasis(place: int) -> Emphasis:
    """Return that the first run is what the others are held against, and the second is looked at first."""
    return Emphasis.FIRST if place == 0 else Emphasis.CHOSEN if place == 1 else Emphasis.PLAIN


def _budget(runs: Sequence[EarlierRun]) -> Limit | None:
    """Return the budget that all runs have; None where they have several."""
    budgets = {run.budget_ms for run in runs}
    budget_ms = runs[0].budget_ms if len(budgets) == 1 else None
    return None if budget_ms is None else Limit(f"budget {format_budget(budget_ms)} ms", budget_ms)


def _differences(runs: Sequence[EarlierRun]) -> Table:
    heads = ("fact", *(run.label for run in runs))
    return Table(heads, tuple((key, *texts) for key, texts in differences(runs).items()), frozenset(heads))
