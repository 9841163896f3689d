"""Simulated queues follow their theory, and each other."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from edgeopt.measurement.slo.routing import Routing, Seconds, responses

COUNT = 60_000


def drawn(rate: float, seed: int = 0) -> tuple[Seconds, Seconds]:
    """Return arrivals at a rate, and services of a mean of 1, both memoryless."""
    generator = np.random.default_rng(seed)
    return np.cumsum(generator.exponential(1 / rate, COUNT)), generator.exponential(1.0, COUNT)


@pytest.mark.parametrize("routing", list(Routing))
def test_one_replica_is_a_queue_whose_response_is_exponential(routing):
    """M/M/1: the response has the rate 1 - 0.6."""
    taken = responses(*drawn(0.6), 1, routing)
    assert taken.mean() == pytest.approx(1 / 0.4, rel=0.06)
    assert np.quantile(taken, 0.99) == pytest.approx(-math.log(0.01) / 0.4, rel=0.1)


def test_a_shared_queue_waits_as_erlang_says():
    """M/M/4 at a load of 3.2: Erlang's C is 0.5964, the mean wait C / (4 - 3.2)."""
    arrivals, services = drawn(3.2)
    waits = responses(arrivals, services, 4, Routing.SHARED_QUEUE) - services
    assert waits.mean() == pytest.approx(0.5964 / 0.8, rel=0.1)
    assert (waits > 1e-12).mean() == pytest.approx(0.5964, rel=0.05)


def test_round_robin_is_what_a_queue_each_gives():
    arrivals, services = drawn(2.0)
    free = deque([0.0] * 3)
    expected = []
    for arrival, service in zip(arrivals[:2000], services[:2000], strict=True):
        done = max(arrival, free.popleft()) + service
        free.append(done)
        expected.append(done - arrival)
    assert responses(arrivals[:2000], services[:2000], 3, Routing.ROUND_ROBIN) == pytest.approx(expected)


def test_ways_of_routing_keep_their_order():
    arrivals, services = drawn(6.8)
    tails = [np.quantile(responses(arrivals, services, 8, routing), 0.99) for routing in Routing]
    assert tails == sorted(tails)


def test_nobody_waits_where_there_is_a_replica_for_everybody():
    arrivals, services = np.arange(50) / 10, np.full(50, 1.0)
    for routing in (Routing.SHARED_QUEUE, Routing.LEAST_OUTSTANDING, Routing.ROUND_ROBIN):
        assert responses(arrivals, services, 10, routing) == pytest.approx(1.0)
