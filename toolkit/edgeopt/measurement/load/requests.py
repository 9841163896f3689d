"""Requests under a load, whoever answers them: users that ask again when they have their answer, or a timetable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Event, Lock
from time import perf_counter_ns, sleep
from typing import Generic, Protocol, TypeVar

from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.open_loop import wait_by

_MOST_AT_ONCE = 256
"""Threads that wait for answers to a timetable's requests."""
_REFUSED_NS, _PAUSE_S = 1e8, 0.1
"""A request that failed sooner was refused; a client that asks again at once measures its own speed."""


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


Outcome = TypeVar("Outcome", bound=RequestOutcome)


class Requests(ABC, Generic[Outcome]):
    """The requests of a load, by number; several threads may ask at once."""

    @abstractmethod
    def ask(self, number: int, due_ns: int) -> Outcome:
        """Send a request, and wait for its end.

        Args:
            number: Counted from 0 in the order of sending.
            due_ns: Instant of `perf_counter_ns` at which it should be sent; 0: as soon as it is made.
        """

    def send(self, number: int, due_ns: int, pool: ThreadPoolExecutor) -> Callable[[], Outcome]:
        """Send a request of a timetable without waiting for its answer.

        Args:
            number: As of `ask`.
            due_ns: As of `ask`.
            pool: Threads that may wait in its place.

        Returns:
            Waits for its end; called when all have been sent.
        """
        return pool.submit(self.ask, number, due_ns).result

    def begun(self, began_ns: int) -> None:
        """Note the instant of `perf_counter_ns` at which the run began."""

    def all_sent(self) -> None:
        """Note that the last request of a timetable was sent."""


@dataclass(frozen=True, slots=True)
class RequestRun(Generic[Outcome]):
    """The requests of a load, and how long they went on."""

    outcomes: tuple[Outcome, ...]
    """Outcomes in the order in which requests ended; of a timetable in the order in which they were sent."""
    window_ns: int
    """Nanoseconds in which requests were sent."""
    seconds: float
    """Until the last answer."""


def run_requests(
    load: Load,
    requests: Requests[Outcome],
    *,
    seconds: float,
    seed: int,
    least: int,
    longest_s: float,
    tell: Callable[[float], None],
) -> RequestRun[Outcome]:
    """Send the requests of a load, and wait for their ends.

    Args:
        load: A closed one is so many users, each asking again when it has its answer; an open one gives instants.
        requests: Sends them.
        seconds: How long requests are sent.
        seed: Of the timetable.
        least: Users go on until there are so many answers.
        longest_s: Users end after so long, however few answers there are.
        tell: Hears how many seconds are over.
    """
    began_ns, outcomes, is_over = perf_counter_ns(), list[Outcome](), Event()
    requests.begun(began_ns)
    users = load.workers if isinstance(load, Closed) else 1
    with ThreadPoolExecutor(_MOST_AT_ONCE if isinstance(load, OpenLoad) else users) as pool:
        try:
            if isinstance(load, OpenLoad):
                wait, waits = wait_by(perf_counter_ns), []
                instants = make_arrivals(load, seconds=seconds, seed=seed).intended_ns.tolist()
                for number, at_ns in enumerate(instants):
                    wait(began_ns + at_ns)
                    waits.append(requests.send(number, began_ns + at_ns, pool))
                    tell((perf_counter_ns() - began_ns) / 1e9)
                requests.all_sent()
                outcomes, window_ns = [end() for end in waits], int(1e9 * seconds)
            else:
                turns = _Users(requests, began_ns, seconds, least, longest_s, tell, outcomes, is_over)
                list(pool.map(turns.ask_in_turn, range(users)))
                window_ns = max(int(1e9 * seconds), turns.last_ns)
        except BaseException:  # Ctrl-C too: who asks ends with the request at hand
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return RequestRun(tuple(outcomes), window_ns, (perf_counter_ns() - began_ns) / 1e9)


class _Users(Generic[Outcome]):
    """Users that ask at once, each again when it has its answer."""

    def __init__(
        self,
        requests: Requests[Outcome],
        began_ns: int,
        seconds: float,
        least: int,
        longest_s: float,
        tell: Callable[[float], None],
        outcomes: list[Outcome],
        is_over: Event,
    ) -> None:
        self._requests, self._began_ns, self._tell = requests, began_ns, tell
        self._seconds, self._least, self._longest_s = seconds, least, longest_s
        self._outcomes, self._is_over = outcomes, is_over
        self._numbers, self._lock = count(), Lock()
        self.last_ns = 0
        """Nanoseconds from the start to the end of the last answer after which a user asked again."""

    def ask_in_turn(self, _: int) -> None:
        """Be one user, until the time is over and there are enough answers."""
        while self._goes_on():
            outcome = self._requests.ask(next(self._numbers), 0)
            with self._lock:
                self._outcomes.append(outcome)
                over_ns = perf_counter_ns() - self._began_ns
                self.last_ns = over_ns if self._goes_on() else self.last_ns
                self._tell(over_ns / 1e9)
            if not outcome.is_whole and outcome.end_ns < _REFUSED_NS:
                sleep(_PAUSE_S)

    def _goes_on(self) -> bool:
        over_s = (perf_counter_ns() - self._began_ns) / 1e9
        is_short = len(self._outcomes) < self._least and over_s < self._longest_s
        return not self._is_over.is_set() and (over_s < self._seconds or is_short)
