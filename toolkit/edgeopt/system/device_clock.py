"""The device's clock: this machine's, less what a run spends on its way to an engine in another program and back.

An engine in a browser's page tells its own times. What carries inputs and outputs between the page and this process is
no part of them: an app in that page has no such way. So this clock stands still meanwhile, in the thread that waits.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns


class _Carriage(threading.local):
    """Nanoseconds that this thread's runs were on their way."""

    ns = 0


_carriage = _Carriage()


def device_clock() -> int:
    """Return nanoseconds that never go back in one thread."""
    return perf_counter_ns() - _carriage.ns


def add_carriage(duration_ns: int) -> None:
    """Leave out a time that has just passed in this thread.

    Args:
        duration_ns: No longer than what passed; below 0 (the other program's clock is coarser) nothing is left out.
    """
    _carriage.ns += max(duration_ns, 0)


def carriage_s() -> float:
    """Return the seconds that were left out in this thread so far, for who measures by another clock."""
    return _carriage.ns / 1e9
