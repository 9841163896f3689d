"""When a stream's next frame is to be expected, from the frames that came."""

from __future__ import annotations

from collections import deque
from typing import Final

_GAPS: Final = 8
_LEAST_GAPS: Final = 4
_REGULAR_RATIO: Final = 0.25
"""A stream whose gaps differ from their median by more has no rhythm."""
_KNOWN_RATIO: Final = 0.1
"""Where the app says the period, a frame is expected this share of it early or late."""
_MOST_ABSENT: Final = 4
"""Frames that may be missing in a row; after that the stream has stopped."""


class Rhythm:
    """The arrivals of one stream. One gap in eight may be of any length: a camera loses a frame now and then."""

    def __init__(self, period_ns: int = 0) -> None:
        """Begin without a frame.

        Args:
            period_ns: Between two frames, where the app knows it; 0: it is learnt.
        """
        self._known_ns = period_ns
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._last_ns = self._period_ns = self._margin_ns = 0
        self._follows = False

    def note(self, now_ns: int, *, is_exact: bool = True) -> None:
        """Take in a frame.

        Args:
            now_ns: When it is offered.
            is_exact: Whether it arrives just now; otherwise it has waited elsewhere, and tells nothing.
        """
        follows, self._follows = self._follows, is_exact
        if not is_exact:
            return
        if follows:
            self._gaps.append(now_ns - self._last_ns)
        self._last_ns = now_ns
        if self._known_ns:
            self._period_ns, self._margin_ns = self._known_ns, int(_KNOWN_RATIO * self._known_ns)
        elif len(self._gaps) >= _LEAST_GAPS:
            period = sorted(self._gaps)[len(self._gaps) // 2]
            margin = sorted(abs(gap - period) for gap in self._gaps)[-2]
            is_regular = margin <= _REGULAR_RATIO * period
            self._period_ns, self._margin_ns = (period, margin) if is_regular else (0, 0)

    def expected(self, now_ns: int) -> tuple[int, int] | None:
        """Return from when to when the next frame is due, the end not before now; None where there is no rhythm."""
        if not self._period_ns:
            return None
        absent = max(0, -(-(now_ns - self._last_ns - self._margin_ns) // self._period_ns) - 1)
        if absent > _MOST_ABSENT:
            return None
        due = self._last_ns + (absent + 1) * self._period_ns
        return due - self._margin_ns, due + self._margin_ns
