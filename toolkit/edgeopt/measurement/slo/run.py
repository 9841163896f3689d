"""A plan from a stored result of `bench`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.slo.day import DayPlan, plan_day, read_rates
from edgeopt.measurement.slo.plan import Objective, SloPlan, Tell, Trials, plan_replicas


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
) -> tuple[SloPlan, DayPlan | None, str, str]:
    """Return a plan, that of a day where its rates are there, and the name and trust of the measurement.

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
    objective = Objective((stored.budget_ms if within_ms is None else within_ms) / 1e3, share)
    services_s = stored.samples.steady().served().frame_ns.astype(np.float64) / 1e9
    plan = plan_replicas(services_s, objective, rate_per_s or max(of_day), tell)
    day = None
    if of_day:
        day = plan_day(Trials(services_s, objective), of_day, interval_s, delay_s, plan.deployed.routing, tell)
    return plan, day, stored.name, stored.trust
