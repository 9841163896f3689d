"""The result of `compare` as charts."""

from __future__ import annotations

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.samples import FRAME, OVERHEAD
from edgeopt.measurement.statistics.quantile import quantile
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Facts, Figure, Intervals, Points, Row
from edgeopt.system.text import format_bytes, format_score


def key_figures(result: Comparison) -> tuple[KeyFigure, ...]:
    """Return the speed of each of the others."""
    first = result.rows[0].label
    return tuple(
        KeyFigure(row.label, f"{ratio.speedup:.2f}x", f"the speed of {first}, 95 % {ratio.low:.2f} to {ratio.high:.2f}")
        for row in result.rows
        if (ratio := row.ratios.get(result.whole))
    )


def overview(result: Comparison) -> tuple[Figure, ...]:
    """Return accuracy or size over time, and the ratios."""
    figures = (_points(result), _ratios(result))
    return tuple(figure for figure in figures if figure)


def time_charts(result: Comparison) -> tuple[Figure, ...]:
    """Return stages, percentiles and times in order of each."""
    runs = [TimedRun(row.label, result.samples[row.label], _emphasis(result, row)) for row in result.rows]
    # only the stages of a frame add up to it: the parts of an answer overlap
    staged = [_staged(run) for run in runs] if result.whole == FRAME else []
    figures = (draw_stages(staged, None), draw_percentiles(runs, None), draw_times(runs, None))
    return tuple(figure for figure in figures if figure)


def _staged(run: TimedRun) -> StagedRun:
    times = {name: summary.stage_time for name, summary in run.samples.summary().items()}
    stages = {name: time for name, time in times.items() if name not in (FRAME, OVERHEAD)}
    return StagedRun(run.name, times[FRAME], stages, run.emphasis)


def _emphasis(result: Comparison, row: Compared) -> Emphasis:
    if row is result.rows[0]:
        return Emphasis.FIRST
    others = result.rows[1:]
    whole = result.whole
    best = max(others, key=lambda other: other.ratios[whole].speedup if whole in other.ratios else 0.0)
    return Emphasis.CHOSEN if row is best else Emphasis.PLAIN if row.on_front else Emphasis.FAINT


def _points(result: Comparison) -> Points | None:
    """Return accuracy over time, without labels size over time; nothing where neither is known."""
    is_scored = all(row.quality for row in result.rows)
    points = tuple(point for row in result.rows if (point := _point(result, row, is_scored=is_scored)))
    if len(points) < 2:
        return None
    quality = result.rows[0].quality if is_scored else None
    y = Axis(quality.metric) if quality else Axis("size", "MiB")
    side = "Up and left is better" if quality and quality.more_is_better else "Down and left is better"
    return Points(
        title="Accuracy against time" if is_scored else "Size against time",
        text=f"{side}; whiskers are 95 % intervals, pale ones are beaten by another.",
        x=Axis(f"{result.whole} time, p50", "ms"),
        y=y,
        points=points,
    )


def _point(result: Comparison, row: Compared, *, is_scored: bool) -> ChartPoint | None:
    times = quantile(result.samples[row.label].steady().served().response_ns, 0.5)
    if is_scored and row.quality:
        y = Estimate(row.quality.value)
    elif row.size_bytes is not None:
        y = Estimate(row.size_bytes / 2**20)
    else:
        return None
    if times.value_ms is None:
        return None
    ends = None if times.low_ns is None or times.high_ns is None else (times.low_ns / 1e6, times.high_ns / 1e6)
    x = Estimate(times.value_ms, *ends) if ends else Estimate(times.value_ms)
    return ChartPoint(row.label, x, y, _facts(row, result.whole), _emphasis(result, row))


def _facts(row: Compared, whole: str) -> Facts:
    times, quality = row.times[whole], row.quality
    known = {
        "speed": f"{row.ratios[whole]} {row.ratios[whole].verdict}" if whole in row.ratios else "",
        f"{whole} p50": "" if times.p50_ms is None else ms(times.p50_ms),
        f"{whole} p99": "" if times.p99_ms is None else ms(times.p99_ms),
        quality.metric if quality else "": format_score(quality.value) if quality else "",
        quality.loss_name if quality else "": str(quality.loss) if quality and quality.loss else "",
        "size": "" if row.size_bytes is None else format_bytes(row.size_bytes),
    }
    return tuple((label, text) for label, text in known.items() if text)


def _ratios(result: Comparison) -> Intervals | None:
    """Return the speed of each part of each of the others, and of the first one against itself."""
    first = result.rows[0].label
    rows = [
        Row(f"{row.label}, {part}", _estimate(ratio), _told(ratio), emphasis=_of_part(result, part, row))
        for row in result.rows
        for part, ratio in row.ratios.items()
    ]
    if not rows:
        return None
    null = [
        Row(f"{first} against itself, {part}", _estimate(other), (("speed", str(other)),), emphasis=Emphasis.FAINT)
        for part, other in result.null.items()
        if part == result.whole
    ]
    margin = max(ratio.margin for row in result.rows for ratio in row.ratios.values())
    return Intervals(
        title=f"Speed against {first}",
        text=f"With 95 % intervals; within the band, {margin:.1%}, they are equal.",
        axis=Axis("speed", f"times that of {first}"),
        rows=(*rows, *null),
        margin=margin,
    )


def _of_part(result: Comparison, part: str, row: Compared) -> Emphasis:
    """Return that the whole stands out: it is what is judged."""
    emphasis = _emphasis(result, row)
    return emphasis if part == result.whole else Emphasis.PLAIN if emphasis is Emphasis.CHOSEN else emphasis


def _estimate(ratio: Ratio) -> Estimate:
    return Estimate(ratio.speedup, ratio.low, ratio.high)


def _told(ratio: Ratio) -> Facts:
    return (("speed", f"{ratio} {ratio.verdict}"), ("equal within", f"{ratio.margin:.1%}"))
