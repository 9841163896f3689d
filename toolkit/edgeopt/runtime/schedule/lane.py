"""Cores that several models share: threads wait here for their turn, by the rules of `turns`.

There is no thread that hands out turns: whoever comes, goes or wakes up looks who is next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Condition
from typing import Any

from edgeopt.runtime.schedule.turns import NEVER, CoreTurns, Terms, Ticket, Turn


class Lane:
    """One run at a time."""

    def __init__(self, terms: Mapping[str, Terms], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Begin with nobody waiting.

        Args:
            terms: Of each model, by name.
            clock: Nanoseconds that never go back.
        """
        self._turns, self._clock = CoreTurns(terms), clock
        self._changed = Condition()

    def enter(self, name: str, stream: int = 0, load: Any = None) -> Ticket:
        """Wait for the turn of a frame.

        Whose ticket is the first of its turn runs all frames of the turn, then calls `leave`; the others come back when
        it has.

        Args:
            name: Of the model.
            stream: Frames of one stream come one after the other.
            load: Kept in the ticket.
        """
        with self._changed:
            ticket = self._turns.offer(name, self._clock(), stream)
            ticket.load = load
            try:
                while ticket.turn is None:
                    if self._turns.decide(self._clock()) is not None:
                        self._changed.notify_all()
                    else:
                        self._wait()
                while not (ticket.is_first or ticket.turn.is_over):
                    self._changed.wait()
            except BaseException:  # the user interrupts
                self._turns.withdraw(ticket)
                if ticket.is_first:
                    self._leave(ticket.turn, is_typical=False)
                raise
        return ticket

    def leave(self, turn: Turn | None, *, is_typical: bool = True) -> None:
        """End a turn, and let the next begin.

        Args:
            turn: That `enter` gave.
            is_typical: Whether its time says how long the next ones take: not where it failed.
        """
        with self._changed:
            self._leave(turn, is_typical=is_typical)

    def learn(self, name: str, size: int, time_ns: int) -> None:
        """Take in how long a model ran for so many frames."""
        with self._changed:
            self._turns.learn(name, size, time_ns)

    def _leave(self, turn: Turn | None, *, is_typical: bool) -> None:
        assert turn is not None
        now = self._clock()
        self._turns.done(turn, now, is_typical=is_typical)
        self._turns.decide(now)
        self._changed.notify_all()

    def _wait(self) -> None:
        again = self._turns.again_ns
        self._changed.wait(None if again == NEVER else max(0.0, again - self._clock()) / 1e9)
