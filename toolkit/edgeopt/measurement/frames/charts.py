"""The result of `bench` for a model that answers frames as charts."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.charts import ms
from edgeopt.measurement.frames.result import FrameBenchResult
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.beside import Arrangement, Beside
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.sustained import RunWindow, Sustained
from edgeopt.measurement.resources.energy import Energy
from edgeopt.measurement.resources.memory import MemoryTrace
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.resources.profile import Profile
from edgeopt.measurement.statistics.quantile import Quantile
from edgeopt.report.document import KeyFigure
from edgeopt.report.figures import (
    Axis,
    Bar,
    Bars,
    ChartPoint,
    Curve,
    Emphasis,
    Estimate,
    Facts,
    Figure,
    Limit,
    Lines,
    Points,
)
from edgeopt.system.text import format_budget, format_bytes

_TOP_NODES = 15
_MOST_WINDOWS_OF_MEMORY = 400
_LEAST_MEMORY_S = 10.0
"""Below, resident memory is a flat line."""


def key_figures(result: FrameBenchResult) -> tuple[KeyFigure, ...]:
    """Return times, memory, and what else was asked for."""
    frame = result.load.response or result.load.service
    found = [
        KeyFigure(f"{name}, {label}", ms(quantile.value_ms), _interval(quantile))
        for label, quantile in (("p50", frame.p50), ("p99", frame.p99))
        if (name := "Response" if result.load.response and result.plan.rate_per_s else "Frame time")
        and quantile.value_ms is not None
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
        found.append(KeyFigure("Cost", f"{passes.cost.per_thousand:.3g}", f"per 1000 inferences, {CURRENCY}"))
    return tuple(found)


def _interval(quantile: Quantile) -> str:
    if quantile.low_ns is None or quantile.high_ns is None:
        return f"{quantile.n} frames"
    return f"95 % interval {quantile.low_ns / 1e6:.3g} to {quantile.high_ns / 1e6:.3g} ms"


def _lines(name: str, pairs: Sequence[tuple[float, float | None]], emphasis: Emphasis) -> tuple[Curve, ...]:
    known = [(x, y) for x, y in pairs if y is not None]
    if len(known) < 2:
        return ()
    xs, ys = zip(*known, strict=True)
    facts = (("least", ms(min(ys))), ("most", ms(max(ys))))
    return (Curve(name, xs, ys, facts, emphasis),)


def draw_sustained(sustained: Sustained) -> tuple[Figure, ...]:
    """Return median and p99 over the run."""

    def at(window: RunWindow) -> float:
        return (window.begin_s + window.end_s) / 2

    lines = (
        *_lines("p50", [(at(window), window.p50.value_ms) for window in sustained.windows], Emphasis.CHOSEN),
        *_lines("p99", [(at(window), window.p99.value_ms) for window in sustained.windows], Emphasis.PLAIN),
    )
    if not lines:
        return ()
    ratio = "" if sustained.ratio is None else f"The last fifth takes {sustained.ratio:.3f} times as long as the first."
    x, y = Axis("time", "s", from_zero=True), Axis("frame time", "ms", from_zero=True)
    return (Lines(title="Frame times over the run", text=ratio, x=x, y=y, lines=lines),)


def draw_capacity(capacity: Capacity, budget: Limit) -> tuple[Figure, ...]:
    """Return response times over the rate at which frames arrive."""

    def times(part: str) -> list[tuple[float, float | None]]:
        return [(probe.rate_per_s, _response(probe, part)) for probe in capacity.probes]

    lines = (*_lines("p50", times("p50"), Emphasis.PLAIN), *_lines("p99", times("p99"), Emphasis.CHOSEN))
    if not lines:
        return ()
    rate = (
        "No rate keeps the budget."
        if capacity.rate_per_s is None
        else f"{capacity.rate_per_s:.4g} per s keep the budget."
    )
    x, y = Axis("frames arriving", "per s"), Axis("response", "ms", from_zero=True)
    return (Lines(title="Latency over load", text=rate, x=x, y=y, lines=lines, limit=budget),)


def _response(probe: Probe, part: str) -> float | None:
    quantile: Quantile | None = getattr(probe.result.response, part) if probe.result.response else None
    return quantile.value_ms if quantile else None


def draw_batches(points: Sequence[BatchPoint]) -> tuple[Figure, ...]:
    """Return throughput over latency, a point a batch size."""
    shown = tuple(
        ChartPoint(
            f"batch {point.size}",
            Estimate(p50),
            Estimate(point.throughput_per_s),
            (
                ("frames", f"{point.throughput_per_s:.4g} per s"),
                ("p50", ms(p50)),
                ("p50 a frame", ms(p50 / point.size)),
            ),
        )
        for point in points
        if (p50 := point.latency.p50.value_ms) is not None
    )
    if not shown:
        return ()
    most = max(points, key=lambda point: point.throughput_per_s)
    text = f"Batches of {most.size} serve the most frames, {most.throughput_per_s:.4g} per s."
    x, y = Axis("time of a batch, p50", "ms"), Axis("throughput", "frames per s")
    return (Points(title="Throughput against latency", text=text, x=x, y=y, points=shown),)


def draw_beside(found: Beside) -> tuple[Figure, ...]:
    """Return what a frame of each model takes in each arrangement."""
    emphases = {Arrangement.ALONE: Emphasis.FIRST, Arrangement.BESIDE: Emphasis.FAINT}
    bars = tuple(
        Bar(
            f"{share.name}, {share.arrangement}",
            (share.p50_ms,),
            (("p50", ms(share.p50_ms)), ("p99", ms(share.p99_ms)), ("p99 to alone", str(share.p99_ratio or "1"))),
            share.p99_ms,
            emphases.get(share.arrangement, Emphasis.CHOSEN),
        )
        for share in found.shares
    )
    first = found.share(0, Arrangement.ALONE)
    beside, scheduled = (found.share(0, arrangement) for arrangement in (Arrangement.BESIDE, Arrangement.SCHEDULED))
    tails = f"{ms(first.p99_ms)} alone, {ms(beside.p99_ms)} beside and {ms(scheduled.p99_ms)} scheduled"
    text = f"1 in 100 frames of {first.name} takes more than {tails}."
    axis = Axis("from arrival to answer", "ms", from_zero=True)
    return (
        Bars(title="Half of the frames, and 99 of 100", text=text, axis=axis, parts=("p50",), bars=bars, tail="p99"),
    )


def draw_operators(profile: Profile) -> tuple[Figure, ...]:
    """Return the nodes that take the most time."""
    runs = max(1, profile.runs)
    bars = tuple(
        Bar(
            node_time.name,
            (node_time.total_us / runs,),
            _node_facts(node_time.share_ratio, node_time.total_us / runs, node_time.op, node_time.provider),
        )
        for node_time in profile.top(_TOP_NODES)
    )
    if not bars:
        return ()
    share = sum(node_time.share_ratio for node_time in profile.top(_TOP_NODES))
    text = f"These {len(bars)} nodes take {share:.0%}. Profiling slows nodes: believe the shares, not the times."
    axis = Axis("time a run", "us", from_zero=True)
    return (Bars(title="Slowest nodes", text=text, axis=axis, parts=("time",), bars=bars),)


def _node_facts(share: float, us: float, op: str, provider: str) -> Facts:
    return (("share", f"{share:.1%}"), ("a run", f"{us:.0f} us"), ("op", op), ("provider", provider))


def draw_memory(memory_trace: MemoryTrace) -> tuple[Figure, ...]:
    """Return resident memory over the run; nothing for a short one."""
    if len(memory_trace.at_ns) < 2 or (memory_trace.at_ns[-1] - memory_trace.at_ns[0]) / 1e9 < _LEAST_MEMORY_S:
        return ()
    step = -(-len(memory_trace.at_ns) // _MOST_WINDOWS_OF_MEMORY)
    at_s = ((memory_trace.at_ns[::step] - memory_trace.at_ns[0]) / 1e9).tolist()
    mib = (memory_trace.rss_bytes[::step] / 2**20).tolist()
    facts = (("at the end", f"{mib[-1]:.1f} MiB"), ("most", f"{max(mib):.1f} MiB"))
    line = Curve("resident", tuple(at_s), tuple(mib), facts, Emphasis.CHOSEN)
    x, y = Axis("time", "s", from_zero=True), Axis("resident memory", "MiB")
    return (Lines(title="Memory over the run", text="Of the measuring process.", x=x, y=y, lines=(line,)),)
