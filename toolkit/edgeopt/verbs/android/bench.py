"""`bench` on a phone: one frame after the other there, and the result that `bench` has everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.bench.attribution import check_attribution
from edgeopt.measurement.bench.opening import OpeningParts
from edgeopt.measurement.bench.options import BenchOptions
from edgeopt.measurement.bench.passes import Passes
from edgeopt.measurement.bench.planning import plan_load
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.run import write
from edgeopt.measurement.bench.setup import Elsewhere, Setup
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.load.run import LoadPlan, Observed, judge_warmup, warmup_for
from edgeopt.measurement.load.sustained import sustained_curve
from edgeopt.measurement.resources.cpu_time import CpuCost
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.system.amounts import Tenths
from edgeopt.system.disk.files import require_writable
from edgeopt.system.text import plural
from edgeopt.verbs.android.facts import PhoneState, notes_on_state
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.phone import Phone, Tell
from edgeopt.verbs.android.request import request_for_load
from edgeopt.verbs.android.subject import SubjectThere, SubjectWishes, open_there


def bench_there(
    connect: Callable[[], Phone],
    source: str,
    wishes: SubjectWishes,
    options: BenchOptions,
    out: Path | None,
    tell: Tell,
) -> BenchResult:
    """Measure a model or a bundle on a phone, and write what was asked for.

    Args:
        connect: Reaches the phone where it runs, once it is known that the wishes can be met.
        source: As the user named it.
        wishes: How it is opened and fed.
        options: What to measure.
        out: Where the files go; None: nowhere.
        tell: Hears progress.

    Raises:
        EdgeoptError: If it cannot be measured there, or the phone is gone before there is a figure.
    """
    plan = plan_load(options)
    if out is not None:
        require_writable(out / "bench.json")
    phone = connect()
    there = open_there(phone, source, wishes)
    before = phone.state()
    heard = _run(phone, there, options, tell)
    after = phone.state()
    result = _result(there, source, options, plan, heard, (before, after))
    if out is not None:
        write(out, result)
    return result


def _run(phone: Phone, there: SubjectThere, options: BenchOptions, tell: Tell) -> RunnerLog:
    warmup_s = warmup_for(options.measure_s)
    all_s, spent_ns = warmup_s + options.measure_s, 0
    of = Tenths(max(20, round(10 * all_s)))

    def count(more_ns: int) -> None:
        nonlocal spent_ns
        spent_ns += more_ns
        tell("measure on the phone", min(spent_ns // 10**8, of - 1), of)

    request = request_for_load(there.work(), seconds=options.measure_s, warmup_s=warmup_s, frames=options.min_frames)
    heard, _ = phone.run(request, on_rows=count)
    tell("measure on the phone", of, of)
    return heard


def _result(
    there: SubjectThere,
    source: str,
    options: BenchOptions,
    plan: LoadPlan,
    heard: RunnerLog,
    states: tuple[PhoneState | None, PhoneState | None],
) -> BenchResult:
    subject, (before, after) = there.subject, states
    samples = heard.samples(subject.name)
    if not len(samples) and heard.lost is not None:
        raise heard.lost
    warmup = judge_warmup(samples, plan, options.measure_s)
    samples = replace(samples, warmup=warmup.mask(len(samples)))
    if not len(samples.steady()):
        raise heard.lost or EdgeoptError("no frame was run after warm-up", remedy="measure longer with --seconds")
    state = {"before": before and before.as_json(), "after": after and after.as_json()}
    setup = Setup(
        asked=source,
        asked_target="" if subject.brings_target else there.target,
        asked_recipe=there.wishes.recipe,
        options=options,
        plan=plan,
        subject=subject,
        pictures=there.frames,
        readers=(),
        pipelines=(),
        notes=(
            *subject.notes,
            *there.notes,
            *there.phone.facts.notes,
            *notes_on_state(before, after),
            *notes_on_loss(heard, plural(len(samples), "frame")),
        ),
        elsewhere=Elsewhere(there.phone.address, _facts(there.phone, heard, states)),
    )
    load = summarize_load(samples, plan.load, budget_ms=setup.budget_ms, max_miss_ratio=options.max_miss_ratio)
    opened_ms = tuple(took / 1e6 for took in (*there.session.opened_ns, *heard.opened_ns))
    info = {
        "load": str(plan),
        "pictures": len(there.frames),
        "source": str(there.frames.source),
        "phone.address": there.phone.address,
        "phone.state": state,
    }
    return BenchResult(
        setup=setup,
        observed=Observed(
            samples=samples,
            readings=tuple(heard.readings),
            anchors=(),
            memory=heard.memory,
            energy=None,
            idle=None,
            wall_minus_clock_ns=heard.wall_minus_clock_ns,
        ),
        load=load,
        warmup=warmup,
        trust=judge_trust(samples, heard.readings, workers=subject.threads),
        passes=Passes(
            cpu=_cpu(heard),
            attribution=check_attribution(samples),
            sustained=sustained_curve(samples, heard.readings) if options.minutes else None,
            opening=OpeningParts({"create": opened_ms}),
        ),
        environment=there.environment(info),
    )


def _facts(phone: Phone, heard: RunnerLog, states: tuple[PhoneState | None, PhoneState | None]) -> dict[str, str]:
    """Return what a reader sees of the phone: its processor, and how warm, fast and charged it was."""
    before, after = states
    seen = [str(state) for state in (before, after) if state]
    facts = {
        "phone": f"{phone.facts.chip}, {plural(phone.facts.cores, 'core')}, {phone.abi}",
        "state": "; afterwards ".join(dict.fromkeys(seen)) or "not told",
    }
    sensors = [max(reading.temperature_c) for reading in heard.readings if reading.temperature_c]
    clocks = [max(reading.frequency_mhz) for reading in heard.readings if reading.frequency_mhz]
    parts = [f"hottest sensor {min(sensors):.0f} to {max(sensors):.0f} C"] if sensors else []
    parts += [f"fastest core {min(clocks):.0f} to {max(clocks):.0f} MHz"] if clocks else []
    return facts | ({"meanwhile": ", ".join(parts)} if parts else {})


def _cpu(heard: RunnerLog) -> CpuCost:
    """Return the processor time of all frames, those without marks too; of a phone that is gone nothing is known."""
    frames, span_s = heard.frames + heard.unmarked, heard.span_ns / 1e9
    if not span_s:
        return CpuCost(0, 0, 0, 0.0, 0)
    return CpuCost(heard.cpu_ns, heard.span_ns, frames, frames / span_s, 0)


def notes_on_loss(heard: RunnerLog, kept: str) -> tuple[Note, ...]:
    """Return a warning where a phone was gone before its run was over.

    Args:
        heard: The run.
        kept: What there is of it, in words.
    """
    if heard.lost is None:
        return ()
    text = f"the figures are of {kept} alone: {heard.lost.problem}"
    return (Note(NoteKind.WARNING, text, "look at its cable, and measure again"),)
