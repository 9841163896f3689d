"""When a stream's next frame is to be expected, from the frames that came."""

from __future__ import annotations

from collections import deque
from typing import Final

_GAPS: Final = 8
_LEAST_GAPS: Final = 4
_REGULAR_RATIO: Final = 0.25
"""A stream whose gaps differ from their median by more has no rhythm."""
_MOST_ABSENT: Final = 4
"""Frames that may be missing in a row; after that the stream has stopped."""


class Rhythm:
    """The arrivals of one stream. One gap in eight may be of any length: a camera loses a frame now and then."""

    def __init__(self) -> None:
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._last_ns = 0
        self._period_ns = self._margin_ns = 0

    def note(self, now_ns: int) -> None:
        """Take in a frame that arrives."""
        if self._last_ns:
            self._gaps.append(now_ns - self._last_ns)
        self._last_ns = now_ns
        self._period_ns = 0
        if len(self._gaps) >= _LEAST_GAPS:
            period = sorted(self._gaps)[len(self._gaps) // 2]
            margin = sorted(abs(gap - period) for gap in self._gaps)[-2]
            if margin <= _REGULAR_RATIO * period:
                self._period_ns, self._margin_ns = period, margin

    def expected(self, now_ns: int) -> tuple[int, int] | None:
        """Return from when to when the next frame is due, the end not before now; None where there is no rhythm."""
        if not self._period_ns:
            return None
        absent = max(0, -(-(now_ns - self._last_ns - self._margin_ns) // self._period_ns) - 1)
        if absent > _MOST_ABSENT:
            return None
        due = self._last_ns + (absent + 1) * self._period_ns
        return due - self._margin_ns, due + self._margin_ns
