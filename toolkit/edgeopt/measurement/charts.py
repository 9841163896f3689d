"""Times as charts: how slow the slow frames are, and how times go on over a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import FRAME, OVERHEAD, Samples
from edgeopt.measurement.statistics.quantile import StageTime, minimum_n
from edgeopt.report.figures import Axis, AxisScale, Bar, Bars, Curve, Emphasis, Facts, Figure, Limit, Lines
from edgeopt.system.order_statistic import order_statistic
from edgeopt.system.text import format_budget

_PERCENTILES = (1, 2, 5, *range(10, 90, 5), 90, 92, 94, 95, 96, 97, 98, 98.5, 99, 99.3, 99.5, 99.7, 99.8, 99.9)
_TOLD = (50, 90, 99, 99.9)
_MOST_DOTS = 500
_SPIKY = 8.0
"""Beyond this many medians, spikes would press all else flat: the axis becomes logarithmic."""
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run to be drawn."""

    name: str
    samples: Samples
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True)
class StagedRun:
    """One run, its mean stages to be drawn."""

    name: str
    frame: StageTime
    stages: Mapping[str, StageTime]
    emphasis: Emphasis = Emphasis.PLAIN


def ms(value: float) -> str:
    """Return milliseconds with their unit, three digits or more."""
    return f"{value:.3f} ms" if value < 1 else f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"


def budget_line(budget_ms: float) -> Limit:
    """Return a budget as a line."""
    return Limit(f"budget {format_budget(budget_ms)} ms", budget_ms)


def draw_run(name: str, samples: Samples, budget: Limit) -> tuple[Figure, ...]:
    """Return the charts of one run: where a frame's time goes, percentiles, and times in order."""
    times = {part: summary.stage_time for part, summary in samples.summary().items()}
    stages = {part: time for part, time in times.items() if part not in (FRAME, OVERHEAD)}
    run = TimedRun(name, samples, Emphasis.CHOSEN)
    figures = (
        draw_stages([StagedRun(name, times[FRAME], stages, Emphasis.CHOSEN)], budget),
        draw_percentiles([run], budget),
        draw_times([run], budget),
    )
    return tuple(figure for figure in figures if figure)


def draw_percentiles(runs: Sequence[TimedRun], budget: Limit | None) -> Lines | None:
    """Return the time of a whole over percentiles; only those that the number of them can tell.

    Args:
        runs: What arrives from outside counts from its intended arrival.
        budget: On the times.
    """
    lines = tuple(line for run in runs if (line := _percentiles(run)))
    if not lines:
        return None
    of = (
        lines[0]
        if len(lines) == 1
        else next((other for other in lines if other.emphasis is Emphasis.CHOSEN), lines[-1])
    )
    words = ", ".join(f"{label} {text}" for label, text in of.facts)
    return Lines(
        title=f"How slow the slow {_whole(runs)}s are",
        text=f"{of.name}: {words}.",
        x=Axis("percentile", "%", AxisScale.TAIL),
        y=Axis(_measured(runs), "ms", _scale([value for other in lines for value in other.ys])),
        lines=lines,
        limit=budget,
    )


def _measured(runs: Sequence[TimedRun]) -> str:
    """Return what is drawn: where frames arrive from outside, waiting counts."""
    if any(run.samples.intended_ns is not None for run in runs):
        return "time from arrival to answer"
    return f"{_whole(runs)} time"


def _whole(runs: Sequence[TimedRun]) -> str:
    """Return what was timed: a frame, an answer; all runs of a chart are of the same."""
    return runs[0].samples.whole


def _percentiles(run: TimedRun) -> Curve | None:
    times = np.sort(run.samples.steady().served().response_ns)
    known = [percentile for percentile in _PERCENTILES if len(times) >= minimum_n(percentile / 100)]
    if not known:
        return None
    values = {value: order_statistic(times, value / 100) / 1e6 for value in known}
    facts: Facts = tuple((f"p{one:g}", ms(values[one])) for one in _TOLD if one in values)
    return Curve(run.name, tuple(map(float, values)), tuple(values.values()), facts, run.emphasis)


