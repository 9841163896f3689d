"""The result of `bench` as charts."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, ms
from edgeopt.measurement.fresh_process.start import POINTS, ColdStart
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.beside import Arrangement, Beside
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.sustained import Sustained, Window
from edgeopt.measurement.resources.energy import Energy
from edgeopt.measurement.resources.memory import MemoryTrace
from edgeopt.measurement.resources.profile import Profile
from edgeopt.measurement.statistics.quantile import Quantile
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import (
    Axis,
    Bar,
    Bars,
    Emphasis,
    Estimate,
    Facts,
    Figure,
    Limit,
    Line,
    Lines,
    Point,
    Points,
)
from edgeopt.system.text import format_budget, format_bytes

_TOP_NODES = 15
_MOST_WINDOWS_OF_MEMORY = 400
_LEAST_MEMORY_S = 10.0
"""Below, resident memory is a flat line."""


def key_figures(result: BenchResult) -> tuple[KeyFigure, ...]:
    """Return times, memory, and what else was asked for."""
    frame = result.load.response or result.load.service
    found = [
        KeyFigure(f"{name}, {label}", ms(one.value_ms), _interval(one))
        for label, one in (("p50", frame.p50), ("p99", frame.p99))
        if (name := "Response" if result.load.response and result.plan.rate_per_s else "Frame time")
        and one.value_ms is not None
    ]
    passes = result.passes
    if passes.capacity and passes.capacity.rate_per_s:
        rate = f"{passes.capacity.rate_per_s:.4g} per s"
        found.append(KeyFigure("Capacity", rate, f"highest rate within {format_budget(result.setup.budget_ms)} ms"))
    else:
        found.append(KeyFigure("Throughput", f"{result.load.throughput_per_s:.4g} per s", str(result.plan)))
    if result.memory.peak_bytes is not None:
        found.append(KeyFigure("Memory, peak", format_bytes(result.memory.peak_bytes), "of this process"))
    if passes.cold and passes.cold.runs:
        way = passes.cold.ways[0]
        first = passes.cold.figures(way)["to_first"].median_ns / 1e6
        found.append(KeyFigure("Cold start", ms(first), f"to the first answer, {passes.cold.label(way)}"))
    if isinstance(passes.energy, Energy):
        found.append(KeyFigure("Energy", f"{passes.energy.gross_j * 1e3:.3g} mJ", "an inference"))
    if passes.cost:
        found.append(
            KeyFigure("Cost", f"{passes.cost.per_thousand:.3g}", "per 1000 inferences, currency of the prices")
        )
    return tuple(found)


def _interval(one: Quantile) -> str:
    if one.low_ns is None or one.high_ns is None:
        return f"{one.n} frames"
    return f"95 % interval {one.low_ns / 1e6:.3g} to {one.high_ns / 1e6:.3g} ms"


def time_charts(result: BenchResult) -> tuple[Figure, ...]:
    """Return stages, percentiles and times in order."""
    budget, name = budget_of(result), result.name
    times = {stage: one.stage_time for stage, one in result.summary.items()}
    stages = {stage: one for stage, one in times.items() if stage not in ("frame", "overhead")}
    run = TimedRun(name, result.samples, Emphasis.CHOSEN)
    figures = (
        draw_stages([StagedRun(name, times["frame"], stages, Emphasis.CHOSEN)], budget),
        draw_percentiles([run], budget),
        draw_times([run], budget),
    )
    return tuple(one for one in figures if one)


def budget_of(result: BenchResult) -> Limit:
    """Return the budget as a line."""
    return Limit(f"budget {format_budget(result.setup.budget_ms)} ms", result.setup.budget_ms)


def _lines(name: str, pairs: Sequence[tuple[float, float | None]], emphasis: Emphasis) -> tuple[Line, ...]:
    known = [(x, y) for x, y in pairs if y is not None]
    if len(known) < 2:
        return ()
    xs, ys = zip(*known, strict=True)
    facts = (("least", ms(min(ys))), ("most", ms(max(ys))))
    return (Line(name, xs, ys, facts, emphasis),)


def draw_sustained(found: Sustained) -> tuple[Figure, ...]:
    """Return median and p99 over the run."""

    def at(one: Window) -> float:
        return (one.begin_s + one.end_s) / 2

    lines = (
        *_lines("p50", [(at(one), one.p50.value_ms) for one in found.windows], Emphasis.CHOSEN),
        *_lines("p99", [(at(one), one.p99.value_ms) for one in found.windows], Emphasis.PLAIN),
    )
    if not lines:
        return ()
    ratio = "" if found.ratio is None else f"The last fifth takes {found.ratio:.3f} times as long as the first."
    x, y = Axis("time", "s", from_zero=True), Axis("frame time", "ms", from_zero=True)
    return (Lines(title="Frame times over the run", text=ratio, x=x, y=y, lines=lines),)


def draw_capacity(found: Capacity, budget: Limit) -> tuple[Figure, ...]:
    """Return response times over the rate at which frames arrive."""

    def times(part: str) -> list[tuple[float, float | None]]:
        return [(one.rate_per_s, _response(one, part)) for one in found.probes]

    lines = (*_lines("p50", times("p50"), Emphasis.PLAIN), *_lines("p99", times("p99"), Emphasis.CHOSEN))
    if not lines:
        return ()
    rate = "No rate keeps the budget." if found.rate_per_s is None else f"{found.rate_per_s:.4g} per s keep the budget."
    x, y = Axis("frames arriving", "per s"), Axis("response", "ms", from_zero=True)
    return (Lines(title="Latency over load", text=rate, x=x, y=y, lines=lines, limit=budget),)


def _response(one: Probe, part: str) -> float | None:
    found: Quantile | None = getattr(one.result.response, part) if one.result.response else None
    return found.value_ms if found else None


def draw_batches(points: Sequence[BatchPoint]) -> tuple[Figure, ...]:
    """Return throughput over latency, a point a batch size."""
    shown = tuple(
        Point(
            f"batch {one.size}",
            Estimate(p50),
            Estimate(one.throughput_per_s),
            (("frames", f"{one.throughput_per_s:.4g} per s"), ("p50", ms(p50)), ("p50 a frame", ms(p50 / one.size))),
        )
        for one in points
        if (p50 := one.latency.p50.value_ms) is not None
    )
    if not shown:
        return ()
    most = max(points, key=lambda one: one.throughput_per_s)
    text = f"Batches of {most.size} serve the most frames, {most.throughput_per_s:.4g} per s."
    x, y = Axis("time of a batch, p50", "ms"), Axis("throughput", "frames per s")
    return (Points(title="Throughput against latency", text=text, x=x, y=y, points=shown),)


def draw_beside(found: Beside) -> tuple[Figure, ...]:
    """Return what a frame of each model takes in each arrangement."""
    emphases = {Arrangement.ALONE: Emphasis.FIRST, Arrangement.BESIDE: Emphasis.FAINT}
    bars = tuple(
        Bar(
            f"{one.name}, {one.arrangement}",
            (one.p50_ms,),
            (("p50", ms(one.p50_ms)), ("p99", ms(one.p99_ms)), ("p99 to alone", str(one.p99_ratio or "1"))),
            one.p99_ms,
            emphases.get(one.arrangement, Emphasis.CHOSEN),
        )
        for one in found.shares
    )
    first = found.share(0, Arrangement.ALONE)
    beside, scheduled = (found.share(0, one) for one in (Arrangement.BESIDE, Arrangement.SCHEDULED))
    tails = f"{ms(first.p99_ms)} alone, {ms(beside.p99_ms)} beside and {ms(scheduled.p99_ms)} scheduled"
    text = f"1 in 100 frames of {first.name} takes more than {tails}."
    axis = Axis("from arrival to answer", "ms", from_zero=True)
    return (
        Bars(title="Half of the frames, and 99 of 100", text=text, axis=axis, parts=("p50",), bars=bars, tail="p99"),
    )


def draw_cold(found: ColdStart) -> tuple[Figure, ...]:
    """Return the parts of a start, a bar a way of starting."""
    parts = POINTS[: POINTS.index("second")]
    bars = []
    for way in found.ways:
        figures = found.figures(way)
        times = {name: figures[name].median_ns / 1e6 for name in parts}
        facts = (
            ("to first answer", ms(figures["to_first"].median_ns / 1e6)),
            *((name, ms(times[name])) for name in parts),
        )
        bars.append(Bar(found.label(way), tuple(times.values()), facts))
    if not bars:
        return ()
    axis = Axis("time", "ms", from_zero=True)
    text = f"Medians of {len(found.runs) // len(bars)} fresh processes each."
    return (Bars(title="From start to first answer", text=text, axis=axis, parts=parts, bars=tuple(bars)),)


def draw_operators(found: Profile) -> tuple[Figure, ...]:
    """Return the nodes that take the most time."""
    runs = max(1, found.runs)
    bars = tuple(
        Bar(one.name, (one.total_us / runs,), _node_facts(one.share_ratio, one.total_us / runs, one.op, one.provider))
        for one in found.top(_TOP_NODES)
    )
    if not bars:
        return ()
    share = sum(one.share_ratio for one in found.top(_TOP_NODES))
    text = f"These {len(bars)} nodes take {share:.0%}. Profiling slows nodes: believe the shares, not the times."
    axis = Axis("time a run", "us", from_zero=True)
    return (Bars(title="Slowest nodes", text=text, axis=axis, parts=("time",), bars=bars),)


def _node_facts(share: float, us: float, op: str, provider: str) -> Facts:
    return (("share", f"{share:.1%}"), ("a run", f"{us:.0f} us"), ("op", op), ("provider", provider))


def draw_memory(found: MemoryTrace) -> tuple[Figure, ...]:
    """Return resident memory over the run; nothing for a short one."""
    if len(found.at_ns) < 2 or (found.at_ns[-1] - found.at_ns[0]) / 1e9 < _LEAST_MEMORY_S:
        return ()
    step = -(-len(found.at_ns) // _MOST_WINDOWS_OF_MEMORY)
    at_s = ((found.at_ns[::step] - found.at_ns[0]) / 1e9).tolist()
    mib = (found.rss_bytes[::step] / 2**20).tolist()
    facts = (("at the end", f"{mib[-1]:.1f} MiB"), ("most", f"{max(mib):.1f} MiB"))
    line = Line("resident", tuple(at_s), tuple(mib), facts, Emphasis.CHOSEN)
    x, y = Axis("time", "s", from_zero=True), Axis("resident memory", "MiB")
    return (Lines(title="Memory over the run", text="Of the measuring process.", x=x, y=y, lines=(line,)),)
