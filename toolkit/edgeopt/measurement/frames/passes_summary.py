"""Measurements beside the run as sections of the document of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgeopt.measurement.bench.columns import Cell, timed
from edgeopt.measurement.frames import charts
from edgeopt.measurement.frames.passes import Passes
from edgeopt.measurement.fresh_process.summary import cold_section
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.beside import Arrangement, Beside, ModelShare
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.result import LoadStatus
from edgeopt.measurement.load.sustained import RunWindow, Sustained
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


def _sustained(sustained: Sustained) -> Section:
    ratio = "n/a" if sustained.ratio is None else f"{sustained.ratio:.3f}"
    bounds = (
        ""
        if sustained.ratio_low is None or sustained.ratio_high is None
        else _interval(sustained.ratio_low, sustained.ratio_high)
    )
    lines = [Value("ratio", f"last fifth over first fifth, medians: {ratio}{bounds}")]
    if sustained.slow_from_s is not None:
        lines.append(Value("slow", f"more than 5 % slower from {sustained.slow_from_s:.0f} s to the end"))
    if sustained.throttled_from_s is not None:
        lines.append(Value("throttled", f"from {sustained.throttled_from_s:.0f} s on"))
    if sustained.missing:
        lines.append(Value("sensors", f"not on this machine: {', '.join(sustained.missing)}"))
    columns: dict[str, Callable[[RunWindow], str]] = {
        "seconds": lambda window: f"{window.begin_s:.1f}-{window.end_s:.1f}",
        "frames": lambda window: str(window.frames),
        "per s": lambda window: f"{window.frames_per_s:.4g}",
        "p50": timed("p50"),
        "p99": timed("p99"),
        "hottest C": lambda window: _whole(window.temperature_c),
        "fastest MHz": lambda window: _whole(window.frequency_mhz),
    }
    table = make_table(sustained.windows, columns)
    return Section("Over time (ms)", table, values=tuple(lines), figures=charts.draw_sustained(sustained))


def _whole(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"


def _interval(low: float, high: float) -> str:
    return f" [{low:.3f}, {high:.3f}]"


def _capacity(capacity: Capacity, budget: Limit) -> Section:
    rate = "no rate keeps the budget" if capacity.rate_per_s is None else f"{capacity.rate_per_s:.4g} per second"
    lines = [Value("capacity", f"{rate}, all streams together; latency counts from the intended arrival")]
    lines += [Value("note", capacity.note)] if capacity.note else []

    def response(figure: str, without: str = "") -> Cell:
        cell = timed(f"result.response.{figure}")
        return lambda probe: cell(probe) if probe.result.response else without

    columns: dict[str, Callable[[Probe], str]] = {
        "per s": lambda probe: f"{probe.rate_per_s:.4g}",
        "offered": lambda probe: "" if probe.result.offered_ratio is None else f"{probe.result.offered_ratio:.2f}",
        "p50": response("p50", "queue grows"),
        **{name: response(name) for name in ("p90", "p99", "max")},
        "missed": lambda probe: f"{probe.result.budget.miss_ratio:.2%}",
        "at most": lambda probe: f"{probe.result.budget.miss_high_ratio:.2%}",
        "dropped": lambda probe: f"{probe.result.dropped_ratio:.1%}",
        "verdict": lambda probe: (
            "INVALID" if probe.result.status is LoadStatus.INVALID else probe.result.budget.verdict.upper()
        ),
    }
    table = make_table(capacity.probes, columns, words=["verdict"], less=["max", "p90", "offered", "dropped"])
    figures = charts.draw_capacity(capacity, budget)
    return Section("Latency over load (ms)", table, values=tuple(lines), figures=figures)


def _batches(points: Sequence[BatchPoint]) -> Section:
    columns: dict[str, Callable[[BatchPoint], str]] = {
        "batch": lambda batch_point: str(batch_point.size),
        "frames per s": lambda batch_point: f"{batch_point.throughput_per_s:.4g}",
        **{name: timed(f"latency.{name}") for name in ("p50", "p90", "p99", "max")},
        "p50 a frame": lambda batch_point: format_ms(
            batch_point.latency.p50.value_ns and batch_point.latency.p50.value_ns / batch_point.size
        ),
    }
    return Section("Batches (ms)", make_table(points, columns), figures=charts.draw_batches(points))


def _beside(beside: Beside) -> Section:
    names = [beside.share(place, Arrangement.ALONE).name for place in (0, 1)]
    columns: dict[str, Callable[[ModelShare], str]] = {
        "model": lambda share: share.name if share.arrangement is Arrangement.ALONE else "",
        "runs": lambda share: str(share.arrangement),
        "p50": lambda share: f"{share.p50_ms:.2f}",
        "p99": lambda share: f"{share.p99_ms:.2f}",
        "p99 to alone": lambda share: "" if share.p99_ratio is None else str(share.p99_ratio),
        "per s": lambda share: f"{share.answers_per_s:.4g}",
        "dropped": lambda share: str(share.dropped),
        "frames": lambda share: str(share.frames),
    }
    less = ("frames", "dropped", "per s", "p50")
    turns = "in turns" if beside.in_turns else "cores of their own"
    cores = {name: ", ".join(map(str, held)) for name, held in beside.cores.items() if held}
    where = "; ".join(f"{name} on {held}" for name, held in cores.items())
    values = (
        Value("scheduled", f"{turns}, {names[0]} first", more=where),
        Value("p99 to alone", "times as fast as alone, over the rounds; 1x: as if nobody else ran"),
    )
    table = make_table(beside.shares, columns, words=["model", "runs"], less=less)
    return Section("Two models on one device (ms)", table, values=values, figures=charts.draw_beside(beside))


def _operators(profile: Profile) -> Section:
    columns: dict[str, Callable[[NodeTime], str]] = {
        "node": lambda node_time: node_time.name,
        "op": lambda node_time: node_time.op,
        "provider": lambda node_time: node_time.provider.removesuffix("ExecutionProvider"),
        "share": lambda node_time: f"{node_time.share_ratio:.1%}",
        "us a run": lambda node_time: f"{node_time.total_us / max(1, profile.runs):.0f}",
        "output": lambda node_time: ", ".join(node_time.output_shapes[:2]),
    }
    by_op = ", ".join(f"{op} {share:.0%}" for op, share in list(profile.share_by_op().items())[:6])
    values = (
        Value("by op", by_op),
        Value(
            "pass", f"{profile.runs} runs of their own: believe the shares, not the times", more="profiling slows nodes"
        ),
        Value("outside", f"{profile.outside_ratio:.0%} of these runs lies between nodes, and in the profiler"),
    )
    table = make_table(profile.top(_TOP_NODES), columns, words=["op", "provider", "output"])
    return Section("Operators", table, values=values, figures=charts.draw_operators(profile))
