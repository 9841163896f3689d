"""Replicas that answer requests, one at a time each, and how requests are spread over them.

A request waits in the queue of its replica, first come first served. Its response takes the wait and the service.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


class Routing(StrEnum):
    """A way to spread requests."""

    SHARED_QUEUE = "shared queue"
    """One queue before all; the bound that no other way passes."""
    LEAST_OUTSTANDING = "least outstanding"
    """Each request goes to the replica with the fewest requests that wait or run."""
    POWER_OF_TWO = "power of two"
    """Each request goes to the emptier of two replicas drawn at random (Mitzenmacher 2001)."""
    ROUND_ROBIN = "round robin"
    """Requests go to the replicas in turn."""


def responses(arrivals_s: Seconds, services_s: Seconds, replicas: int, routing: Routing, seed: int = 0) -> Seconds:
    """Return (n,) the seconds from each request to its answer.

    Args:
        arrivals_s: (n,) when requests come, ascending.
        services_s: (n,) how long each runs.
        replicas: 1 or more.
        routing: How they are spread.
        seed: Of what is drawn.
    """
    if routing is Routing.SHARED_QUEUE:
        return _shared(arrivals_s, services_s, replicas)
    if routing is Routing.ROUND_ROBIN:
        return _in_turn(arrivals_s, services_s, replicas)
    draws = np.random.default_rng(seed).integers(0, 2**31, (len(arrivals_s), 2)).tolist()
    fleet = _Fleet(replicas)
    if routing is Routing.POWER_OF_TWO:
        return _by_length(arrivals_s, services_s, fleet, lambda i: fleet.shorter(*draws[i]))
    return _by_length(arrivals_s, services_s, fleet, lambda i: fleet.shortest(draws[i][0]))


def _shared(arrivals_s: Seconds, services_s: Seconds, replicas: int) -> Seconds:
    free_s = [0.0] * replicas
    result = np.empty(len(arrivals_s))
    for i, (arrival, service) in enumerate(zip(arrivals_s.tolist(), services_s.tolist(), strict=True)):
        done = max(arrival, free_s[0]) + service
        heapq.heapreplace(free_s, done)
        result[i] = done - arrival
    return result


def _in_turn(arrivals_s: Seconds, services_s: Seconds, replicas: int) -> Seconds:
    """Each replica is a queue of its own: Lindley's recursion, over its share of the requests."""
    result = np.empty(len(arrivals_s))
    for replica in range(replicas):
        arrivals, services = arrivals_s[replica::replicas], services_s[replica::replicas]
        served = np.cumsum(services)
        starts = np.maximum.accumulate(arrivals - (served - services))  # the last time at which nothing waited
        result[replica::replicas] = starts + served - arrivals
    return result


class _Fleet:
    """Replicas by how many requests each has: the shortest queue is at hand, however many replicas there are."""

    def __init__(self, replicas: int) -> None:
        self._lengths = [0] * replicas
        self._by_length = [list(range(replicas))]
        self._places = list(range(replicas))
        """Where each replica stands in the list of its length."""

    def shorter(self, draw: int, other: int) -> int:
        """Return the replica with the shorter queue of two that are drawn."""
        first, second = draw % len(self._lengths), other % len(self._lengths)
        return first if self._lengths[first] <= self._lengths[second] else second

    def shortest(self, draw: int) -> int:
        """Return a replica with the shortest queue, drawn among those."""
        shortest = next(each for each in self._by_length if each)
        return shortest[draw % len(shortest)]

    def change(self, replica: int, by: int) -> None:
        """Add a request to a replica, or take one away."""
        length, place = self._lengths[replica], self._places[replica]
        before = self._by_length[length]
        last = before.pop()
        if last != replica:
            before[place], self._places[last] = last, place
        if length + by == len(self._by_length):
            self._by_length.append([])
        after = self._by_length[length + by]
        self._lengths[replica], self._places[replica] = length + by, len(after)
        after.append(replica)


def _by_length(arrivals_s: Seconds, services_s: Seconds, fleet: _Fleet, choose: Callable[[int], int]) -> Seconds:
    """Send each request where its number says, after those that are done have left."""
    running, last_s = list[tuple[float, int]](), dict[int, float]()
    result = np.empty(len(arrivals_s))
    for i, (arrival, service) in enumerate(zip(arrivals_s.tolist(), services_s.tolist(), strict=True)):
        while running and running[0][0] <= arrival:
            fleet.change(heapq.heappop(running)[1], -1)
        replica = choose(i)
        done = max(arrival, last_s.get(replica, 0.0)) + service
        last_s[replica] = done
        heapq.heappush(running, (done, replica))
        fleet.change(replica, 1)
        result[i] = done - arrival
    return result
