"""The result of `bench` as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_NOISY, NoteKind
from edgeopt.measurement.bench import charts
from edgeopt.measurement.bench.passes_summary import summarize_passes
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.finding import first_command, show_findings
from edgeopt.measurement.load.beside import Arrangement, Beside
from edgeopt.measurement.load.result import LoadResult, LoadStatus
from edgeopt.measurement.resources.cost import InferenceCost
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.resources.trust import Reason, undecided
from edgeopt.measurement.statistics.budget import Verdict as BudgetVerdict
from edgeopt.measurement.statistics.quantile import Quantile, RoundsQuantile, Summary
from edgeopt.measurement.statistics.trend import Steadiness, Warmup
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    Section,
    Table,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.system.text import format_bytes, format_ms, plural, shown_path

Values = tuple[Value, ...]


def summarize(result: BenchResult) -> Document:
    """Return what a reader sees: what ran, the times, what was asked for beside it, what to make of it."""
    sections: list[Section | None] = [
        Section(values=_what_ran(result)),
        Section("Stages (ms)", _stage_table(result), values=_about_times(result), figures=charts.time_charts(result)),
        Section("How to read the stages", values=_about_shares(result), is_detail=result.passes.attribution.valid),
        _under_load(result.load) if result.plan.rate_per_s is not None or result.plan.workers > 1 else None,
        *summarize_passes(result.passes, charts.budget_of(result)),
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
        sections=tuple(section for section in sections if section is not None),
        verdict=_verdict(result),
        key_figures=charts.key_figures(result),
        judgements=(_judgement(result),) if result.budget_asked else (),
    )


def _what_ran(result: BenchResult) -> Values:
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


def _stage_table(result: BenchResult) -> Table:
    summary, shares = result.summary, result.shares
    ordered = {name: other for name, other in summary.items() if name != "frame"} | {"frame": summary["frame"]}

    def share(name: str, part: str) -> str:
        return f"{getattr(shares[name], part):.1%}" if name in shares else ""

    columns: dict[str, Callable[[tuple[str, Summary]], str]] = {
        "stage": lambda pair: pair[0],
        "min": lambda pair: format_ms(pair[1].min_ns),
        "p1": lambda pair: format_ms(pair[1].p1.value_ns),
        "p5": lambda pair: format_ms(pair[1].p5.value_ns),
        "mean": lambda pair: format_ms(pair[1].mean_ns),
        "p50": lambda pair: format_ms(pair[1].p50.value_ns),
        "p90": lambda pair: format_ms(pair[1].p90.value_ns),
        "p95": lambda pair: format_ms(pair[1].p95.value_ns),
        "p99": lambda pair: format_ms(pair[1].p99.value_ns),
        "max": lambda pair: format_ms(pair[1].max_ns),
        "share": lambda pair: share(pair[0], "mean_ratio"),
        "tail": lambda pair: share(pair[0], "tail_ratio"),
    }
    less = ("p1", "p5", "tail", "min", "p95", "mean", "max", "p90", "share", "p99")
    return make_table((ordered | result.waits).items(), columns, less=less)


def _about_times(result: BenchResult) -> Values:
    frame = result.load.response or result.load.service
    name = "response" if result.plan.rate_per_s is not None and result.load.response else "frame"
    lines = [_quantile(label, name, quantile) for label, quantile in (("p50", frame.p50), ("p99", frame.p99))]
    if rounds := result.passes.rounds:
        lines += [_over_rounds(label, quantile) for label, quantile in rounds.quantiles.items()]
    lines.append(_warmup(result.warmup, int(result.samples.warmup.sum())))
    return tuple(lines)


def _about_shares(result: BenchResult) -> Values:
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


def _quantile(label: str, what: str, quantile: Quantile) -> Value:
    if quantile.value_ns is None:
        return Value(label, f"n/a: {quantile.note}")
    worth = "" if quantile.n_effective >= quantile.n else f", worth {quantile.n_effective:.0f} independent ones"
    return Value(label, f"{what} {quantile} ms, {quantile.n} frames{worth}", more=quantile.note)


def _warmup(warmup: Warmup, marked: int) -> Value:
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


def _resources(result: BenchResult) -> Values:
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


def _cost(inference_cost: InferenceCost, result: BenchResult) -> str:
    load = result.plan
    fps = load.rate_per_s / load.streams if load.rate_per_s else 1000 / result.setup.budget_ms
    stream = f"{inference_cost.per_stream_hour(fps):.3g} an hour for one camera at {fps:.3g} a second"
    rate = f"at {inference_cost.rate_per_s:.4g} per second, the rate that keeps the budget"
    return f"{inference_cost.per_thousand:.3g} per 1000 inferences, {stream}; {rate}, {CURRENCY}"


def _trust(result: BenchResult) -> Values:
    trust = result.trust
    lines = [Value("trust", f"{trust.level.upper()}{'' if trust.reasons else ': nothing disturbed the run'}")]
    lines += [Value("because", _reason(reason)) for reason in trust.reasons]
    lines += [Value("seen", _reason(sign)) for sign in trust.signs]
    limits = ", ".join(f"{name} {value:g}" for name, value in asdict(trust.thresholds).items())
    lines.append(Value("limits", limits))
    if trust.missing:
        lines.append(Value("no sensor", ", ".join(trust.missing)))
    machine = result.environment
    text = f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"
    lines.append(Value("machine", f"{text}; fingerprint {machine.hash}"))
    lines.append(Value("command", machine.command or result.repeat(), is_command=True))
    return tuple(lines)


def _reason(reason: Reason) -> str:
    return f"{reason} (measured {reason.measured:.3g}, limit {reason.allowed:.3g})"


def _diagnosis(result: BenchResult) -> Iterator[Section]:
    """Yield what stands out and what mends it; then the evidence, for a page."""
    notes = tuple(note for note in result.notes if note.kind is not NoteKind.INFO)
    yield Section("Diagnosis", values=show_findings(result.findings), notes=notes)
    if result.why:
        yield Section("Evidence", values=(Value("why", result.why),), is_detail=True)


def _judgement(result: BenchResult) -> JudgedCase:
    is_blocked = result.exit_code == EXIT_NOISY
    text = undecided(result.trust.level, result.budget.detail) if is_blocked else str(result.budget)
    return JudgedCase.by_exit("budget", result.exit_code, text)


def _verdict(result: BenchResult) -> VerdictLines:
    trust, budget_result = result.trust, result.budget
    facts = [Value("budget", budget_result.detail)]
    if not result.budget_asked:
        missed = "not decided: " if trust.warning else "missed: "
        word = {BudgetVerdict.FAIL: missed, BudgetVerdict.INCONCLUSIVE: "not decided: "}.get(budget_result.verdict, "")
        facts = [Value("budget", f"{word}{budget_result.detail}", more="the target's own; --budget makes it a gate")]
    if trust.warning:
        facts.append(Value("machine", trust.warning))
    if result.passes.beside is not None:
        facts.append(Value("beside", _kept(result.passes.beside)))
    return VerdictLines(_outcome(result), _times(result), tuple(facts), next_command=_next_command(result))


def _next_command(result: BenchResult) -> str:
    """Return what would decide, where nothing is decided; else the first thing to mend that takes a command alone."""
    if result.budget_asked and result.exit_code in (EXIT_NOISY, EXIT_INCONCLUSIVE):
        return result.repeat("--seconds 60")
    return first_command(result.findings)


def _outcome(result: BenchResult) -> CommandOutcome:
    if result.budget_asked:
        return CommandOutcome.by_exit(result.exit_code)
    return CommandOutcome.PASS if result.budget.verdict is BudgetVerdict.PASS else CommandOutcome.DONE


def _times(result: BenchResult) -> str:
    """Return what one frame takes; where frames arrive, from its arrival to its answer."""
    response = result.load.response if result.plan.rate_per_s is not None else None
    shown, what = (response, "are answered within") if response else (result.load.service, "take at most")
    slow = "" if shown.p99.value_ns is None else f"; 1 in 100 takes more than {format_ms(shown.p99.value_ns)} ms"
    return f"half of the frames {what} {format_ms(shown.p50.value_ns)} ms{slow}"
