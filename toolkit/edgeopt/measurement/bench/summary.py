"""The result of `bench` as tables and lines, for a terminal and for Markdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edgeopt.errors import EXIT_NOISY, NoteKind
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.fresh_process.start import POINTS, ColdStart
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.result import LoadResult, LoadStatus
from edgeopt.measurement.load.sustained import Sustained, Window
from edgeopt.measurement.resources.cost import InferenceCost
from edgeopt.measurement.resources.profile import Profile
from edgeopt.measurement.resources.trust import Reason
from edgeopt.measurement.statistics.quantile import Quantile, RoundsQuantile, Summary
from edgeopt.measurement.statistics.trend import Steadiness, Warmup
from edgeopt.report.page import render
from edgeopt.system.text import format_bytes, format_ms, plural

_TOP_NODES = 10
_NAME_WIDTH = 40

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a table, then lines of a word and what it says."""

    title: str = ""
    columns: Row = ()
    rows: tuple[Row, ...] = ()
    lines: tuple[tuple[str, str], ...] = ()


def make_sections(result: BenchResult) -> tuple[Section, ...]:
    """Return the report in reading order: what ran, the times, what was asked for beside it, what to make of it."""
    passes = result.passes
    found: list[Section | None] = [
        Section(lines=_what_ran(result)),
        Section("Stages (ms)", *_stage_table(result), lines=_about_times(result)),
        _under_load(result.load) if result.plan.rate_per_s is not None or result.plan.workers > 1 else None,
        _sustained(passes.sustained) if passes.sustained else None,
        _capacity(passes.capacity) if passes.capacity else None,
        _batches(result) if passes.batches else None,
        _cold(passes.cold) if passes.cold else None,
        _operators(passes.profile) if passes.profile else None,
        Section("Resources", lines=_resources(result)),
        Section("Trust", lines=_trust(result)),
        Section("Diagnosis", lines=_diagnosis(result)),
        Section("Verdict", lines=_verdict(result)),
    ]
    return tuple(one for one in found if one is not None)


def _percent(ratio: float) -> str:
    return f"{ratio:.1%}"


def _what_ran(result: BenchResult) -> tuple[tuple[str, str], ...]:
    subject = result.setup.subject
    threads = plural(subject.threads, "thread")
    target = f"{subject.target.name} ({subject.executor})"
    return (
        ("model", f"{subject.name}, recipe {subject.recipe.name}, target {target}, {threads}"),
        ("load", str(result.plan)),
        ("pictures", f"{len(result.setup.pictures)} of {result.setup.pictures.source}"),
    )


def _stage_table(result: BenchResult) -> tuple[Row, tuple[Row, ...]]:
    columns = ("stage", "min", "p1", "p5", "mean", "p50", "p90", "p95", "p99", "max", "share", "tail")
    summary, shares = result.summary, result.shares
    ordered = {name: one for name, one in summary.items() if name != "frame"} | {"frame": summary["frame"]}
    rows = []
    for name, one in (ordered | result.waits).items():
        share = shares.get(name)
        of = (_percent(share.mean_ratio), _percent(share.tail_ratio)) if share else ("", "")
        rows.append((name, *_times(one), *of))
    return columns, tuple(rows)


def _times(one: Summary) -> Row:
    values = (one.min_ns, one.p1.value_ns, one.p5.value_ns, one.mean_ns)
    tail = (one.p50, one.p90, one.p95, one.p99)
    return tuple(map(format_ms, (*values, *(q.value_ns for q in tail), one.max_ns)))


def _about_times(result: BenchResult) -> tuple[tuple[str, str], ...]:
    frame = result.load.response or result.load.service
    name = "response" if result.plan.rate_per_s is not None and result.load.response else "frame"
    lines = [(f"{label}", f"{name} {_quantile(one)}") for label, one in (("p50", frame.p50), ("p99", frame.p99))]
    if rounds := result.passes.rounds:
        lines += [("rounds", f"{label} {_over_rounds(one)}") for label, one in rounds.quantiles.items()]
    lines.append(("warm-up", _warmup(result.warmup, int(result.samples.warmup.sum()))))
    lines.append(("marks", str(result.passes.attribution)))
    lines.append(("share", "of the mean frame; tail: of the frames at or above p99"))
    return tuple(lines)


