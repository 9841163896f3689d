"""The queue of requests before the slots in which answers are made: bounded in length and in time."""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic, perf_counter_ns

from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.watching.tally import Tally

_RETRY_S = 1
_Waiting = tuple[int, int, "asyncio.Future[None]", object | None]
"""Priority, number, what wakes it, and whose prompt is scored."""


class RequestQueue:
    """Who waits for a slot: larger priorities first, then who came first. One event loop uses it."""

    def __init__(self, limits: Limits, tally: Tally) -> None:
        """Begin with all slots free."""
        self._limits, self._tally = limits, tally
        self._free, self._number = limits.slots, count()
        self._heap = list[_Waiting]()
        self._scoring: object | None = None

    async def enter(self, end_s: float, priority: int = 0, scoring: object | None = None) -> int:
        """Wait for a slot and take it; return for how many nanoseconds.

        Args:
            end_s: At the latest, as `time.monotonic`.
            priority: Larger goes first.
            scoring: Whose prompt is scored: it takes a slot when no other is scored, until `scored`; None: nobody's.

        Raises:
            RefusedError: 429 if too many wait already, 503 if none was free in time.
        """
        begun_ns = perf_counter_ns()
        if self._may_go(scoring) and not any(self._may_go(waiting[3]) for waiting in self._heap):
            self._take(scoring)
            return perf_counter_ns() - begun_ns
        if self._tally.waiting >= self._limits.waiting:
            text = f"{self._tally.waiting} requests wait already; ask again in {_RETRY_S} s"
            raise RefusedError(429, text, code="queue_full")
        turn = asyncio.get_running_loop().create_future()
        heappush(self._heap, (-priority, next(self._number), turn, scoring))
        self._tally.waiting += 1
        try:
            async with asyncio.timeout(end_s - monotonic()):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.scored(scoring)
                self.leave()  # the slot came in the same moment
            else:
                turn.cancel()
                self._tally.waiting -= 1
                self._heap = [entry for entry in self._heap if not entry[2].done()]
                heapify(self._heap)
                self._hand_out()  # who came while this one still counted as waiting found a free slot taken
            if isinstance(error, TimeoutError):
                text = f"no slot was free within {self._limits.seconds:g} s"
                raise RefusedError(503, text, code="queue_timeout") from error
            raise
        return perf_counter_ns() - begun_ns

    @property
    def is_quiet(self) -> bool:
        """Whether at most one slot is taken, and nobody waits."""
        return self._free >= self._limits.slots - 1 and not self._heap

    def leave(self) -> None:
        """Give a slot back; the next in the queue takes it."""
        self._tally.running -= 1
        self._free += 1
        self._hand_out()

    def scored(self, scoring: object | None) -> None:
        """Let the next prompt be scored, where this was the one that is; more than once does nothing more."""
        if scoring is not None and self._scoring is scoring:
            self._scoring = None
            self._hand_out()

    def _may_go(self, scoring: object | None) -> bool:
        return self._free > 0 and (scoring is None or self._scoring is None)

    def _take(self, scoring: object | None) -> None:
        self._free -= 1
        self._tally.running += 1
        self._scoring = self._scoring if scoring is None else scoring

    def _hand_out(self) -> None:
        later = list[_Waiting]()
        while self._heap and self._free > 0:
            waiting = heappop(self._heap)
            _, _, turn, scoring = waiting
            if turn.done():
                continue
            if not self._may_go(scoring):
                later.append(waiting)
                continue
            self._take(scoring)
            self._tally.waiting -= 1
            turn.set_result(None)
        for waiting in later:
            heappush(self._heap, waiting)
