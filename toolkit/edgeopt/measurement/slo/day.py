"""A day of rates: replicas that stay, or replicas that follow the rate and come late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.slo.plan import Tell, Trials
from edgeopt.measurement.slo.routing import Routing, responses
from edgeopt.system.disk.files import read_text

_HEADROOMS: Final = (0.0, 0.1, 0.25, 0.5, 1.0)
_GRID: Final = 1.1
"""Rates are rounded up to steps of 10 %."""
_TRIALS: Final = 6
"""Trials of each step: a day has many steps."""
_MOST_RATES: Final = 100_000
_MOST_SIMULATED: Final = 20_000
_REMEDY: Final = "write requests a second, a number a line, one for each interval"


@dataclass(frozen=True, slots=True)
class Followed:
    """Replicas that follow the rate, ordered with headroom."""

    headroom: float
    """Share that is ordered beyond what the rate of the moment needs."""
    replica_hours: float
    late_share: float
    """Share of the day's requests whose answer comes after the limit."""
    is_kept: bool


@dataclass(frozen=True, slots=True)
class DayPlan:
    """The replicas of a day."""

    interval_s: float
    delay_s: float
    """Seconds from a change of the rate to replicas that answer: the scaler's lag and the cold start."""
    requests: float
    peak_per_s: float
    static_replicas: int
    static_hours: float
    followed: tuple[Followed, ...]

    @property
    def best(self) -> Followed | None:
        """The least headroom that keeps the objective over the day; None: none does."""
        return next((each for each in self.followed if each.is_kept), None)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"best": asdict(self.best) if self.best else None}


def read_rates(path: Path) -> list[float]:
    """Read the rates of a day: a number a line, requests a second in each interval.

    Raises:
        InvalidFileError: If it holds anything else.
    """
    lines = [line.strip() for line in read_text(path, remedy=_REMEDY).splitlines() if line.strip()]
    rates = list[float]()
    for number, line in enumerate(lines, 1):
        try:
            rate = float(line)
        except ValueError as error:
            raise InvalidFileError(f"line {number} of {path} is no number: {line[:40]}", remedy=_REMEDY) from error
        if not (math.isfinite(rate) and rate >= 0):
            raise InvalidFileError(f"line {number} of {path} is no rate: {line[:40]}", remedy=_REMEDY)
        rates.append(rate)
    if not rates or len(rates) > _MOST_RATES or not any(rates):
        raise InvalidFileError(f"{path} holds {len(rates)} rates above 0", remedy=_REMEDY)
    return rates


def plan_day(
    trials: Trials,
    rates: Sequence[float],
    interval_s: float,
    delay_s: float,
    routing: Routing,
    tell: Tell | None = None,
) -> DayPlan:
    """Plan for rates that change, each for an interval.

    Args:
        trials: Services and objective.
        rates: Requests a second, in order.
        interval_s: Length of each, in seconds.
        delay_s: See `DayPlan`.
        routing: How requests are spread.
        tell: Hears progress.
    """
    steps = [math.ceil(math.log(rate, _GRID)) if rate > 0 else None for rate in rates]
    replicas = dict[int, int]()
    known = sorted({step for step in steps if step is not None})
    for count, step in enumerate(known):
        if tell:
            tell("simulate the rates of the day", count, len(known))
        replicas[step] = trials.needed(_GRID**step, routing, _TRIALS).high

    @cache
    def late_at(step: int, replicas: int, seconds: float) -> float:
        return _late_share(trials, _GRID**step, replicas, seconds, routing)

    needed = [0 if step is None else replicas[step] for step in steps]
    counts, peak = np.array(rates) * interval_s, max(needed)
    behind, rest_s = divmod(delay_s, interval_s)
    followed = list[Followed]()
    for headroom in _HEADROOMS:
        ordered = [max(math.ceil(count * (1 + headroom)), 1) for count in needed]
        hours, late = 0.0, np.zeros(len(rates))
        for place, wanted in enumerate(steps):
            newest = place - int(behind)  # ordered so long ago that they answer once the rest of the delay is over
            for ready, seconds in (
                (ordered[max(newest - 1, 0)], rest_s),
                (ordered[max(newest, 0)], interval_s - rest_s),
            ):
                hours += ready * seconds / 3600
                if wanted is not None and ready < needed[place] and seconds:
                    late[place] += late_at(wanted, ready, seconds) * seconds / interval_s
        share = float((counts * late).sum() / counts.sum())
        followed.append(Followed(headroom, hours, share, share <= 1 - trials.objective.share))
    day_s = len(rates) * interval_s
    return DayPlan(interval_s, delay_s, float(counts.sum()), max(rates), peak, peak * day_s / 3600, tuple(followed))


def _late_share(trials: Trials, rate_per_s: float, replicas: int, seconds: float, routing: Routing) -> float:
    """Return the share of the responses over the limit in some seconds that begin with empty queues."""
    count = max(min(int(rate_per_s * seconds), _MOST_SIMULATED), 1)
    generator = np.random.default_rng(0)
    arrivals = np.cumsum(generator.exponential(1 / rate_per_s, count))
    services = generator.choice(trials.services_s, count)
    taken = responses(arrivals, services, replicas, routing)
    return float((taken > trials.objective.limit_s).mean())
