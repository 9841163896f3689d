"""The result of `bench` as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_NOISY, NoteKind
from edgeopt.measurement.bench import charts
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.finding import first_command, show_findings
from edgeopt.measurement.fresh_process.start import POINTS, ColdStart, ColdWay
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.beside import Arrangement, Beside, Share
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.result import LoadResult, LoadStatus
from edgeopt.measurement.load.sustained import Sustained, Window
from edgeopt.measurement.resources.cost import InferenceCost
from edgeopt.measurement.resources.profile import NodeTime, Profile
from edgeopt.measurement.resources.trust import Reason, TrustLevel
from edgeopt.measurement.statistics.budget import Verdict as BudgetVerdict
from edgeopt.measurement.statistics.quantile import Quantile, RoundsQuantile, Summary
from edgeopt.measurement.statistics.trend import Steadiness, Warmup
from edgeopt.report.document import Document, Judgement, Outcome, Section, Table, Value, Verdict, make_table
from edgeopt.report.figures import Limit
from edgeopt.system.text import format_bytes, format_ms, plural, shown_path

_TOP_NODES = 10

Values = tuple[Value, ...]


def summarize(result: BenchResult) -> Document:
    """Return what a reader sees: what ran, the times, what was asked for beside it, what to make of it."""
    passes = result.passes
    found: list[Section | None] = [
        Section(values=_what_ran(result)),
        Section("Stages (ms)", _stage_table(result), values=_about_times(result), figures=charts.time_charts(result)),
        Section("How to read the stages", values=_about_shares(result), is_detail=result.passes.attribution.valid),
        _under_load(result.load) if result.plan.rate_per_s is not None or result.plan.workers > 1 else None,
        _sustained(passes.sustained) if passes.sustained else None,
        _capacity(passes.capacity, charts.budget_of(result)) if passes.capacity else None,
        _batches(passes.batches) if passes.batches else None,
        _beside(passes.beside) if passes.beside else None,
        _cold(passes.cold) if passes.cold else None,
        _operators(passes.profile) if passes.profile else None,
        Section("Resources", values=_resources(result), figures=charts.draw_memory(result.memory)),
        Section("Trust", values=_trust(result), is_detail=True),
        *_diagnosis(result),
        Section(
            text="Everything else, with intervals of every figure: `bench.json`. Raw samples: `samples.npz`.",
            is_detail=True,
        ),
    ]
    return Document(
        command="bench",
        subject=result.name,
        title=f"{result.name} under {result.plan}",
        data=result.as_json(),
        sections=tuple(one for one in found if one is not None),
        verdict=_verdict(result),
        key_figures=charts.key_figures(result),
        judgements=(_judgement(result),) if result.budget_asked else (),
    )


def _what_ran(result: BenchResult) -> Values:
    subject = result.setup.subject
    threads = plural(subject.threads, "thread")
    target = f"{subject.target.name}, {subject.executor}"
    return (
        Value("model", f"{subject.name} on {target}, {threads}"),
        Value("recipe", subject.recipe.name),
        Value("load", str(result.plan)),
        Value("pictures", f"{len(result.setup.pictures)} of {shown_path(Path(result.setup.pictures.source))}"),
    )


def _stage_table(result: BenchResult) -> Table:
    summary, shares = result.summary, result.shares
    ordered = {name: one for name, one in summary.items() if name != "frame"} | {"frame": summary["frame"]}

    def share(name: str, part: str) -> str:
        return f"{getattr(shares[name], part):.1%}" if name in shares else ""

    columns: dict[str, Callable[[tuple[str, Summary]], str]] = {
        "stage": lambda one: one[0],
        "min": lambda one: format_ms(one[1].min_ns),
        "p1": lambda one: format_ms(one[1].p1.value_ns),
        "p5": lambda one: format_ms(one[1].p5.value_ns),
        "mean": lambda one: format_ms(one[1].mean_ns),
        "p50": lambda one: format_ms(one[1].p50.value_ns),
        "p90": lambda one: format_ms(one[1].p90.value_ns),
        "p95": lambda one: format_ms(one[1].p95.value_ns),
        "p99": lambda one: format_ms(one[1].p99.value_ns),
        "max": lambda one: format_ms(one[1].max_ns),
        "share": lambda one: share(one[0], "mean_ratio"),
        "tail": lambda one: share(one[0], "tail_ratio"),
    }
    less = ("p1", "p5", "tail", "min", "p95", "mean", "max", "p90", "share", "p99")
    return make_table((ordered | result.waits).items(), columns, less=less)


def _about_times(result: BenchResult) -> Values:
    frame = result.load.response or result.load.service
    name = "response" if result.plan.rate_per_s is not None and result.load.response else "frame"
    lines = [_quantile(label, name, one) for label, one in (("p50", frame.p50), ("p99", frame.p99))]
    if rounds := result.passes.rounds:
        lines += [_over_rounds(label, one) for label, one in rounds.quantiles.items()]
    lines.append(_warmup(result.warmup, int(result.samples.warmup.sum())))
    return tuple(lines)


def _about_shares(result: BenchResult) -> Values:
    """Return what the shares are of, and how far to believe them."""
    marks = result.passes.attribution
    return (
        Value("marks", f"{marks}{'' if marks.valid else ': do NOT believe the shares'}"),
        Value("share", "of the mean frame; tail: of the frames at or above p99"),
    )


def _over_rounds(label: str, one: RoundsQuantile) -> Value:
    together = f"all frames together {one.pooled}"
    if one.value_ns is None:
        return Value("rounds", f"{label} n/a: {one.note}", more=together)
    spread = "" if one.spread_ratio is None else f", {one.spread_ratio:.1%} apart"
    told = f"{label} {one} ms over {len(one.rounds_ns)} processes{spread}"
    return Value("rounds", told, more="; ".join(filter(None, (together, one.note))))


def _quantile(label: str, what: str, one: Quantile) -> Value:
    if one.value_ns is None:
        return Value(label, f"n/a: {one.note}")
    worth = "" if one.n_effective >= one.n else f", worth {one.n_effective:.0f} independent ones"
    return Value(label, f"{what} {one} ms, {one.n} frames{worth}", more=one.note)


def _warmup(found: Warmup, marked: int) -> Value:
    ratio = "" if found.first_ratio is None else f", first over steady {found.first_ratio:.2g}"
    status = "steady" if found.status is Steadiness.STEADY else f"NOT STEADY: {'; '.join(found.reasons)}"
    first = f"first {format_ms(found.first_ns)}, second {format_ms(found.second_ns)} ms{ratio}"
    return Value("warm-up", f"{plural(marked, 'frame')}, then {status}", more=first)


def _under_load(load: LoadResult) -> Section:
    counts = f"{load.arrivals} frames arrived, {load.served} served, {load.dropped} dropped ({load.dropped_ratio:.1%})"
    lines = [Value("frames", f"{counts}, {load.failed} failed")]
    if load.status is not LoadStatus.VALID:
        lines.append(Value("status", f"{load.status.upper()}: {'; '.join(load.reasons)}"))
    busy = f"workers busy {load.utilisation_ratio:.0%}"
    offered = "" if load.offered_ratio is None else f", {load.offered_ratio:.2f} of what they can serve is offered"
    lines.append(Value("rate", f"{load.throughput_per_s:.4g} answers a second; {busy}{offered}"))
    if load.offered_ratio is not None:
        hold = f"p50 {format_ms(load.hold_age.p50.value_ns)}, p99 {format_ms(load.hold_age.p99.value_ns)} ms old"
        lines.append(Value("answers", f"{hold} when replaced; {_jitter(load)}"))
        run = f"longest run {plural(load.longest_miss_run, 'frame')} of one stream"
        lines.append(Value("misses", f"{load.misses_per_minute:.4g} a minute, {run}"))
    if load.send_lag_ratio is not None:
        lines.append(Value("generator", f"p99 late by {load.send_lag_ratio:.2%} of a period"))
    return Section("Under load", values=tuple(lines))


def _jitter(load: LoadResult) -> str:
    if load.jitter_ns is None:
        return "jitter n/a"
    p99 = load.jitter_p99
    tail = "" if p99 is None or p99.value_ns is None else f", p99 {format_ms(p99.value_ns)} ms off the period"
    return f"jitter {format_ms(load.jitter_ns)} ms{tail}"


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


def _kept(found: Beside) -> str:
    name = found.share(0, Arrangement.ALONE).name
    kept, beside = (found.share(0, one).p99_ratio for one in (Arrangement.SCHEDULED, Arrangement.BESIDE))
    told = {True: "kept within 10 %", False: "NOT kept within 10 %", None: "NOT DECIDED: measure longer with --seconds"}
    return f"p99 of {name} scheduled: {kept} of alone, {told[found.is_kept]}; not scheduled: {beside}"


def _cold(found: ColdStart) -> Section:
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
    return Section(title, table, values=values, figures=charts.draw_cold(found))


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


def _resources(result: BenchResult) -> Values:
    passes, cpu = result.passes, result.passes.cpu
    each = "n/a" if cpu.per_inference_ms is None else f"{cpu.per_inference_ms / 1000:.3g} CPU seconds an inference"
    late = f"; {cpu.late} of {cpu.frames} frames began late" if cpu.late else ""
    lines = [Value("cpu", f"{each} at {cpu.fps:.4g} a second, {cpu.cores:.2f} cores busy{late}")]
    lines.append(_memory(result))
    if passes.energy is not None:
        lines.append(Value("energy", str(passes.energy)))
    if passes.cost is not None:
        lines.append(Value("cost", _cost(passes.cost, result)))
    return tuple(lines)


def _memory(result: BenchResult) -> Value:
    trace, growth = result.memory, result.growth
    peak = "peak n/a" if trace.peak_bytes is None else f"peak {format_bytes(trace.peak_bytes)}"
    arena = "" if trace.arena_bytes is None else f", arena {format_bytes(trace.arena_bytes)}"
    if growth is None:
        return Value("memory", f"{peak}{arena}; growth n/a: the run is too short", more=f"since {trace.peak_since}")
    each = growth.per_frame
    slope = "" if each is None else f"; {each.value:+.3g} bytes a frame [{each.low:.3g}, {each.high:.3g}]"
    grown = f"{growth.grown_mib:+.2g} MiB in {growth.seconds:.0f} s after warm-up"
    return Value("memory", f"{peak}{arena}; {grown}", more=f"since {trace.peak_since}{slope}")


def _cost(found: InferenceCost, result: BenchResult) -> str:
    load = result.plan
    fps = load.rate_per_s / load.streams if load.rate_per_s else 1000 / result.setup.budget_ms
    stream = f"{found.per_stream_hour(fps):.3g} an hour for one camera at {fps:.3g} a second"
    rate = f"at {found.rate_per_s:.4g} per second, the rate that keeps the budget"
    return f"{found.per_thousand:.3g} per 1000 inferences, {stream}; {rate}, in the currency of the prices"


def _trust(result: BenchResult) -> Values:
    trust = result.trust
    lines = [Value("trust", f"{trust.level.upper()}{'' if trust.reasons else ': nothing disturbed the run'}")]
    lines += [Value("because", _reason(one)) for one in trust.reasons]
    limits = ", ".join(f"{name} {value:g}" for name, value in asdict(trust.thresholds).items())
    lines.append(Value("limits", limits))
    if trust.missing:
        lines.append(Value("no sensor", ", ".join(trust.missing)))
    machine = result.environment
    told = f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"
    lines.append(Value("machine", f"{told}; fingerprint {machine.hash}"))
    lines.append(Value("command", machine.command or result.repeat(), is_command=True))
    return tuple(lines)


def _reason(one: Reason) -> str:
    return f"{one} (measured {one.measured:.3g}, limit {one.allowed:.3g})"


def _diagnosis(result: BenchResult) -> Iterator[Section]:
    """Yield what stands out and what mends it; then the evidence, for a page."""
    notes = tuple(note for note in result.notes if note.kind is not NoteKind.INFO)
    yield Section("Diagnosis", values=show_findings(result.findings), notes=notes)
    if result.why:
        yield Section("Evidence", values=(Value("why", result.why),), is_detail=True)


def _judgement(result: BenchResult) -> Judgement:
    blocked = f"{result.trust.level.upper()}: nothing is decided; seen: " if result.exit_code == EXIT_NOISY else ""
    seen = result.budget.detail if blocked else str(result.budget)
    return Judgement.by_exit("budget", result.exit_code, f"{blocked}{seen}")


def _verdict(result: BenchResult) -> Verdict:
    trust, found = result.trust, result.budget
    facts = [Value("budget", found.detail)]
    if not result.budget_asked:
        word = {BudgetVerdict.FAIL: "missed: ", BudgetVerdict.INCONCLUSIVE: "not decided: "}.get(found.verdict, "")
        facts = [Value("budget", f"{word}{found.detail}", more="the target's own; --budget makes it a gate")]
    if trust.level is not TrustLevel.TRUSTED:
        facts.append(Value("machine", f"{trust.level.upper()}: {', '.join(one.name for one in trust.reasons)}"))
    if result.passes.beside is not None:
        facts.append(Value("beside", _kept(result.passes.beside)))
    return Verdict(_outcome(result), _times(result), tuple(facts), next_command=_next_command(result))


def _next_command(result: BenchResult) -> str:
    """Return what would decide, where nothing is decided; else the first thing to mend that takes a command alone."""
    if result.budget_asked and result.exit_code in (EXIT_NOISY, EXIT_INCONCLUSIVE):
        return result.repeat("--seconds 60")
    return first_command(result.findings)


def _outcome(result: BenchResult) -> Outcome:
    if result.budget_asked:
        return Outcome.by_exit(result.exit_code)
    return Outcome.PASS if result.budget.verdict is BudgetVerdict.PASS else Outcome.DONE


def _times(result: BenchResult) -> str:
    """Return what one frame takes; where frames arrive, from its arrival to its answer."""
    response = result.load.response if result.plan.rate_per_s is not None else None
    shown, what = (response, "are answered within") if response else (result.load.service, "take at most")
    slow = "" if shown.p99.value_ns is None else f"; 1 in 100 takes more than {format_ms(shown.p99.value_ns)} ms"
    return f"half of the frames {what} {format_ms(shown.p50.value_ns)} ms{slow}"
