"""The lines of `edgeopt slo`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.slo.day import DayPlan
from edgeopt.measurement.slo.plan import LoadPoint, SloPlan
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.system.text import format_ms, plural

_ASSUMED = (
    "requests come independently of each other; a replica answers one at a time, as fast as it did in the measurement; "
    "the network and the load balancer take no time"
)


def summarize(plan: SloPlan, day: DayPlan | None, name: str, trust: str) -> Document:
    """Return what is shown of a plan."""
    best = plan.deployed
    sections = [
        Section(f"Replicas for {plan.rate_per_s:g} requests a second", make_table(plan.needed, _NEEDED)),
        Section(f"{plural(best.high, 'replica')}, {best.routing}, by rate", make_table(plan.points, _points(plan))),
    ]
    if day is not None:
        sections.append(Section("Replicas that follow the day", make_table(day.followed, _FOLLOWED)))
    notes = [Note(NoteKind.INFO, f"assumed: {_ASSUMED}")]
    if trust != "trusted":
        notes.append(Note(NoteKind.WARNING, f"the measurement is {trust.upper()}", "measure again on a quiet machine"))
    sections.append(Section("Notes", notes=tuple(notes)))
    facts = (
        Value("service", f"{1000 * plan.service_s:.3g} ms on average, {plan.services} measured"),
        Value("knee", f"{_knee(plan)} requests a second with these replicas: beyond, the objective is missed"),
        *(_day_facts(day) if day else ()),
    )
    count = f"{plural(best.high, 'replica')} [{best.low}, {best.high}]"
    sentence = f"{count} keep {plan.objective} at {plan.rate_per_s:g} requests a second, {best.routing}"
    data = {"plan": plan.as_json(), "day": day.as_json() if day else None}
    return Document(
        "slo",
        name,
        f"{plan.objective} of {name}",
        data,
        tuple(sections),
        verdict=VerdictLines(CommandOutcome.DONE, sentence, facts),
    )


def _knee(plan: SloPlan) -> str:
    """Return the highest rate that all trials keep, and the one that any keeps."""
    return f"{plan.knee_per_s:.4g} [{plan.knee_per_s:.4g}, {plan.knee_high_per_s:.4g}]"


def _ms(seconds: float) -> str:
    return format_ms(seconds * 1e9)


_NEEDED = {
    "routing": lambda each: str(each.routing),
    "replicas": lambda each: str(each.high),
    "in trials": lambda each: f"{each.low} to {each.high}",
    "busy": lambda each: f"{each.utilization:.0%}",
}
_FOLLOWED = {
    "headroom": lambda each: f"{each.headroom:.0%}",
    "replica hours": lambda each: f"{each.replica_hours:.1f}",
    "late": lambda each: f"{each.late_share:.3%}",
    "objective": lambda each: "kept" if each.is_kept else "missed",
}


def _points(plan: SloPlan) -> dict[str, Callable[[LoadPoint], str]]:
    return {
        "requests/s": lambda point: f"{point.rate_per_s:.4g}",
        "busy": lambda point: f"{point.utilization:.0%}",
        "p50 ms": lambda point: _ms(point.p50_s),
        f"p{100 * plan.objective.share:g} ms": lambda point: f"{_ms(point.low_s)} to {_ms(point.high_s)}",
        "objective": lambda point: "kept" if point.is_kept else "missed",
    }


def _day_facts(day: DayPlan) -> Iterator[Value]:
    count = f"{plural(day.static_replicas, 'replica')} for the peak of {day.peak_per_s:g}/s"
    yield Value("static", f"{count}: {day.static_hours:.1f} replica hours")
    best, behind = day.best, f"replicas that come {day.delay_s:g} s late"
    if best is None:
        yield Value("following", f"no headroom up to 100% keeps the objective with {behind}")
        return
    hours = f"{best.replica_hours:.1f} replica hours"
    yield Value("following", f"{best.headroom:.0%} headroom, {hours}, {best.late_share:.3%} late, with {behind}")
