"""The least number of replicas that keeps an objective at a rate, with what the measurement leaves open."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.slo.routing import Routing, Seconds, responses
from edgeopt.system.order_statistic import order_statistic

_TRIALS: Final = 20
"""Each with other arrivals and other blocks of the measured services: its largest number is a bound at 95 %."""
_REQUESTS: Final = 10_000
_BLOCK: Final = 50
"""Services that follow each other are alike; so many stay together when they are drawn anew."""
_LEAST_SERVICES: Final = 100
_MOST_REPLICAS: Final = 2000
_SHARES: Final = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Objective:
    """The promise about responses."""

    limit_s: float
    share: float = 0.99
    """Share of the responses within the limit."""

    def __str__(self) -> str:
        return f"p{100 * self.share:g} of {1000 * self.limit_s:g} ms"

    def quantile_s(self, responses_s: Seconds) -> float:
        """Return the response that the share of them keeps."""
        return order_statistic(np.sort((responses_s * 1e9).astype(np.int64)), self.share) / 1e9


@dataclass(frozen=True, slots=True)
class Needed:
    """The replicas that one way of routing needs."""

    routing: Routing
    low: int
    """Least number in a trial."""
    median: int
    high: int
    """Number that keeps the objective in every trial: the one to deploy."""
    utilization: float
    """Share of the time that these replicas run."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Responses of a fixed number of replicas at a rate."""

    rate_per_s: float
    utilization: float
    p50_s: float
    low_s: float
    high_s: float
    """`low_s` to `high_s`: the quantile of the objective over the trials."""
    is_kept: bool
    """Whether every trial keeps the objective."""


@dataclass(frozen=True, slots=True)
class SloPlan:
    """How many replicas, and where the knee is."""

    objective: Objective
    rate_per_s: float
    service_s: float
    """Mean of a service."""
    services: int
    """How many were measured."""
    needed: tuple[Needed, ...]
    """Replicas that each routing needs, the fewest first."""
    points: tuple[LoadPoint, ...]
    """The replicas to deploy at shares of the rate."""
    knee_per_s: float
    """Highest rate that they keep the objective at, in every trial."""
    knee_high_per_s: float
    """Highest rate that they keep it at in any trial."""

    @property
    def deployed(self) -> Needed:
        """The best way that a load balancer can do: none shares one queue."""
        return next(each for each in self.needed if each.routing is not Routing.SHARED_QUEUE)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"deployed": asdict(self.deployed)}


