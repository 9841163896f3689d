"""The result of `optimize` as charts."""

from __future__ import annotations

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import Quantile, quantile
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.result import Report
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import Axis, Emphasis, Estimate, Facts, Figure, Intervals, Limit, Point, Points, Row
from edgeopt.system.text import format_budget, format_bytes


def key_figures(report: Report) -> tuple[KeyFigure, ...]:
    """Return speed, slowest frames, accuracy and size of what was chosen."""
    best, first = report.best, report.candidates[0]
    found = []
    if best.speed:
        proof = f"95 % interval {best.speed.low:.2f} to {best.speed.high:.2f}"
        found.append(KeyFigure("Speed, whole frames", f"{best.speed.speedup:.2f}x", proof))
    if best.latency:
        frame = best.latency.frame
        value = frame.p50_ms if frame.p99_ms is None else frame.p99_ms
        label = "Frame time, p50" if frame.p99_ms is None else "Frame time, p99"
        if value is not None:
            found.append(KeyFigure(label, ms(value), f"budget {format_budget(report.budget_ms)} ms"))
    if accuracy := accuracy_of(best):
        lost = f"{best.word}: drop {best.drop:+.4f}, was {_accuracy_or(first)}" if best.drop is not None else ""
        found.append(KeyFigure(report.metric, f"{accuracy.value:.4f}", lost or "of the original"))
    elif best.agreement is not None:
        known = best.judgement.agreement if best.judgement and best.judgement.agreement is not None else best.agreement
        word = f"{best.word}: " if best.word else ""
        found.append(KeyFigure("Agreement", f"{known:.3f}", f"{word}with the original's answers, no labels"))
    change = "" if best is first else f"was {format_bytes(first.size_bytes)}"
    found.append(KeyFigure("Size", format_bytes(best.size_bytes), change))
    return tuple(found)


def _accuracy_or(one: Candidate) -> str:
    return f"{one.score.value:.4f}" if one.score else "the original's"


def overview(report: Report) -> tuple[Figure, ...]:
    """Return what decides: accuracy over time, and the proof of the speed."""
    figures = (_front(report), _speeds(report))
    return tuple(one for one in figures if one)


def stage_charts(report: Report) -> tuple[Figure, ...]:
    """Return stages, percentiles and times in order."""
    budget = budget_of(report)
    staged = [
        StagedRun(one.name, one.latency.frame, one.latency.stages, emphasis_of(report, one))
        for one in report.candidates
        if one.latency
    ]
    runs = [
        TimedRun(one.name, found, emphasis_of(report, one))
        for one in report.candidates
        if (found := samples_of(report, one))
    ]
    few = [one for one in runs if one.emphasis in (Emphasis.CHOSEN, Emphasis.FIRST)]
    figures = (draw_stages(staged, budget), draw_percentiles(runs, budget), draw_times(few, budget))
    return tuple(one for one in figures if one)


def budget_of(report: Report) -> Limit:
    """Return the budget as a line."""
    return Limit(f"budget {format_budget(report.budget_ms)} ms", report.budget_ms)


def samples_of(report: Report, one: Candidate) -> Samples | None:
    """Return the raw samples of the very latency that a candidate reports; None where they are not here."""
    if one.latency is None:
        return None
    try:
        found = Samples.read((report.folder / one.file).with_name("samples.npz"))
    except InvalidFileError:
        return None
    return found if quantile(found.steady().served().frame_ns, 0.5).value_ms == one.latency.frame.p50_ms else None


def emphasis_of(report: Report, one: Candidate) -> Emphasis:
    """Return how much a candidate stands out in every chart."""
    if one.name == report.chosen:
        return Emphasis.CHOSEN
    if one.name == BASELINE:
        return Emphasis.FIRST
    return Emphasis.PLAIN if one.on_front else Emphasis.FAINT


