"""The `bench` of a model that answers frames, as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeopt.errors import NoteKind
from edgeopt.measurement.bench.columns import LESS, stage_table
from edgeopt.measurement.bench.summary import show_frame_budget
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.charts import budget_line, draw_run
from edgeopt.measurement.frames import charts
from edgeopt.measurement.frames.passes_summary import summarize_passes
from edgeopt.measurement.frames.result import FrameBenchResult
from edgeopt.measurement.load.beside import Arrangement, Beside
from edgeopt.measurement.load.result import LoadResult, LoadStatus
from edgeopt.measurement.resources.cost import InferenceCost
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.samples import FRAME
from edgeopt.measurement.statistics.quantile import Quantile, RoundsQuantile
from edgeopt.measurement.statistics.trend import Steadiness, Warmup
from edgeopt.report.document import Section, Table, Value
from edgeopt.system.text import format_bytes, format_ms, plural, shown_path

Values = tuple[Value, ...]


def view_frames(result: FrameBenchResult) -> BenchView:
    """Return the stages, what was asked for beside them, and what they cost."""
    budget = budget_line(result.setup.budget_ms)
    drawn = draw_run(result.name, result.samples, budget)
    sections = (
        Section("Stages (ms)", _stage_table(result), values=_about_times(result), figures=drawn),
        Section("How to read the stages", values=_about_shares(result), is_detail=result.passes.attribution.valid),
        *([_under_load(result.load)] if result.plan.rate_per_s is not None or result.plan.workers > 1 else []),
        *summarize_passes(result.passes, budget),
        Section("Resources", values=_resources(result), figures=charts.draw_memory(result.memory)),
    )
    beside = result.passes.beside
    return BenchView(
        title=f"{result.name} under {result.plan}",
        ran=_what_ran(result),
        sections=sections,
        sentence=_times(result),
        facts=(show_frame_budget(result, result.budget.detail),),
        more_facts=(Value("beside", _kept(beside)),) if beside is not None else (),
        notes=tuple(note for note in result.notes if note.kind is not NoteKind.INFO),
        key_figures=charts.key_figures(result),
        again=result.repeat(),
        to_decide=result.repeat("--seconds 60"),
    )


def _what_ran(result: FrameBenchResult) -> Values:
    subject = result.setup.subject
    threads = plural(subject.threads, "thread")
    target, elsewhere = f"{subject.target.name}, {subject.executor}", result.setup.elsewhere
    return (
        Value("model", f"{subject.name} on {target}, {threads}"),
        *([Value("program", subject.session.program)] if subject.session.program else []),
        *(Value(name, text) for name, text in (elsewhere.facts.items() if elsewhere else ())),
        Value("recipe", subject.recipe.name),
        Value("load", str(result.plan)),
        Value("pictures", f"{len(result.setup.pictures)} of {shown_path(Path(result.setup.pictures.source))}"),
    )


def _stage_table(result: FrameBenchResult) -> Table:
    summary, shares = result.summary, result.shares
    ordered = {name: other for name, other in summary.items() if name != FRAME} | {FRAME: summary[FRAME]}

    def share(part: str) -> Callable[[str], str]:
        return lambda name: f"{getattr(shares[name], part):.1%}" if name in shares else ""

    more = {"share": share("mean_ratio"), "tail": share("tail_ratio")}
    first, then, last = LESS
    return stage_table(ordered | result.waits, more=more, less=(*first, "tail", *then, "share", *last))


def _about_times(result: FrameBenchResult) -> Values:
    frame = result.load.response or result.load.service
    name = "response" if result.plan.rate_per_s is not None and result.load.response else "frame"
    lines = [show_quantile(label, name, quantile) for label, quantile in (("p50", frame.p50), ("p99", frame.p99))]
    if rounds := result.passes.rounds:
        lines += [_over_rounds(label, quantile) for label, quantile in rounds.quantiles.items()]
    lines.append(show_warmup(result.warmup, int(result.samples.warmup.sum())))
    return tuple(lines)


def _about_shares(result: FrameBenchResult) -> Values:
    """Return what the shares are of, and how far to believe them."""
    marks = result.passes.attribution
    return (
        Value("marks", f"{marks}{'' if marks.valid else ': do NOT believe the shares'}"),
        Value("share", "of the mean frame; tail: of the frames at or above p99"),
    )


def _over_rounds(label: str, rounds_quantile: RoundsQuantile) -> Value:
    together = f"all frames together {rounds_quantile.pooled}"
    if rounds_quantile.value_ns is None:
        return Value("rounds", f"{label} n/a: {rounds_quantile.note}", more=together)
    spread = "" if rounds_quantile.spread_ratio is None else f", {rounds_quantile.spread_ratio:.1%} apart"
    text = f"{label} {rounds_quantile} ms over {len(rounds_quantile.rounds_ns)} processes{spread}"
    return Value("rounds", text, more="; ".join(filter(None, (together, rounds_quantile.note))))


def show_quantile(label: str, what: str, quantile: Quantile) -> Value:
    """Return one quantile of times with its interval, and how many frames it is of."""
    if quantile.value_ns is None:
        return Value(label, f"n/a: {quantile.note}")
    worth = "" if quantile.n_effective >= quantile.n else f", worth {quantile.n_effective:.0f} independent ones"
    return Value(label, f"{what} {quantile} ms, {quantile.n} frames{worth}", more=quantile.note)


def show_warmup(warmup: Warmup, marked: int) -> Value:
    """Return how many frames were left out as warm-up, and whether the others are steady."""
    ratio = "" if warmup.first_ratio is None else f", first over steady {warmup.first_ratio:.2g}"
    status = "steady" if warmup.status is Steadiness.STEADY else f"NOT STEADY: {'; '.join(warmup.reasons)}"
    first = f"first {format_ms(warmup.first_ns)}, second {format_ms(warmup.second_ns)} ms{ratio}"
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


def _kept(found: Beside) -> str:
    name = found.share(0, Arrangement.ALONE).name
    kept, beside = (
        found.share(0, arrangement).p99_ratio for arrangement in (Arrangement.SCHEDULED, Arrangement.BESIDE)
    )
    values = {
        True: "kept within 10 %",
        False: "NOT kept within 10 %",
        None: "NOT DECIDED: measure longer with --seconds",
    }
    return f"p99 of {name} scheduled: {kept} of alone, {values[found.is_kept]}; not scheduled: {beside}"


def _resources(result: FrameBenchResult) -> Values:
    passes, cpu = result.passes, result.passes.cpu
    each = "n/a" if cpu.per_inference_ms is None else f"{cpu.per_inference_ms / 1000:.3g} CPU seconds an inference"
    late = f"; {cpu.late} of {cpu.frames} frames began late" if cpu.late else ""
    lines = [Value("cpu", f"{each} at {cpu.fps:.4g} a second, {cpu.cores:.2f} cores busy{late}")]
    lines.append(_memory(result))
    if passes.opening is not None:
        lines.append(Value("opening", str(passes.opening)))
    if passes.energy is not None:
        lines.append(Value("energy", str(passes.energy)))
    if passes.cost is not None:
        lines.append(Value("cost", _cost(passes.cost, result)))
    return tuple(lines)


def _memory(result: FrameBenchResult) -> Value:
    trace, growth = result.memory, result.growth
    peak = "peak n/a" if trace.peak_bytes is None else f"peak {format_bytes(trace.peak_bytes)}"
    arena = "" if trace.arena_bytes is None else f", arena {format_bytes(trace.arena_bytes)}"
    if growth is None:
        return Value("memory", f"{peak}{arena}; growth n/a: the run is too short", more=f"since {trace.peak_since}")
    each = growth.per_frame
    slope = "" if each is None else f"; {each.value:+.3g} bytes a frame [{each.low:.3g}, {each.high:.3g}]"
    grown = f"{growth.grown_mib:+.2g} MiB in {growth.seconds:.0f} s after warm-up"
    return Value("memory", f"{peak}{arena}; {grown}", more=f"since {trace.peak_since}{slope}")


def _cost(inference_cost: InferenceCost, result: FrameBenchResult) -> str:
    load = result.plan
    fps = load.rate_per_s / load.streams if load.rate_per_s else 1000 / result.setup.budget_ms
    stream = f"{inference_cost.per_stream_hour(fps):.3g} an hour for one camera at {fps:.3g} a second"
    rate = f"at {inference_cost.rate_per_s:.4g} per second, the rate that keeps the budget"
    return f"{inference_cost.per_thousand:.3g} per 1000 inferences, {stream}; {rate}, {CURRENCY}"


def _times(result: FrameBenchResult) -> str:
    """Return what one frame takes; where frames arrive, from its arrival to its answer."""
    response = result.load.response if result.plan.rate_per_s is not None else None
    shown, what = (response, "are answered within") if response else (result.load.service, "take at most")
    slow = "" if shown.p99.value_ns is None else f"; 1 in 100 takes more than {format_ms(shown.p99.value_ns)} ms"
    return f"half of the frames {what} {format_ms(shown.p50.value_ns)} ms{slow}"
