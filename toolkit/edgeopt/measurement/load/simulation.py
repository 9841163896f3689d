"""The open loop without machine and clock: arrivals, service times and a queue give response times."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.load.arrivals import Arrivals
from edgeopt.measurement.load.queueing import FIFO, Line, QueuePolicy
from edgeopt.measurement.samples import Samples


def simulate(
    arrivals: Arrivals, service_ns: NDArray[np.int64], policy: QueuePolicy = FIFO, workers: int = 1
) -> Samples:
    """Return the samples of a run in which each row takes the time given for it; no row is warm-up.

    Args:
        arrivals: The timetable.
        service_ns: (n,) for each arrival, whether it will be served or not.
        policy: Of the queue.
        workers: 1 or more, all alike.

    Raises:
        ValueError: If there is no worker, or not one service time an arrival.
    """
    n = len(arrivals)
    if service_ns.shape != (n,) or workers < 1:
        raise ValueError(f"need {n} service times and a worker, got {service_ns.shape} and {workers}")
    line, free = Line(arrivals, policy), [0] * workers
    started, served = arrivals.intended_ns.copy(), np.zeros(n, np.bool_)
    while free:
        now = heapq.heappop(free)
        row = line.take(now)
        if row is None and (row := line.take_next()) is None:
            continue  # nothing waits and nothing comes: the worker goes home
        started[row], served[row] = max(now, int(arrivals.intended_ns[row])), True
        heapq.heappush(free, int(started[row] + service_ns[row]))
    times = np.where(served, service_ns, 0)
    return Samples(
        stages=("execute",),
        times_ns=times[:, None],
        frame_ns=times,
        warmup=np.zeros(n, np.bool_),
        variant="simulated",
        started_ns=started,
        done_ns=started + times,
        intended_ns=arrivals.intended_ns,
        arrived_ns=arrivals.intended_ns,
        stream=arrivals.stream,
        input_id=np.arange(n),
        dropped=line.dropped,
        failed=np.zeros(n, np.bool_),
    )
