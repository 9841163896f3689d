"""Several earlier runs as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.optimization.report.runs import SCHEMA, EarlierRun, differences
from edgeopt.report.document import Document, Outcome, Section, Table, Value, Verdict, make_table
from edgeopt.report.figures import Axis, Emphasis, Estimate, Facts, Figure, Limit, Point, Points
from edgeopt.system.text import format_budget, format_bytes, plural


def summarize_runs(runs: Sequence[EarlierRun]) -> Document:
    """Return what a reader sees: one row a run, then where the times go, then what differs between the machines."""
    labels = ", ".join(one.label for one in runs)
    return Document(
        command="report",
        subject=labels,
        title=f"{plural(len(runs), 'run')}: {labels}",
        data={"schema": SCHEMA, "runs": [one.as_json() for one in runs]},
        sections=(
            Section(table=_table(runs), figures=_overview(runs)),
            Section("Where the time goes", figures=_times(runs), is_detail=True),
            Section("What differs between the runs", _differences(runs), is_detail=True),
            Section("Where they lie", values=tuple(Value(one.label, str(one.folder)) for one in runs), is_detail=True),
        ),
        verdict=_verdict(runs),
    )


def _verdict(runs: Sequence[EarlierRun]) -> Verdict:
    timed = [(p50, one) for one in runs if one.latency and (p50 := one.latency.frame.p50_ms) is not None]
    apart = Value("proof", "none: these runs were made apart; edgeopt compare measures models in turns")
    if not timed:
        return Verdict(Outcome.DONE, f"{plural(len(runs), 'run')}, none of them measured", (apart,))
    p50, first = min(timed, key=lambda pair: pair[0])
    most = f" of {len(timed)} runs" if len(timed) > 1 else ""
    return Verdict(Outcome.DONE, f"{first.label} has the shortest median frame{most}: {ms(p50)}", (apart,))


def _table(runs: Sequence[EarlierRun]) -> Table:
    columns: dict[str, Callable[[EarlierRun], str]] = {
        "run": lambda one: one.label,
        "model": lambda one: one.model,
        "target": lambda one: one.target,
        "chosen": lambda one: one.chosen,
        "accuracy": lambda one: f"{one.accuracy.metric} {one.accuracy.value:.4f}" if one.accuracy else "",
        "size": lambda one: "" if one.size_bytes is None else format_bytes(one.size_bytes),
        "p50 ms": lambda one: _ms(one, "p50_ms"),
        "p99 ms": lambda one: _ms(one, "p99_ms"),
        "budget": lambda one: (
            f"{format_budget(one.budget_ms)} ms {one.latency.verdict}" if one.latency else "not measured"
        ),
        "speed": lambda one: one.speed,
        "device": lambda one: one.device,
        "machine": lambda one: one.trust.partition(";")[0],
    }
    less = ["machine", "device", "target", "size", "p99 ms", "model", "budget"]
    return make_table(runs, columns, words=["model", "target", "chosen", "device", "machine"], less=less)


def _ms(one: EarlierRun, part: str) -> str:
    value = getattr(one.latency.frame, part) if one.latency else None
    return "n/a" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _overview(runs: Sequence[EarlierRun]) -> tuple[Figure, ...]:
    """Return accuracy over time, where all runs were scored alike."""
    known = [one for one in runs if one.accuracy and one.latency and one.latency.frame.p50_ms is not None]
    if len(known) < 2 or len({one.accuracy.metric for one in known if one.accuracy}) > 1:
        return ()
    points = tuple(_point(one, _emphasis(i)) for i, one in enumerate(known))
    return (
        Points(
            title="Accuracy against time",
            text="What each run chose; up and left is better.",
            x=Axis("frame time, p50", "ms"),
            y=Axis(known[0].accuracy.metric if known[0].accuracy else ""),
            points=points,
            limit=_budget(known),
        ),
    )


def _point(one: EarlierRun, emphasis: Emphasis) -> Point:
    assert one.accuracy is not None
    assert one.latency is not None
    return Point(
        one.label,
        Estimate(one.latency.frame.p50_ms or 0.0),
        Estimate(one.accuracy.value),
        _facts(one),
        emphasis,
    )


def _facts(one: EarlierRun) -> Facts:
    known = {
        "model": one.model,
        "target": one.target,
        "device": one.device,
        "chosen": one.chosen,
        "frame p50": f"{_ms(one, 'p50_ms')} ms",
        "frame p99": f"{_ms(one, 'p99_ms')} ms",
        "accuracy": f"{one.accuracy.metric} {one.accuracy.value:.4f}" if one.accuracy else "",
        "drop": "" if one.drop is None else f"{one.drop:+.4f}",
    }
    return tuple((label, text) for label, text in known.items() if text)


def _times(runs: Sequence[EarlierRun]) -> tuple[Figure, ...]:
    budget = _budget(runs)
    staged = [
        StagedRun(one.label, one.latency.frame, one.latency.stages, _emphasis(i))
        for i, one in enumerate(runs)
        if one.latency
    ]
    timed = [TimedRun(one.label, one.samples, _emphasis(i)) for i, one in enumerate(runs) if one.samples]
    figures = (draw_stages(staged, budget), draw_percentiles(timed, budget), draw_times(timed, budget))
    return tuple(one for one in figures if one)


def _emphasis(place: int) -> Emphasis:
    """Return that the first run is what the others are held against, and the second is looked at first."""
    return Emphasis.FIRST if place == 0 else Emphasis.CHOSEN if place == 1 else Emphasis.PLAIN


def _budget(runs: Sequence[EarlierRun]) -> Limit | None:
    """Return the budget that all runs have; None where they have several."""
    found = {one.budget_ms for one in runs}
    return Limit(f"budget {format_budget(runs[0].budget_ms)} ms", runs[0].budget_ms) if len(found) == 1 else None


def _differences(runs: Sequence[EarlierRun]) -> Table:
    heads = ("fact", *(one.label for one in runs))
    return Table(heads, tuple((key, *texts) for key, texts in differences(runs).items()), frozenset(heads))
