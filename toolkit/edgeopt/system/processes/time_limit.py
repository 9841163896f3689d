"""A time limit that every loop over frames looks at, however deep it lies: one frame late at most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

LONGER = "give --time-limit more"
"""Remedy where the time limit was reached."""
_PACE_S = 1.0
"""Before that the first parts, which also open and allocate, tell no pace."""
_ENDS_S = ContextVar("time_limit_ends_s", default=math.inf)


def longer(seconds: float) -> str:
    """Return what to do where a limit of so many seconds would have been enough: tens of seconds are told."""
    return f"give --time-limit {math.ceil(seconds / 10) * 10}s or more"


class OutOfTime(BaseException):
    """The time limit is over. Like Ctrl-C it passes through whatever goes on where a single attempt fails."""

    def __init__(self, whole_s: float = 0.0) -> None:
        """Tell what did not fit.

        Args:
            whole_s: About how many seconds it takes as a whole; 0: nobody knows.
        """
        super().__init__(whole_s)
        self.whole_s = whole_s


@contextmanager
def limited(ends_s: float) -> Iterator[None]:
    """Limit what is done inside the `with`; a limit around it holds too.

    Args:
        ends_s: On the monotonic clock, in seconds.
    """
    token = _ENDS_S.set(min(ends_s, _ENDS_S.get()))
    try:
        yield
    finally:
        _ENDS_S.reset(token)


def time_left_s() -> float:
    """Return what is left, in seconds: infinite without a limit, below zero after it."""
    return _ENDS_S.get() - monotonic()


def require_pace(began_s: float, done: int, of: int) -> None:
    """Raise where work does not end within the time limit at its pace so far: its beginning is not for nothing.

    Args:
        began_s: When it began, on the monotonic clock.
        done: Parts that are done.
        of: All parts.

    Raises:
        OutOfTime: If so.
    """
    spent_s = monotonic() - began_s
    if 0 < done < of and spent_s >= _PACE_S and spent_s / done * (of - done) > time_left_s():
        raise OutOfTime(spent_s / done * of)


def paced(hear: Callable[[int], None], wanted: int) -> Callable[[int], None]:
    """Return a function that hears how many parts of a piece of work are done, and ends it where it is too slow.

    The time before the first part is done tells no pace: engines are opened in it, which on a busy machine takes longer
    than all parts.

    Args:
        hear: Is told the same.
        wanted: Parts that the work needs; more are done only where there is time.

    Returns:
        It raises OutOfTime where the wanted parts do not end within the time limit at the pace since the first.
    """
    first_s = list[float]()

    def heard(done: int) -> None:
        hear(done)
        first_s.append(monotonic())
        require_pace(first_s[0], done - 1, wanted - 1)

    return heard


def require_time(seconds: float = 0.0) -> None:
    """Raise where so many seconds are not left.

    Raises:
        OutOfTime: If so.
    """
    if time_left_s() < seconds:
        raise OutOfTime
