"""Requests to a server under a load: users that ask again when they have their answer, or a timetable."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from time import monotonic, perf_counter_ns, sleep
from typing import Protocol, TypeAlias, TypeVar

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import Load, OpenLoad, examples, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.open_loop import wait_by
from edgeopt.system.amounts import Tenths

LEAST_ANSWERS, LONGEST = 6, 10
"""Least answers and longest of each kind, though that takes up to so many times the seconds asked for."""
_MOST_AT_ONCE = 256
Tell: TypeAlias = Callable[[str, int, int], None]
"""What is going on, how much of it is done, and of how much."""


class RequestOutcome(Protocol):
    """The end of one request, whatever was asked."""

    @property
    def is_whole(self) -> bool:
        """Whether it was answered to its end."""
        ...

    @property
    def end_ns(self) -> int:
        """Nanoseconds since it should have been sent."""
        ...


Asked = TypeVar("Asked", bound=RequestOutcome)


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


def run_requests(
    load: Closed | OpenLoad, ask: Callable[[int, int], Asked], *, seconds: float, seed: int, tell: Tell
) -> tuple[list[Asked], float]:
    """Return what became of the requests of a load, and the seconds until the last answer.

    Args:
        load: When requests are sent.
        ask: Sends the request of this number, which should be sent at this instant of `perf_counter_ns`; 0: now.
        seconds: How long requests are sent; users go on until there are `LEAST_ANSWERS`, up to ten times as long.
        seed: Of the timetable.
        tell: Hears progress.
    """
    began_s, outcomes, numbers, is_over = monotonic(), list[Asked](), count(), Event()
    what = f"ask under {load}"

    def goes_on() -> bool:
        over_s = monotonic() - began_s
        is_short = len(outcomes) < LEAST_ANSWERS and over_s < LONGEST * seconds
        return not is_over.is_set() and (over_s < seconds or is_short)

    def one_user(_: int) -> None:
        while goes_on():
            outcome = ask(next(numbers), 0)
            outcomes.append(outcome)
            tell_time(tell, what, began_s, seconds)
            if not outcome.is_whole:
                wait_a_little(outcome)

    def by_timetable(pool: ThreadPoolExecutor, timetable: OpenLoad) -> list[Asked]:
        wait, began_ns, sent = wait_by(perf_counter_ns), perf_counter_ns(), []
        instants = make_arrivals(timetable, seconds=seconds, seed=seed).intended_ns.tolist()
        for number, at_ns in enumerate(instants):
            wait(began_ns + at_ns)
            sent.append(pool.submit(ask, number, began_ns + int(at_ns)))
            tell_time(tell, what, began_s, seconds)
        return [request.result() for request in sent]

    with ThreadPoolExecutor(load.workers if isinstance(load, Closed) else _MOST_AT_ONCE) as pool:
        try:
            if isinstance(load, OpenLoad):
                outcomes = by_timetable(pool, load)
            else:
                list(pool.map(one_user, range(load.workers)))
        except BaseException:  # Ctrl-C too: who asks ends with the request at hand
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes, monotonic() - began_s


def wait_a_little(failed: RequestOutcome) -> None:
    """Let a server breathe that refused: a client that asks again at once measures its own speed."""
    sleep(0.1 if failed.end_ns < 1e8 else 0.0)


def tell_time(tell: Tell, what: str, began_s: float, seconds: float) -> None:
    """Tell how much of the seconds is over."""
    tell(what, min(int(10 * (monotonic() - began_s)), int(10 * seconds)), Tenths(10 * seconds))
