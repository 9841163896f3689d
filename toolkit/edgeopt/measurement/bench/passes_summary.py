"""What `bench` measured beside the run itself, as sections of its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgeopt.measurement.bench import charts
from edgeopt.measurement.bench.passes import Passes
from edgeopt.measurement.fresh_process.start import POINTS, ColdStart, ColdWay
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.beside import Arrangement, Beside, Share
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.result import LoadStatus
from edgeopt.measurement.load.sustained import Sustained, Window
from edgeopt.measurement.resources.profile import NodeTime, Profile
from edgeopt.report.document import Section, Value, make_table
from edgeopt.report.figures import Limit
from edgeopt.system.text import format_ms

_TOP_NODES = 10


def summarize_passes(passes: Passes, budget: Limit) -> Iterator[Section]:
    """Yield a section for each pass that was asked for.

    Args:
        passes: What was measured.
        budget: As a line in charts.
    """
    if passes.sustained:
        yield _sustained(passes.sustained)
    if passes.capacity:
        yield _capacity(passes.capacity, budget)
    if passes.batches:
        yield _batches(passes.batches)
    if passes.beside:
        yield _beside(passes.beside)
    if passes.cold:
        yield cold_section(passes.cold)
    if passes.profile:
        yield _operators(passes.profile)


def _sustained(found: Sustained) -> Section:
    ratio = "n/a" if found.ratio is None else f"{found.ratio:.3f}"
    bounds = "" if found.ratio_low is None or found.ratio_high is None else _interval(found.ratio_low, found.ratio_high)
    lines = [Value("ratio", f"last fifth over first fifth, medians: {ratio}{bounds}")]
    if found.slow_from_s is not None:
        lines.append(Value("slow", f"more than 5 % slower from {found.slow_from_s:.0f} s to the end"))
    if found.throttled_from_s is not None:
        lines.append(Value("throttled", f"from {found.throttled_from_s:.0f} s on"))
    if found.missing:
        lines.append(Value("sensors", f"not on this machine: {', '.join(found.missing)}"))
    columns: dict[str, Callable[[Window], str]] = {
        "seconds": lambda one: f"{one.begin_s:.1f}-{one.end_s:.1f}",
        "frames": lambda one: str(one.frames),
        "per s": lambda one: f"{one.frames_per_s:.4g}",
        "p50": lambda one: format_ms(one.p50.value_ns),
        "p99": lambda one: format_ms(one.p99.value_ns),
        "hottest C": lambda one: _whole(one.temperature_c),
        "fastest MHz": lambda one: _whole(one.frequency_mhz),
    }
    table = make_table(found.windows, columns)
    return Section("Over time (ms)", table, values=tuple(lines), figures=charts.draw_sustained(found))


def _whole(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"


def _interval(low: float, high: float) -> str:
    return f" [{low:.3f}, {high:.3f}]"


def _capacity(found: Capacity, budget: Limit) -> Section:
    rate = "no rate keeps the budget" if found.rate_per_s is None else f"{found.rate_per_s:.4g} per second"
    lines = [Value("capacity", f"{rate}, all streams together; latency counts from the intended arrival")]
    lines += [Value("note", found.note)] if found.note else []
    columns: dict[str, Callable[[Probe], str]] = {
        "per s": lambda one: f"{one.rate_per_s:.4g}",
        "offered": lambda one: "" if one.result.offered_ratio is None else f"{one.result.offered_ratio:.2f}",
        "p50": lambda one: format_ms(one.result.response.p50.value_ns) if one.result.response else "queue grows",
        "p90": lambda one: format_ms(one.result.response.p90.value_ns) if one.result.response else "",
        "p99": lambda one: format_ms(one.result.response.p99.value_ns) if one.result.response else "",
        "max": lambda one: format_ms(one.result.response.max_ns) if one.result.response else "",
        "missed": lambda one: f"{one.result.budget.miss_ratio:.2%}",
        "at most": lambda one: f"{one.result.budget.miss_high_ratio:.2%}",
        "dropped": lambda one: f"{one.result.dropped_ratio:.1%}",
        "verdict": lambda one: (
            "INVALID" if one.result.status is LoadStatus.INVALID else one.result.budget.verdict.upper()
        ),
    }
    table = make_table(found.probes, columns, words=["verdict"], less=["max", "p90", "offered", "dropped"])
    figures = charts.draw_capacity(found, budget)
    return Section("Latency over load (ms)", table, values=tuple(lines), figures=figures)


def _batches(points: Sequence[BatchPoint]) -> Section:
    columns: dict[str, Callable[[BatchPoint], str]] = {
        "batch": lambda one: str(one.size),
        "frames per s": lambda one: f"{one.throughput_per_s:.4g}",
        "p50": lambda one: format_ms(one.latency.p50.value_ns),
        "p90": lambda one: format_ms(one.latency.p90.value_ns),
        "p99": lambda one: format_ms(one.latency.p99.value_ns),
        "max": lambda one: format_ms(one.latency.max_ns),
        "p50 a frame": lambda one: format_ms(one.latency.p50.value_ns and one.latency.p50.value_ns / one.size),
    }
    return Section("Batches (ms)", make_table(points, columns), figures=charts.draw_batches(points))


def _beside(found: Beside) -> Section:
    names = [found.share(place, Arrangement.ALONE).name for place in (0, 1)]
    columns: dict[str, Callable[[Share], str]] = {
        "model": lambda one: one.name if one.arrangement is Arrangement.ALONE else "",
        "runs": lambda one: str(one.arrangement),
        "p50": lambda one: f"{one.p50_ms:.2f}",
        "p99": lambda one: f"{one.p99_ms:.2f}",
        "p99 to alone": lambda one: "" if one.p99_ratio is None else str(one.p99_ratio),
        "per s": lambda one: f"{one.answers_per_s:.4g}",
        "dropped": lambda one: str(one.dropped),
        "frames": lambda one: str(one.frames),
    }
    less = ("frames", "dropped", "per s", "p50")
    turns = "in turns" if found.in_turns else "cores of their own"
    cores = {name: ", ".join(map(str, held)) for name, held in found.cores.items() if held}
    where = "; ".join(f"{name} on {held}" for name, held in cores.items())
    values = (
        Value("scheduled", f"{turns}, {names[0]} first", more=where),
        Value("p99 to alone", "times as fast as alone, over the rounds; 1x: as if nobody else ran"),
    )
    table = make_table(found.shares, columns, words=["model", "runs"], less=less)
    return Section("Two models on one device (ms)", table, values=values, figures=charts.draw_beside(found))


def cold_section(found: ColdStart, *told: Value) -> Section:
    """Return how long starts take, and what else is told of them."""
    ways = {str(number): way for number, way in enumerate(found.ways, 1)}
    figures = {number: found.figures(way) for number, way in ways.items()}
    rss_bytes = {number: found.rss_bytes(way)["first"] for number, way in ways.items()}

    def median(point: str) -> Callable[[str], str]:
        return lambda number: format_ms(figures[number][point].median_ns)

    columns: dict[str, Callable[[str], str]] = {
        "start": str,
        "to first answer": median("to_first"),
        **{point: median(point) for point in POINTS},
        "MiB at first": lambda number: _whole(None if (rss := rss_bytes[number]) is None else rss / 2**20),
        "p50 of to first": lambda number: str(figures[number]["to_first"].p50),
    }
    values = tuple(Value(f"start {number}", _told(found, way)) for number, way in ways.items())
    title, table = "Cold start, medians of fresh processes (ms)", make_table(ways, columns)
    return Section(title, table, values=(*values, *told), figures=charts.draw_cold(found))


def _told(found: ColdStart, way: ColdWay) -> str:
    first, faults = found.figures(way)["to_first"], found.major_faults(way)["first"]
    ends = f"{format_ms(first.min_ns)} to {format_ms(first.max_ns)} ms"
    read = "" if faults is None else f", {faults:.0f} pages read from disk"
    return f"{found.label(way)}: {first.n} processes, {ends}{read}"


def _operators(found: Profile) -> Section:
    columns: dict[str, Callable[[NodeTime], str]] = {
        "node": lambda one: one.name,
        "op": lambda one: one.op,
        "provider": lambda one: one.provider.removesuffix("ExecutionProvider"),
        "share": lambda one: f"{one.share_ratio:.1%}",
        "us a run": lambda one: f"{one.total_us / max(1, found.runs):.0f}",
        "output": lambda one: ", ".join(one.output_shapes[:2]),
    }
    by_op = ", ".join(f"{op} {share:.0%}" for op, share in list(found.share_by_op().items())[:6])
    values = (
        Value("by op", by_op),
        Value(
            "pass", f"{found.runs} runs of their own: believe the shares, not the times", more="profiling slows nodes"
        ),
        Value("outside", f"{found.outside_ratio:.0%} of these runs lies between nodes, and in the profiler"),
    )
    table = make_table(found.top(_TOP_NODES), columns, words=["op", "provider", "output"])
    return Section("Operators", table, values=values, figures=charts.draw_operators(found))
