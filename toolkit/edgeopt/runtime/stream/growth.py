"""How many answers come in a second, and how waiting grows, over the last answers."""

from __future__ import annotations

from typing import Final

import numpy as np

_LENGTH: Final = 256


class AnswerInstants:
    """Instants of the last answers, in memory that is reserved once. One thread writes."""

    def __init__(self) -> None:
        self._rows = np.zeros((_LENGTH, 3), np.int64)
        self._count = 0

    def record(self, captured_ns: int, began_ns: int, done_ns: int) -> None:
        """Keep when a frame was captured, begun and answered."""
        self._rows[self._count % _LENGTH] = captured_ns, began_ns, done_ns
        self._count += 1

    @property
    def answers_per_s(self) -> float | None:
        """Over the last answers; None before the second."""
        done = self._rows[: min(self._count, _LENGTH), 2]
        span = int(done.max() - done.min()) if len(done) > 1 else 0
        return (len(done) - 1) * 1e9 / span if span else None

    @property
    def ratio(self) -> float | None:
        """Slope of the waiting time over the time of capture, by least squares; None before the third answer."""
        rows = self._rows[: min(self._count, _LENGTH)]
        captured = (rows[:, 0] - rows[:, 0].min()) / 1e9 if len(rows) else rows[:, 0]
        if len(rows) < 3 or not captured.any():
            return None
        waited, centred = (rows[:, 1] - rows[:, 0]) / 1e9, captured - captured.mean()
        return float(centred @ waited / (centred @ centred))
