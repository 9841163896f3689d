"""The line of requests before the slots in which answers are made: bounded in length and in time."""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic, perf_counter_ns

from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.watching.tally import Tally

_RETRY_S = 1


class RequestLine:
    """Who waits for a slot: larger priorities first, then who came first. One event loop uses it."""

    def __init__(self, limits: Limits, tally: Tally) -> None:
        """Begin with all slots free."""
        self._limits, self._tally = limits, tally
        self._free, self._number = limits.slots, count()
        self._heap = list[tuple[int, int, asyncio.Future[None]]]()

    async def enter(self, end_s: float, priority: int = 0) -> int:
        """Wait for a slot and take it; return for how many nanoseconds.

        Args:
            end_s: At the latest, as `time.monotonic`.
            priority: Larger goes first.

        Raises:
            RefusedError: 429 if too many wait already, 503 if none was free in time.
        """
        begun_ns = perf_counter_ns()
        if self._free > 0 and not self._tally.waiting:
            self._free -= 1
            self._tally.running += 1
            return perf_counter_ns() - begun_ns
        if self._tally.waiting >= self._limits.waiting:
            text = f"{self._tally.waiting} requests wait already; ask again in {_RETRY_S} s"
            raise RefusedError(429, text, code="queue_full")
        turn = asyncio.get_running_loop().create_future()
        heappush(self._heap, (-priority, next(self._number), turn))
        self._tally.waiting += 1
        try:
            async with asyncio.timeout(end_s - monotonic()):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
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
        """Give a slot back; the next in the line takes it."""
        self._tally.running -= 1
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._heap and self._free > 0:
            _, _, turn = heappop(self._heap)
            if not turn.done():
                self._free -= 1
                self._tally.running += 1
                self._tally.waiting -= 1
                turn.set_result(None)
