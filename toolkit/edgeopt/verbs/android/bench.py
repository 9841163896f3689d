"""`bench` on a phone: one frame after the other there, and the result that `bench` has everywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeopt.errors import EdgeoptError, Note
from edgeopt.measurement.frames.attribution import check_attribution
from edgeopt.measurement.frames.opening import OpeningParts
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.passes import Passes
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.frames.result import FrameBenchResult
from edgeopt.measurement.frames.setup import Elsewhere, Setup
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.load.run import LoadPlan, Observed, judge_warmup, warmup_for
from edgeopt.measurement.load.sustained import sustained_curve
from edgeopt.measurement.opening.subject import Subject, choose_frames, open_subject, shapes_of
from edgeopt.measurement.resources.cpu_time import CpuCost
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.turns.interleaved import PICTURES
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.system.amounts import Tenths
from edgeopt.system.text import plural
from edgeopt.verbs.android.facts import PhoneState
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.notes import loss_of
from edgeopt.verbs.android.phone import Phone, Tell
from edgeopt.verbs.android.place import PhonePlace

_OPENINGS = 5
"""Fresh processes in which opening is timed."""


@dataclass(frozen=True, slots=True)
class SubjectWishes:
    """Names of a target and a recipe, as a person gave them."""

    target: str
    recipe: str | None


def bench_there(
    place: PhonePlace, source: str, wishes: SubjectWishes, options: BenchOptions, tell: Tell
) -> FrameBenchResult:
    """Measure a model or a bundle on a phone, which computes for this process.

    Args:
        place: The phone.
        source: As the user named it.
        wishes: How it is opened and fed.
        options: What to measure.
        tell: Hears progress.

    Raises:
        EdgeoptError: If it cannot be measured there, or the phone is gone before there is a figure.
    """
    plan = plan_load(options)
    subject = open_subject(
        source,
        target=wishes.target,
        recipe=wishes.recipe,
        threads=options.threads,
        entries=options.entries,
        shapes=shapes_of(options.source),
        sizes=options.shapes,
    )
    frames, notes = choose_frames(subject.recipe, options.source, subject.inputs)
    frames = frames.spread(PICTURES)
    notes = (*subject.notes, *notes, *place.notes_on([subject], frames))
    known = place.times_of(subject)
    while len(known.opened_ns) < _OPENINGS - 1:  # the run itself opens it once more
        place.open_once(subject)
    before = place.phone.state()
    heard = _run(place, subject, frames, options, tell)
    return _result(place, source, wishes, options, plan, heard, before, (subject, frames, notes))


def _run(place: PhonePlace, subject: Subject, frames: Frames, options: BenchOptions, tell: Tell) -> RunnerLog:
    all_s, spent_ns = warmup_for(options.measure_s) + options.measure_s, 0
    of = Tenths(max(20, round(10 * all_s)))

    def count(more_ns: int) -> None:
        nonlocal spent_ns
        spent_ns += more_ns
        tell("measure on the phone", min(spent_ns // 10**8, of - 1), of)

    heard = place.load(
        subject.pipeline,
        readers_of(frames),
        seconds=options.measure_s,
        min_frames=options.min_frames,
        on_rows=count,
    )
    tell("measure on the phone", of, of)
    return heard


def _result(
    place: PhonePlace,
    source: str,
    wishes: SubjectWishes,
    options: BenchOptions,
    plan: LoadPlan,
    heard: RunnerLog,
    before: PhoneState | None,
    opened: tuple[Subject, Frames, tuple[Note, ...]],
) -> FrameBenchResult:
    (subject, frames, notes), phone = opened, place.phone
    samples = heard.samples(subject.name)
    if not len(samples) and heard.lost is not None:
        raise heard.lost
    warmup = judge_warmup(samples, plan, options.measure_s)
    samples = replace(samples, warmup=warmup.mask(len(samples)))
    if not len(samples.steady()):
        raise heard.lost or EdgeoptError("no frame was run after warm-up", remedy="measure longer with --seconds")
    if heard.lost is not None:
        place.note(loss_of(heard.lost, plural(len(samples), "frame")))
    after = phone.state()
    state = {"before": before and before.as_json(), "after": after and after.as_json()}
    named = wishes.target if wishes.target.endswith(".toml") else subject.target.name
    setup = Setup(
        asked=source,
        asked_target="" if subject.brings_target else named,
        asked_recipe=wishes.recipe,
        options=options,
        plan=plan,
        subject=subject,
        pictures=frames,
        readers=(),
        pipelines=(),
        notes=(*notes, *place.notes),
        elsewhere=Elsewhere(phone.address, _facts(phone, heard, (before, after))),
    )
    load = summarize_load(samples, plan.load, budget_ms=setup.budget_ms, max_miss_ratio=options.max_miss_ratio)
    opened_ms = tuple(took / 1e6 for took in (*place.times_of(subject).opened_ns, *heard.opened_ns))
    info = {
        "load": str(plan),
        "pictures": len(frames),
        "source": str(frames.source),
        "phone.state": state,
    }
    return FrameBenchResult(
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
        notes=setup.notes,
        environment=subject.environment(None, info, subject.task.preprocess(frames.read(0))[0]),
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
