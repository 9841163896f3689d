"""The result of `optimize` as charts."""

from __future__ import annotations

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import Quantile, quantile
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.report.result import FramesReport
from edgeopt.optimization.result import ModelReport
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import Axis, ChartPoint, Emphasis, Estimate, Facts, Figure, Intervals, Limit, Points, Row
from edgeopt.system.text import format_budget, format_bytes, format_drop, format_score


def key_figures(report: FramesReport) -> tuple[KeyFigure, ...]:
    """Return speed, slowest frames, accuracy and size of what was chosen."""
    best, first = report.best, report.candidates[0]
    result = []
    if speed := report.deployed_speed:
        proof = f"95 % interval {speed.low:.2f} to {speed.high:.2f}"
        result.append(KeyFigure("Speed, whole frames", f"{speed.speedup:.2f}x", proof))
    if best.latency:
        frame = best.latency.frame
        value = frame.p50_ms if frame.p99_ms is None else frame.p99_ms
        label = "Frame time, p50" if frame.p99_ms is None else "Frame time, p99"
        if value is not None:
            result.append(KeyFigure(label, ms(value), f"budget {format_budget(report.budget_ms)} ms"))
    if accuracy := accuracy_of(best):
        lost = f"{best.word}: drop {format_drop(best.drop)}, was {_accuracy_or(first)}" if best.drop is not None else ""
        result.append(KeyFigure(report.metric, format_score(accuracy.value), lost or "of the original"))
    elif best.agreement is not None:
        known = best.judgement.agreement if best.judgement and best.judgement.agreement is not None else best.agreement
        word = f"{best.word}: " if best.word else ""
        result.append(KeyFigure("Agreement", f"{known:.3f}", f"{word}with the original's answers, no labels"))
    change = "" if best is first else f"was {format_bytes(first.size_bytes)}"
    result.append(KeyFigure("Size", format_bytes(best.size_bytes), change))
    return tuple(result)


def _accuracy_or(candidate: Candidate) -> str:
    return format_score(candidate.score.value) if candidate.score else "the original's"


def overview(report: ModelReport) -> tuple[Figure, ...]:
    """Return what decides: accuracy over time, and the proof of the speed."""
    figures = (_front(report), _speeds(report))
    return tuple(figure for figure in figures if figure)


def stage_charts(report: ModelReport) -> tuple[Figure, ...]:
    """Return stages, percentiles and times in order."""
    budget = budget_of(report)
    runs = [
        TimedRun(candidate.name, samples, emphasis_of(report, candidate))
        for candidate in report.candidates
        if (samples := samples_of(report, candidate))
    ]
    few = [run for run in runs if run.emphasis in (Emphasis.CHOSEN, Emphasis.FIRST)]
    figures = (stages_of(report), draw_percentiles(runs, budget), draw_times(few, budget))
    return tuple(figure for figure in figures if figure)


def stages_of(report: FramesReport) -> Figure | None:
    """Return what each stage takes, candidate by candidate."""
    staged = [
        StagedRun(candidate.name, candidate.latency.frame, candidate.latency.stages, emphasis_of(report, candidate))
        for candidate in report.candidates
        if candidate.latency
    ]
    return draw_stages(staged, budget_of(report))


def budget_of(report: FramesReport) -> Limit:
    """Return the budget as a line."""
    return Limit(f"budget {format_budget(report.budget_ms)} ms", report.budget_ms)


def samples_of(report: ModelReport, candidate: Candidate) -> Samples | None:
    """Return the raw samples of the very latency that a candidate reports; None where they are not here."""
    if candidate.latency is None:
        return None
    try:
        samples = Samples.read((report.folder / candidate.file).with_name("samples.npz"))
    except InvalidFileError:
        return None
    return (
        samples
        if quantile(samples.steady().served().response_ns, 0.5).value_ms == candidate.latency.frame.p50_ms
        else None
    )


def emphasis_of(report: FramesReport, candidate: Candidate) -> Emphasis:
    """Return how much a candidate stands out in every chart."""
    if candidate.name == report.chosen:
        return Emphasis.CHOSEN
    if candidate.name == BASELINE:
        return Emphasis.FIRST
    return Emphasis.PLAIN if candidate.on_front else Emphasis.FAINT