def _over_rounds(one: RoundsQuantile) -> str:
    if one.value_ns is None:
        return f"n/a: {one.note}; all frames together {one.pooled}"
    spread = "" if one.spread_ratio is None else f", {one.spread_ratio:.1%} apart"
    note = f"; {one.note}" if one.note else ""
    return f"{one} ms over {len(one.rounds_ns)} processes{spread}; all frames together {one.pooled}{note}"


def _quantile(one: Quantile) -> str:
    if one.value_ns is None:
        return f"n/a: {one.note}"
    worth = "" if one.n_effective >= one.n else f", worth {one.n_effective:.0f} independent ones"
    note = f"; {one.note}" if one.note else ""
    return f"{one} ms (95 %), {one.n} frames{worth}{note}"


def _warmup(found: Warmup, marked: int) -> str:
    first = f"first {format_ms(found.first_ns)}, second {format_ms(found.second_ns)} ms"
    ratio = "" if found.first_ratio is None else f", first over steady {found.first_ratio:.2g}"
    status = "steady" if found.status is Steadiness.STEADY else f"NOT_STEADY: {'; '.join(found.reasons)}"
    return f"{plural(marked, 'frame')} ({first}{ratio}); then {status}"


def _under_load(load: LoadResult) -> Section:
    counts = f"{load.arrivals} frames arrived, {load.served} served, {load.dropped} dropped ({load.dropped_ratio:.1%})"
    lines = [("frames", f"{counts}, {load.failed} failed")]
    if load.status is not LoadStatus.VALID:
        lines.append(("status", f"{load.status.upper()}: {'; '.join(load.reasons)}"))
    busy = f"workers busy {load.utilisation_ratio:.0%}"
    offered = "" if load.offered_ratio is None else f", {load.offered_ratio:.2f} of what they can serve is offered"
    lines.append(("rate", f"{load.throughput_per_s:.4g} answers a second; {busy}{offered}"))
    if load.offered_ratio is not None:
        hold = f"p50 {format_ms(load.hold_age.p50.value_ns)}, p99 {format_ms(load.hold_age.p99.value_ns)} ms old"
        lines.append(("answers", f"{hold} when replaced; {_jitter(load)}"))
        run = f"longest run {plural(load.longest_miss_run, 'frame')} of one stream"
        lines.append(("misses", f"{load.misses_per_minute:.4g} a minute, {run}"))
    if load.little is not None:
        inside = f"{load.little.measured:.3g} counted, {load.little.expected:.3g} by Little's law"
        lines.append(("in system", f"{inside}{'' if load.little.holds else ': they do NOT agree'}"))
    if load.send_lag_ratio is not None:
        lines.append(("generator", f"p99 late by {load.send_lag_ratio:.2%} of a period"))
    return Section("Under load", lines=tuple(lines))


def _jitter(load: LoadResult) -> str:
    if load.jitter_ns is None:
        return "jitter n/a"
    p99 = load.jitter_p99
    tail = "" if p99 is None or p99.value_ns is None else f", p99 {format_ms(p99.value_ns)} ms off the period"
    return f"jitter {format_ms(load.jitter_ns)} ms{tail}"


def _sustained(found: Sustained) -> Section:
    ratio = "n/a" if found.ratio is None else f"{found.ratio:.3f}"
    bounds = "" if found.ratio_low is None or found.ratio_high is None else _interval(found.ratio_low, found.ratio_high)
    lines = [("ratio", f"last fifth over first fifth, medians: {ratio}{bounds}")]
    if found.slow_from_s is not None:
        lines.append(("slow", f"more than 5 % slower from {found.slow_from_s:.0f} s to the end"))
    if found.throttled_from_s is not None:
        lines.append(("throttled", f"from {found.throttled_from_s:.0f} s on"))
    if found.missing:
        lines.append(("sensors", f"not on this machine: {', '.join(found.missing)}"))
    columns = ("seconds", "frames", "per s", "p50", "p99", "hottest C", "fastest MHz")
    return Section("Over time (ms)", columns, tuple(map(_window, found.windows)), tuple(lines))