def draw_times(runs: Sequence[TimedRun], budget: Limit | None) -> Lines | None:
    """Return times of wholes in order; of long runs the fastest and the slowest of each stretch."""
    lines = tuple(line for run in runs if (line := _times(run)))
    if not lines:
        return None
    frames, whole = max(len(run.samples) for run in runs), _whole(runs)
    per_stretch = -(-2 * frames // _MOST_DOTS) if frames > _MOST_DOTS else 1
    thinned = f" Of every {per_stretch} {whole}s the fastest and the slowest are shown." if per_stretch > 1 else ""
    return Lines(
        title="Times in order",
        text=f"Every {whole} after the one before it, warm-up included.{thinned}",
        x=Axis(whole, from_zero=True),
        y=Axis(_measured(runs), "ms", _scale([value for other in lines for value in other.ys])),
        lines=lines,
        limit=budget,
        is_dotted=True,
    )


def _times(run: TimedRun) -> Curve | None:
    times = run.samples.served().response_ns
    if not len(times):
        return None
    shown = thin(times, _MOST_DOTS)
    at, values = shown.astype(np.float64), times[shown] / 1e6
    warmup = int(run.samples.warmup.sum())
    wholes = f"{run.samples.whole}s"
    facts = (
        (wholes, str(len(times))),
        *((("warm-up", f"{warmup} {wholes}"),) if warmup else ()),
        ("fastest", ms(float(times.min()) / 1e6)),
        ("median", ms(float(np.median(times)) / 1e6)),
        ("slowest", ms(float(times.max()) / 1e6)),
    )
    return Curve(run.name, tuple(at.tolist()), tuple(values.tolist()), facts, run.emphasis)


def thin(values: NDArray[np.int64], most: int) -> NDArray[np.intp]:
    """Return (k,) rising indices of at most `most` values: of each stretch the least and the greatest."""
    if len(values) <= most:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), most // 2)
    return np.unique([stretch[pick(values[stretch])] for stretch in stretches for pick in (np.argmin, np.argmax)])


def _scale(values: Sequence[float]) -> AxisScale:
    is_spiky = min(values) > 0 and max(values) > _SPIKY * float(np.median(values))
    return AxisScale.LOG if is_spiky else AxisScale.LINEAR


def draw_stages(runs: Sequence[StagedRun], budget: Limit | None) -> Bars | None:
    """Return the mean time of each stage, which add up to the mean frame, and how far the p99 of the frame goes."""
    timed = [run for run in runs if run.frame.mean_ms]
    names = list(dict.fromkeys(name for staged_run in timed for name in staged_run.stages))
    means = {staged_run.name: {name: _mean(staged_run.stages.get(name)) for name in names} for staged_run in timed}
    shown = [
        name
        for name in names
        if any(means[staged_run.name][name] >= _LEAST_SHARE * _mean(staged_run.frame) for staged_run in timed)
    ]
    if not shown:
        return None
    rest = {
        staged_run.name: max(0.0, _mean(staged_run.frame) - sum(means[staged_run.name][name] for name in shown))
        for staged_run in timed
    }
    has_rest = any(rest[staged_run.name] >= _LEAST_SHARE * _mean(staged_run.frame) for staged_run in timed)
    bars = tuple(
        _bar(staged_run, {n: means[staged_run.name][n] for n in shown}, rest[staged_run.name], has_rest=has_rest)
        for staged_run in timed
    )
    largest = max(shown, key=lambda name: sum(means[staged_run.name][name] for staged_run in timed))
    share = sum(means[one.name][largest] for one in timed) / sum(_mean(one.frame) for one in timed)
    tail = " The thin line ends at the frame's p99." if any(bar.tail for bar in bars) else ""
    return Bars(
        title="Where a frame's time goes",
        text=f"Mean of each stage; {largest} takes {share:.0%}.{tail}",
        axis=Axis("time", "ms", from_zero=True),
        parts=(*shown, "between stages") if has_rest else tuple(shown),
        bars=bars,
        tail="frame p99" if any(bar.tail for bar in bars) else "",
        limit=budget,
    )


def _bar(run: StagedRun, means: Mapping[str, float], rest: float, *, has_rest: bool) -> Bar:
    frame = run.frame
    p50 = "" if frame.p50_ms is None else f"p50 {ms(frame.p50_ms)}"
    p99 = "" if frame.p99_ms is None else f"p99 {ms(frame.p99_ms)}"
    stages = [(name, ms(value)) for name, value in means.items() if value]
    facts = (
        ("frame", ", ".join(word for word in (p50, p99) if word) or f"mean {ms(_mean(frame))}"),
        *stages,
        *((("between stages", ms(rest)),) if has_rest else ()),
    )
    parts = (*means.values(), rest) if has_rest else tuple(means.values())
    return Bar(run.name, parts, facts, frame.p99_ms, run.emphasis)


def _mean(time: StageTime | None) -> float:
    return (time.mean_ms or 0.0) if time else 0.0