def accuracy_of(candidate: Candidate) -> Estimate | None:
    """Return the metric with what the interval of the drop leaves of it."""
    score = candidate.simulated or candidate.score
    if score is None:
        return None
    judged = candidate.judgement
    if judged is None or judged.drop is None or judged.drop_least is None or judged.drop_most is None:
        return Estimate(score.value)
    original = score.value + judged.drop
    return Estimate(score.value, original - judged.drop_most, original - judged.drop_least)


def _front(report: ModelReport) -> Points | None:
    timed = [
        candidate for candidate in report.candidates if candidate.latency and candidate.latency.frame.p50_ms is not None
    ]
    is_scored = bool(timed) and all(accuracy_of(candidate) for candidate in timed)
    points = tuple(point for candidate in timed if (point := _point(report, candidate, is_scored=is_scored)))
    if len(points) < 2:
        return None
    axis = Axis(report.metric) if is_scored else Axis("agreement with the original")
    chosen = next((other for other in points if other.name == report.chosen), points[-1])
    return Points(
        title="Accuracy against time",
        text=f"{chosen.name} is chosen: {axis.label} {format_score(chosen.y.value)} at {ms(chosen.x.value)}. "
        "Up and left is better; whiskers are 95 % intervals, pale candidates are beaten by another.",
        x=Axis("frame time, p50", "ms"),
        y=axis,
        points=points,
        limit=budget_of(report),
    )


def _point(report: ModelReport, candidate: Candidate, *, is_scored: bool) -> ChartPoint | None:
    p50 = candidate.latency.frame.p50_ms if candidate.latency else None
    known = 1.0 if candidate.name == BASELINE else candidate.agreement
    y = accuracy_of(candidate) if is_scored else None if known is None else Estimate(known)
    if p50 is None or y is None:
        return None
    samples = samples_of(report, candidate)
    found = quantile(samples.steady().served().response_ns, 0.5) if samples else None
    x = Estimate(p50, *_ends_ms(found))
    return ChartPoint(candidate.name, x, y, facts_of(report, candidate), emphasis_of(report, candidate))


def _ends_ms(found: Quantile | None) -> tuple[float | None, float | None]:
    if found is None or found.low_ns is None or found.high_ns is None:
        return None, None
    return found.low_ns / 1e6, found.high_ns / 1e6


def facts_of(report: ModelReport, candidate: Candidate) -> Facts:
    """Return all figures of a candidate."""
    accuracy, latency = accuracy_of(candidate), candidate.latency
    times = {} if latency is None else {"frame p50": latency.frame.p50_ms, "frame p99": latency.frame.p99_ms}
    known = {
        "speed": f"{candidate.speed} {candidate.speed.verdict}" if candidate.speed else "",
        **{label: ms(value) for label, value in times.items() if value is not None},
        report.metric: format_score(accuracy.value) if accuracy else "",
        "accuracy": f"{candidate.word}: {candidate.judgement}" if candidate.judgement else "",
        "agreement": f"{candidate.agreement:.3f}" if candidate.agreement is not None else "",
        "size": format_bytes(candidate.size_bytes),
        "runs on": f"{candidate.executor}, {candidate.precision}",
        "budget": report.budget_word(candidate),
        "refused": candidate.refused,
    }
    return tuple((label, text) for label, text in known.items() if text)


def _speeds(report: ModelReport) -> Intervals | None:
    """Return the speed of each candidate against the original."""
    timed = [(candidate, candidate.speed) for candidate in report.candidates if candidate.speed]
    if not timed:
        return None
    margin = max(speed.margin for _, speed in timed)
    rows = tuple(
        Row(
            candidate.name,
            Estimate(speed.speedup, speed.low, speed.high),
            (("speed", f"{speed} {speed.verdict}"), ("proof", _proof(speed.processes))),
            emphasis=emphasis_of(report, candidate),
        )
        for candidate, speed in timed
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