def _window(one: Window) -> Row:
    heat = "n/a" if one.temperature_c is None else f"{one.temperature_c:.0f}"
    speed = "n/a" if one.frequency_mhz is None else f"{one.frequency_mhz:.0f}"
    times = (format_ms(one.p50.value_ns), format_ms(one.p99.value_ns))
    return (f"{one.begin_s:.1f}-{one.end_s:.1f}", str(one.frames), f"{one.frames_per_s:.4g}", *times, heat, speed)


def _interval(low: float, high: float) -> str:
    return f" [{low:.3f}, {high:.3f}]"


def _capacity(found: Capacity) -> Section:
    columns = ("per s", "offered", "p50", "p90", "p99", "max", "missed", "at most", "dropped", "verdict")
    rate = "no rate keeps the budget" if found.rate_per_s is None else f"{found.rate_per_s:.4g} per second"
    lines = [("capacity", f"{rate}, all streams together; latency counts from the intended arrival")]
    lines += [("note", found.note)] if found.note else []
    return Section("Latency over load (ms)", columns, tuple(map(_probe, found.probes)), tuple(lines))


def _probe(one: Probe) -> Row:
    found, budget = one.result, one.result.budget
    times: Row = ("queue grows", "", "", "")
    if found.response is not None:
        p50, p90, p99 = (q.value_ns for q in (found.response.p50, found.response.p90, found.response.p99))
        times = tuple(map(format_ms, (p50, p90, p99, found.response.max_ns)))
    return (
        f"{one.rate_per_s:.4g}",
        "" if found.offered_ratio is None else f"{found.offered_ratio:.2f}",
        *times,
        f"{budget.miss_ratio:.2%}",
        f"{budget.miss_high_ratio:.2%}",
        _percent(found.dropped_ratio),
        budget.verdict.upper() if found.status is not LoadStatus.INVALID else "INVALID",
    )


def _batches(result: BenchResult) -> Section:
    columns = ("batch", "frames per s", "p50", "p90", "p99", "max", "p50 a frame")
    rows = []
    for point in result.passes.batches:
        one, p50 = point.latency, point.latency.p50.value_ns
        times = map(format_ms, (p50, one.p90.value_ns, one.p99.value_ns, one.max_ns))
        each = format_ms(None if p50 is None else p50 / point.size)
        rows.append((str(point.size), f"{point.throughput_per_s:.4g}", *times, each))
    return Section("Batches (ms)", columns, tuple(rows))


def _cold(found: ColdStart) -> Section:
    columns = ("start", "to first answer", *POINTS, "MiB at first", "p50 of to first")
    rows, lines = [], []
    for number, way in enumerate(found.ways, 1):
        figures, rss = found.figures(way), found.rss_bytes(way)["first"]
        times = [format_ms(figures[name].median_ns) for name in ("to_first", *POINTS)]
        memory = "n/a" if rss is None else f"{rss / 2**20:.0f}"
        rows.append((f"{number}", *times, memory, str(figures["to_first"].p50)))
        ends = f"{format_ms(figures['to_first'].min_ns)} to {format_ms(figures['to_first'].max_ns)} ms"
        faults = found.major_faults(way)["first"]
        told = "" if faults is None else f", {faults:.0f} pages read from disk"
        lines.append((f"start {number}", f"{found.label(way)}: {figures['to_first'].n} processes, {ends}{told}"))
    return Section("Cold start, medians of fresh processes (ms)", columns, tuple(rows), tuple(lines))


def _operators(found: Profile) -> Section:
    columns = ("node", "op", "provider", "share", "us a run", "output")
    rows = tuple(
        (
            _cut(node.name),
            node.op,
            node.provider.removesuffix("ExecutionProvider"),
            _percent(node.share_ratio),
            f"{node.total_us / max(1, found.runs):.0f}",
            ", ".join(node.output_shapes[:2]),
        )
        for node in found.top(_TOP_NODES)
    )
    by_op = ", ".join(f"{op} {share:.0%}" for op, share in list(found.share_by_op().items())[:6])
    lines = (
        ("by op", by_op),
        ("pass", f"{found.runs} runs of their own; profiling slows nodes: believe the shares, not the times"),
        ("outside", f"{found.outside_ratio:.0%} of these runs lies between nodes, and in the profiler"),
    )
    return Section("Operators", columns, rows, lines)