class Trials:
    """The same draws of arrivals and services for every question, so that answers can be compared."""

    def __init__(self, services_s: Seconds, objective: Objective) -> None:
        """Draw them.

        Raises:
            EdgeoptError: If too few services were measured, or one alone takes longer than the objective.
        """
        if len(services_s) < _LEAST_SERVICES:
            problem = f"{len(services_s)} frames were measured, and a plan needs {_LEAST_SERVICES}"
            raise EdgeoptError(problem, remedy="measure longer: edgeopt bench ... --seconds 30 -o FOLDER")
        self.services_s, self.objective = services_s, objective
        alone_s = objective.quantile_s(services_s)
        if alone_s > objective.limit_s:
            problem = (
                f"no number of replicas keeps {objective}: a frame alone takes {1000 * alone_s:.3g} ms at that share"
            )
            raise EdgeoptError(problem, remedy="allow more, or make the model faster: edgeopt optimize")
        generator = np.random.default_rng(0)
        blocks, most = math.ceil(_REQUESTS / _BLOCK), max(len(services_s) - _BLOCK, 1)
        starts = generator.integers(0, most, (_TRIALS, blocks, 1))
        places = (starts + np.arange(_BLOCK)).reshape(_TRIALS, -1)[:, :_REQUESTS] % len(services_s)
        self._services = services_s[places]
        self._gaps = generator.exponential(size=(_TRIALS, _REQUESTS))

    def quantiles(self, rate_per_s: float, replicas: int, routing: Routing) -> list[tuple[float, float]]:
        """Return for each trial the median response and that of the objective, in seconds."""
        return [self._run(trial, rate_per_s, replicas, routing) for trial in range(_TRIALS)]

    def least(self, trial: int, rate_per_s: float, routing: Routing, guess: int = 0) -> int:
        """Return the least number of replicas that keeps the objective in a trial.

        Args:
            trial: Its number.
            rate_per_s: Requests a second.
            routing: How they are spread.
            guess: Number that another trial needs: it is near; 0: nothing is known.

        Raises:
            EdgeoptError: If it is above 2000.
        """
        few = max(math.ceil(rate_per_s * float(self.services_s.mean())), 1)  # fewer never catch up
        count = max(guess, few)
        if guess and self._keeps(trial, rate_per_s, count, routing):
            while count > few and self._keeps(trial, rate_per_s, count - 1, routing):
                count -= 1
            return count
        low, high = (count, count + 1) if guess else (count - 1, count)
        while high <= _MOST_REPLICAS and not self._keeps(trial, rate_per_s, high, routing):
            low, high = high, high + max(high // 8, 1)
        if high > _MOST_REPLICAS:
            problem = f"more than {_MOST_REPLICAS} replicas would be needed at {rate_per_s:g} requests a second"
            raise EdgeoptError(problem, remedy="plan for a lower rate")
        while high - low > 1:
            middle = (low + high) // 2
            if self._keeps(trial, rate_per_s, middle, routing):
                high = middle
            else:
                low = middle
        return high

    def _keeps(self, trial: int, rate_per_s: float, replicas: int, routing: Routing) -> bool:
        return self._run(trial, rate_per_s, replicas, routing)[1] <= self.objective.limit_s

    def _run(self, trial: int, rate_per_s: float, replicas: int, routing: Routing) -> tuple[float, float]:
        arrivals = np.cumsum(self._gaps[trial]) / rate_per_s
        taken = responses(arrivals, self._services[trial], replicas, routing, seed=trial)
        return float(np.median(taken)), self.objective.quantile_s(taken)

    def needed(self, rate_per_s: float, routing: Routing, most: int = _TRIALS) -> Needed:
        """Return the replicas that a way of routing needs at a rate, by so many trials at most."""
        counts = [0]
        for trial in range(min(_TRIALS, most)):
            counts.append(self.least(trial, rate_per_s, routing, counts[-1]))
        counts = sorted(counts[1:])
        used = rate_per_s * float(self.services_s.mean()) / counts[-1]
        return Needed(routing, counts[0], counts[len(counts) // 2], counts[-1], used)


def plan_replicas(services_s: Seconds, objective: Objective, rate_per_s: float, tell: Tell | None = None) -> SloPlan:
    """Plan for requests that come at a rate, independently of each other.

    Args:
        services_s: (n,) measured seconds of requests that did not wait, in their order.
        objective: What is promised.
        rate_per_s: Requests a second, all replicas together.
        tell: Hears progress.

    Raises:
        EdgeoptError: If no number of replicas keeps the objective, or too few services were measured.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise EdgeoptError(f"a rate of {rate_per_s:g} requests a second", remedy="pass a number above 0")
    trials, needed = Trials(services_s, objective), list[Needed]()
    for count, routing in enumerate(Routing):
        if tell:
            tell("simulate", count, len(Routing) + 1)
        needed.append(trials.needed(rate_per_s, routing))
    ordered = sorted(needed, key=lambda each: each.high)
    best = next(each for each in ordered if each.routing is not Routing.SHARED_QUEUE)
    points = tuple(_point(trials, share * rate_per_s, best) for share in _SHARES)
    limit_s = objective.limit_s
    knee = _knee(trials, rate_per_s, best, lambda point: point.high_s <= limit_s)
    knee_high = _knee(trials, knee, best, lambda point: point.low_s <= limit_s)
    if tell:
        tell("simulate", len(Routing) + 1, len(Routing) + 1)
    mean_s = float(services_s.mean())
    return SloPlan(objective, rate_per_s, mean_s, len(services_s), tuple(ordered), points, knee, knee_high)


def _point(trials: Trials, rate_per_s: float, best: Needed) -> LoadPoint:
    pairs = trials.quantiles(rate_per_s, best.high, best.routing)
    tails = [tail for _, tail in pairs]
    used = rate_per_s * float(trials.services_s.mean()) / best.high
    median = float(np.median([middle for middle, _ in pairs]))
    return LoadPoint(rate_per_s, used, median, min(tails), max(tails), max(tails) <= trials.objective.limit_s)


def _knee(trials: Trials, least_per_s: float, best: Needed, keeps: Callable[[LoadPoint], bool]) -> float:
    """Return the highest rate at which the replicas keep the objective, to 1 %, from a rate on at which they do."""
    low, high = least_per_s, best.high / float(trials.services_s.mean())
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        if keeps(_point(trials, middle, best)):
            low = middle
        else:
            high = middle
    return low
