"""A plan from a stored result of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.resources.trust import told_trust
from edgeopt.measurement.samples import FRAME
from edgeopt.measurement.slo.day import DayPlan, plan_day, read_rates
from edgeopt.measurement.slo.plan import LoadPoint, Objective, SloPlan, Tell, Trials, plan_replicas
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.report.result import Result
from edgeopt.system.machine.environment import Environment
from edgeopt.system.text import format_ms, plural


@dataclass(frozen=True, slots=True)
class SloResult(Result):
    """A plan, and the measurement that it rests on."""

    command: ClassVar[str] = "slo"

    plan: SloPlan
    day: DayPlan | None
    """None: nobody told the rates of a day."""
    name: str
    """Name of what was measured."""
    kind: str
    """Its kind of workload."""
    trust: str
    """`trusted` or `noisy`; empty: not recorded."""
    environment: Environment
    """The machine that measured."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The assumptions, and what is wrong with the measurement."""
        notes = [Note(NoteKind.INFO, f"assumed: {_ASSUMED}")]
        if self.trust != "trusted":
            word = self.trust.upper() or "of unknown trust"
            notes.append(Note(NoteKind.WARNING, f"the measurement is {word}", "measure again on a quiet machine"))
        return tuple(notes)

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "trust": told_trust(self.trust),
            "plan": self.plan.as_json(),
            "day": self.day.as_json() if self.day else None,
            "notes": [asdict(note) for note in self.notes],
        }


def plan_from(
    result: Path,
    *,
    within_ms: float | None,
    share: float,
    rate_per_s: float | None,
    rates: Path | None,
    interval_s: float,
    delay_s: float,
    tell: Tell | None = None,
) -> SloResult:
    """Return a plan, and that of a day where its rates are there.

    Args:
        result: Folder of `edgeopt bench -o`.
        within_ms: Response that is promised; None: the result's budget.
        share: Of the responses.
        rate_per_s: Requests a second; None: the peak of the day.
        rates: File with the rates of a day.
        interval_s: Length of each of its intervals.
        delay_s: From a change of the rate to replicas that answer.
        tell: Hears progress.

    Raises:
        EdgeoptError: If a file cannot be used, nothing says at which rate, or no number of replicas keeps it.
    """
    stored = read_stored(result)
    if stored.samples.whole != FRAME:
        raise EdgeoptError(
            f"{result} holds times of answers, which hang on their lengths: a plan needs those of frames",
            remedy="name a result of a model of frames, or measure the server: edgeopt bench --endpoint URL --load",
        )
    if stored.over_network:
        raise EdgeoptError(
            f"{result} holds times of a server, the way to it among them: a plan needs those of the model",
            remedy="measure the model: edgeopt bench MODEL -o FOLDER",
        )
    if stored.samples.intended_ns is not None:
        raise EdgeoptError(
            f"{result} was measured with arrivals: its times hold waiting",
            remedy="measure without --load: edgeopt bench MODEL -o FOLDER",
        )
    if stored.trust == "invalid":
        raise EdgeoptError(f"{result} is INVALID: its figures mean nothing", remedy="measure it again")
    of_day = read_rates(rates) if rates else []
    if rate_per_s is None and not of_day:
        raise EdgeoptError("a plan needs a rate", remedy="write --rate 100, requests a second, or --rates FILE")
    if interval_s <= 0:
        raise EdgeoptError("intervals of no length", remedy="write --interval 5m")
    within_ms = stored.budget_ms if within_ms is None else within_ms
    if within_ms is None:
        raise EdgeoptError(f"{result} has no budget, so nothing says what is promised", remedy="write --within 50ms")
    objective = Objective(within_ms / 1e3, share)
    services_s = stored.samples.steady().served().frame_ns.astype(np.float64) / 1e9
    plan = plan_replicas(services_s, objective, rate_per_s or max(of_day), tell)
    day = None
    if of_day:
        day = plan_day(Trials(services_s, objective), of_day, interval_s, delay_s, plan.deployed.routing, tell)
    return SloResult(plan, day, stored.name, stored.kind, stored.trust, stored.environment)


# The lines of `edgeopt slo`.

_ASSUMED = (
    "requests come independently of each other; a replica answers one at a time, as fast as it did in the measurement; "
    "the network and the load balancer take no time"
)


def summarize(result: SloResult) -> Document:
    """Return what is shown of a plan."""
    plan, day, best = result.plan, result.day, result.plan.deployed
    sections = [
        Section(f"Replicas for {plan.rate_per_s:g} requests a second", make_table(plan.needed, _NEEDED)),
        Section(f"{plural(best.high, 'replica')}, {best.routing}, by rate", make_table(plan.points, _points(plan))),
    ]
    if day is not None:
        sections.append(Section("Replicas that follow the day", make_table(day.followed, _FOLLOWED)))
    sections.append(Section("Notes", notes=result.notes))
    facts = (
        Value("service", f"{1000 * plan.service_s:.3g} ms on average, {plan.services} measured"),
        Value("knee", f"{_knee(plan)} requests a second with these replicas: beyond, the objective is missed"),
        *(_day_facts(day) if day else ()),
    )
    count = f"{plural(best.high, 'replica')} [{best.low}, {best.high}]"
    sentence = f"{count} keep {plan.objective} at {plan.rate_per_s:g} requests a second, {best.routing}"
    return Document(
        result,
        result.name,
        f"{plan.objective} of {result.name}",
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
