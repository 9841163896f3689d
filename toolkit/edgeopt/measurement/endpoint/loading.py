"""The load of a server, and how its requests are run and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.models import Load, OpenLoad, examples, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.requests import Outcome, RequestRun, Requests, run_requests
from edgeopt.system.amounts import Tenths

LEAST_ANSWERS, LONGEST = 6, 10
"""Least answers and longest of each kind, though that takes up to so many times the seconds asked for."""
Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of the work, the amount done, and the whole amount."""


def parse_server_load(text: str) -> Closed | OpenLoad:
    """Return the load of a server.

    Raises:
        EdgeoptError: If it is none.
    """
    load = parse_load(text)
    if not isinstance(load, Closed | OpenLoad):
        raise EdgeoptError(f"a server takes no load {text}", remedy=f"write {examples()}")
    return load


def is_alone(load: Load) -> bool:
    """Return whether a load is one request at a time, which is measured in any case."""
    return isinstance(load, Closed) and load.workers == 1


@dataclass(frozen=True, slots=True)
class ServerRequests(Requests[Outcome]):
    """Requests to a server, each sent by a thread that waits for its answer."""

    asks: Callable[[int, int], Outcome]
    """Sends the request of a number, which should be sent at an instant of `perf_counter_ns`."""

    def ask(self, number: int, due_ns: int) -> Outcome:
        """Send a request, and wait for its end."""
        return self.asks(number, due_ns)


def ask_under(
    load: Closed | OpenLoad, asks: Callable[[int, int], Outcome], *, seconds: float, seed: int, tell: Tell
) -> RequestRun[Outcome]:
    """Send the requests of a load to a server; users go on until there are `LEAST_ANSWERS`, up to ten times as long.

    Args:
        load: When requests are sent.
        asks: As of `ServerRequests`.
        seconds: How long requests are sent.
        seed: Of the timetable.
        tell: Hears progress.
    """
    began_s, title = monotonic(), f"ask under {load}"
    return run_requests(
        load,
        ServerRequests(asks),
        seconds=seconds,
        seed=seed,
        least=LEAST_ANSWERS,
        longest_s=LONGEST * seconds,
        tell=lambda _: tell_time(tell, title, began_s, seconds),
    )


def tell_time(tell: Tell, what: str, began_s: float, seconds: float) -> None:
    """Tell how much of the seconds is over."""
    tell(what, min(int(10 * (monotonic() - began_s)), int(10 * seconds)), Tenths(10 * seconds))