def _cut(name: str) -> str:
    """A node's name tells at its end which one it is."""
    return name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}"


def _resources(result: BenchResult) -> tuple[tuple[str, str], ...]:
    passes, cpu = result.passes, result.passes.cpu
    each = "n/a" if cpu.per_inference_ms is None else f"{cpu.per_inference_ms / 1000:.3g} CPU seconds an inference"
    late = f"; {cpu.late} of {cpu.frames} frames began late" if cpu.late else ""
    lines = [("cpu", f"{each} at {cpu.fps:.4g} a second, {cpu.cores:.2f} cores busy{late}")]
    lines.append(("memory", _memory(result)))
    if passes.energy is not None:
        lines.append(("energy", str(passes.energy)))
    if passes.cost is not None:
        lines.append(("cost", _cost(passes.cost, result)))
    return tuple(lines)


def _memory(result: BenchResult) -> str:
    trace, growth = result.memory, result.growth
    peak = "peak n/a" if trace.peak_bytes is None else f"peak {format_bytes(trace.peak_bytes)} since {trace.peak_since}"
    parts = [peak]
    if trace.arena_bytes is not None:
        parts.append(f"arena {format_bytes(trace.arena_bytes)}")
    if growth is None:
        parts.append("growth n/a: the run is too short")
    else:
        each = growth.per_frame
        slope = "" if each is None else f", {each.value:+.3g} bytes a frame [{each.low:.3g}, {each.high:.3g}]"
        parts.append(f"{growth.grown_mib:+.2g} MiB in {growth.seconds:.0f} s after warm-up{slope}")
    return "; ".join(parts)


def _cost(found: InferenceCost, result: BenchResult) -> str:
    load = result.plan
    fps = load.rate_per_s / load.streams if load.rate_per_s else 1000 / result.setup.budget_ms
    stream = f"{found.per_stream_hour(fps):.3g} an hour for one camera at {fps:.3g} a second"
    rate = f"at {found.rate_per_s:.4g} per second, the rate that keeps the budget"
    return f"{found.per_thousand:.3g} per 1000 inferences, {stream}; {rate}, in the currency of the prices"


def _trust(result: BenchResult) -> tuple[tuple[str, str], ...]:
    trust = result.trust
    lines = [("trust", f"{trust.level.upper()}{'' if trust.reasons else ': nothing disturbed the run'}")]
    lines += [("because", _reason(one)) for one in trust.reasons]
    limits = ", ".join(f"{name} {value:g}" for name, value in asdict(trust.thresholds).items())
    lines.append(("limits", limits))
    if trust.missing:
        lines.append(("no sensor", ", ".join(trust.missing)))
    machine = result.environment
    told = f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"
    lines.append(("machine", f"{told}; fingerprint {result.environment.hash}"))
    return tuple(lines)


def _reason(one: Reason) -> str:
    return f"{one} (measured {one.measured:.3g}, limit {one.allowed:.3g})"


def _diagnosis(result: BenchResult) -> tuple[tuple[str, str], ...]:
    findings, text = result.findings, result.diagnosis
    lines = [(note.kind.value, str(note)) for note in result.notes if note.kind is not NoteKind.INFO]
    if not findings:
        return (*lines, ("why", text)) if text else tuple(lines)
    first, *others = dict.fromkeys(one.do for one in findings)
    why = text.removesuffix(f" First: {findings[0].do}")
    return (*lines, ("why", why), ("first", first), *(("then", do) for do in others))


def _verdict(result: BenchResult) -> tuple[tuple[str, str], ...]:
    if not result.budget_asked:
        return (("verdict", f"{result.budget} (the target's budget; --budget makes it a gate)"),)
    if result.exit_code != EXIT_NOISY:
        return (("verdict", str(result.budget)),)
    level = result.trust.level.upper()
    return (("verdict", f"{level}: nothing is decided (exit code {EXIT_NOISY}); seen: {result.budget.detail}"),)


def render_markdown(result: BenchResult) -> str:
    """Return the report as Markdown."""
    return render("bench.md.jinja", result=result, sections=make_sections(result))
