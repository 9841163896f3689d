"""The result of `compare` as charts."""

from __future__ import annotations

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.samples import FRAME, OVERHEAD
from edgeopt.measurement.statistics.quantile import quantile
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Facts, Figure, Intervals, Points, Row
from edgeopt.system.text import format_bytes


def key_figures(result: Comparison) -> tuple[KeyFigure, ...]:
    """Return the speed of each of the others."""
    first = result.rows[0].label
    return tuple(
        KeyFigure(row.label, f"{ratio.speedup:.2f}x", f"the speed of {first}, 95 % {ratio.low:.2f} to {ratio.high:.2f}")
        for row in result.rows
        if (ratio := row.ratios.get("frame"))
    )


def overview(result: Comparison) -> tuple[Figure, ...]:
    """Return accuracy or size over time, and the ratios."""
    figures = (_points(result), _ratios(result))
    return tuple(figure for figure in figures if figure)


def time_charts(result: Comparison) -> tuple[Figure, ...]:
    """Return stages, percentiles and times in order of each."""
    runs = [TimedRun(row.label, result.samples[row.label], _emphasis(result, row)) for row in result.rows]
    staged = []
    for run in runs:
        times = {name: summary.stage_time for name, summary in run.samples.summary().items()}
        stages = {name: time for name, time in times.items() if name not in (FRAME, OVERHEAD)}
        staged.append(StagedRun(run.name, times[FRAME], stages, run.emphasis))
    figures = (draw_stages(staged, None), draw_percentiles(runs, None), draw_times(runs, None))
    return tuple(figure for figure in figures if figure)


def _emphasis(result: Comparison, row: Compared) -> Emphasis:
    if row is result.rows[0]:
        return Emphasis.FIRST
    others = result.rows[1:]
    best = max(others, key=lambda other: other.ratios["frame"].speedup if "frame" in other.ratios else 0.0)
    return Emphasis.CHOSEN if row is best else Emphasis.PLAIN if row.on_front else Emphasis.FAINT


def _points(result: Comparison) -> Points | None:
    """Return accuracy over time, without labels size over time; nothing where neither is known."""
    is_scored = all(row.scored for row in result.rows)
    points = tuple(point for row in result.rows if (point := _point(result, row, is_scored=is_scored)))
    if len(points) < 2:
        return None
    metric = result.rows[0].scored.accuracy.metric if result.rows[0].scored else ""
    y = Axis(metric) if is_scored else Axis("size", "MiB")
    side = "Up and left is better" if is_scored else "Down and left is better"
    return Points(
        title="Accuracy against time" if is_scored else "Size against time",
        text=f"{side}; whiskers are 95 % intervals, pale ones are beaten by another.",
        x=Axis("frame time, p50", "ms"),
        y=y,
        points=points,
    )


def _point(result: Comparison, row: Compared, *, is_scored: bool) -> ChartPoint | None:
    frame = quantile(result.samples[row.label].steady().served().response_ns, 0.5)
    if is_scored and row.scored:
        y = Estimate(row.scored.accuracy.value)
    elif row.size_bytes is not None:
        y = Estimate(row.size_bytes / 2**20)
    else:
        return None
    if frame.value_ms is None:
        return None
    ends = None if frame.low_ns is None or frame.high_ns is None else (frame.low_ns / 1e6, frame.high_ns / 1e6)
    x = Estimate(frame.value_ms, *ends) if ends else Estimate(frame.value_ms)
    return ChartPoint(row.label, x, y, _facts(row), _emphasis(result, row))


def _facts(row: Compared) -> Facts:
    frame, scored = row.times[FRAME], row.scored
    known = {
        "speed": f"{row.ratios[FRAME]} {row.ratios[FRAME].verdict}" if FRAME in row.ratios else "",
        "frame p50": "" if frame.p50_ms is None else ms(frame.p50_ms),
        "frame p99": "" if frame.p99_ms is None else ms(frame.p99_ms),
        scored.accuracy.metric if scored else "": f"{scored.accuracy.value:.4f}" if scored else "",
        "drop": str(row.drop) if row.drop else "",
        "size": "" if row.size_bytes is None else format_bytes(row.size_bytes),
    }
    return tuple((label, text) for label, text in known.items() if text)


def _ratios(result: Comparison) -> Intervals | None:
    """Return the speed of each part of each of the others, and of the first one against itself."""
    first = result.rows[0].label
    rows = [
        Row(f"{row.label}, {part}", _estimate(ratio), _told(ratio), emphasis=_of_part(part, _emphasis(result, row)))
        for row in result.rows
        for part, ratio in row.ratios.items()
    ]
    if not rows:
        return None
    null = [
        Row(f"{first} against itself, {part}", _estimate(other), (("speed", str(other)),), emphasis=Emphasis.FAINT)
        for part, other in result.null.items()
        if part == FRAME
    ]
    margin = max(ratio.margin for row in result.rows for ratio in row.ratios.values())
    return Intervals(
        title=f"Speed against {first}",
        text=f"With 95 % intervals; within the band, {margin:.1%}, they are equal.",
        axis=Axis("speed", f"times that of {first}"),
        rows=(*rows, *null),
        margin=margin,
    )


def _of_part(part: str, emphasis: Emphasis) -> Emphasis:
    """Return that whole frames stand out: they are what is judged."""
    return emphasis if part == FRAME else Emphasis.PLAIN if emphasis is Emphasis.CHOSEN else emphasis


def _estimate(ratio: Ratio) -> Estimate:
    return Estimate(ratio.speedup, ratio.low, ratio.high)


def _told(ratio: Ratio) -> Facts:
    return (("speed", f"{ratio} {ratio.verdict}"), ("equal within", f"{ratio.margin:.1%}"))
