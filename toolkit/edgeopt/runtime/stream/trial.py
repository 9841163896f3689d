"""Whether overlapped stages shorten the period: both ways on the first frames, the better one stays."""

from __future__ import annotations

from statistics import median
from typing import Final

from edgeopt.runtime.stream.result import Pipelining

_SETTLING: Final = 4
"""Frames that are not counted after each change."""
_FRAMES: Final = 16
_LEAST_GAIN: Final = 0.05
"""Least gain of the period; less is noise."""
_BUSY: Final = 0.75
"""Share of frames that waited for the worker: below it the source decides the period."""


class Trial:
    """Hears of answers; says when stages should overlap. Pure arithmetic."""

    def __init__(self) -> None:
        self.outcome: Pipelining | None = None
        self.is_over = False
        self._gaps_ns: dict[bool, list[int]] = {False: [], True: []}
        self._ages_ns: dict[bool, list[int]] = {False: [], True: []}
        self._busy = self._seen = 0
        self._is_pipelined = False
        self._last_ns: int | None = None

    def record(self, done_ns: int, age_ns: int, *, is_overlapped: bool, waited_for_frame: bool) -> bool | None:
        """Hear of an answer.

        Args:
            done_ns: When it was ready.
            age_ns: From the capture of its frame.
            is_overlapped: Whether stages overlapped for it.
            waited_for_frame: Whether the worker had to wait for the frame.

        Returns:
            Whether stages should overlap from now on; None: as before.
        """
        last, self._last_ns = self._last_ns, done_ns
        if self.is_over or is_overlapped != self._is_pipelined:
            return None
        self._seen += 1
        if self._seen <= _SETTLING or last is None:
            return None
        self._gaps_ns[is_overlapped].append(done_ns - last)
        self._ages_ns[is_overlapped].append(age_ns)
        self._busy += not waited_for_frame
        if len(self._gaps_ns[is_overlapped]) < _FRAMES:
            return None
        if not is_overlapped:
            if self._busy < _BUSY * _FRAMES:
                self.is_over = True
                return None
            self._is_pipelined, self._seen = True, 0
            return True
        return self._decide()

    def _decide(self) -> bool:
        self.is_over = True
        serial, pipelined = (median(self._gaps_ns[way]) for way in (False, True))
        added = median(self._ages_ns[True]) - median(self._ages_ns[False])
        used = pipelined < (1 - _LEAST_GAIN) * serial
        self.outcome = Pipelining(used, serial / 1e6, pipelined / 1e6, added / 1e6)
        return used