def accuracy_of(one: Candidate) -> Estimate | None:
    """Return the metric with what the interval of the drop leaves of it."""
    score = one.simulated or one.score
    if score is None:
        return None
    judged = one.judgement
    if judged is None or judged.drop is None or judged.drop_least is None or judged.drop_most is None:
        return Estimate(score.value)
    original = score.value + judged.drop
    return Estimate(score.value, original - judged.drop_most, original - judged.drop_least)


def _front(report: Report) -> Points | None:
    timed = [one for one in report.candidates if one.latency and one.latency.frame.p50_ms is not None]
    is_scored = bool(timed) and all(accuracy_of(one) for one in timed)
    points = tuple(point for one in timed if (point := _point(report, one, is_scored=is_scored)))
    if len(points) < 2:
        return None
    axis = Axis(report.metric) if is_scored else Axis("agreement with the original")
    chosen = next((one for one in points if one.name == report.chosen), points[-1])
    return Points(
        title="Accuracy against time",
        text=f"{chosen.name} is chosen: {axis.label} {chosen.y.value:.4f} at {ms(chosen.x.value)}. "
        "Up and left is better; whiskers are 95 % intervals, pale candidates are beaten by another.",
        x=Axis("frame time, p50", "ms"),
        y=axis,
        points=points,
        limit=budget_of(report),
    )


def _point(report: Report, one: Candidate, *, is_scored: bool) -> Point | None:
    p50 = one.latency.frame.p50_ms if one.latency else None
    known = 1.0 if one.name == BASELINE else one.agreement
    y = accuracy_of(one) if is_scored else None if known is None else Estimate(known)
    if p50 is None or y is None:
        return None
    samples = samples_of(report, one)
    found = quantile(samples.steady().served().frame_ns, 0.5) if samples else None
    x = Estimate(p50, *_ends_ms(found))
    return Point(one.name, x, y, facts_of(report, one), emphasis_of(report, one))


def _ends_ms(found: Quantile | None) -> tuple[float | None, float | None]:
    if found is None or found.low_ns is None or found.high_ns is None:
        return None, None
    return found.low_ns / 1e6, found.high_ns / 1e6


def facts_of(report: Report, one: Candidate) -> Facts:
    """Return all figures of a candidate."""
    accuracy, latency = accuracy_of(one), one.latency
    times = {} if latency is None else {"frame p50": latency.frame.p50_ms, "frame p99": latency.frame.p99_ms}
    known = {
        "speed": f"{one.speed} {one.speed.verdict}" if one.speed else "",
        **{label: ms(value) for label, value in times.items() if value is not None},
        report.metric: f"{accuracy.value:.4f}" if accuracy else "",
        "accuracy": f"{one.word}: {one.judgement}" if one.judgement else "",
        "agreement": f"{one.agreement:.3f}" if one.agreement is not None else "",
        "size": format_bytes(one.size_bytes),
        "runs on": f"{one.executor}, {one.precision}",
        "budget": report.budget_word(one),
        "refused": one.refused,
    }
    return tuple((label, text) for label, text in known.items() if text)


def _speeds(report: Report) -> Intervals | None:
    """Return the speed of each candidate against the original."""
    timed = [(one, one.speed) for one in report.candidates if one.speed]
    if not timed:
        return None
    margin = max(speed.margin for _, speed in timed)
    rows = tuple(
        Row(
            one.name,
            Estimate(speed.speedup, speed.low, speed.high),
            (("speed", f"{speed} {speed.verdict}"), ("proof", _proof(speed.processes))),
            emphasis=emphasis_of(report, one),
        )
        for one, speed in timed
    )
    return Intervals(
        title="Speed against the original",
        text=f"Whole frames with 95 % intervals; within the band, {margin:.1%}, nothing differs.",
        axis=Axis("speed", "times the original's"),
        rows=rows,
        margin=margin,
    )


def _proof(processes: int) -> str:
    return f"{processes} fresh processes" if processes > 1 else "one process"
