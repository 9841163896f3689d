"""OpenCV's captures: opened within a time, and opened again after a gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import cv2
import numpy as np

from edgeopt.errors import Note, UnavailableError
from edgeopt.graph.tensors import Frame
from edgeopt.runtime.stream.events import EventKind
from edgeopt.runtime.stream.sources import Captured, Watch

_OPEN_MS: Final = 5000
_READ_MS: Final = 5000
"""A read that takes longer ends as if the source had gone; FFmpeg's own limit is 30 s."""
_MOST_FPS: Final = 1000.0
_USUAL_FPS: Final = 30.0
_WAITED_RATIO: Final = 0.3
"""Share of a period: a frame that is read faster lay in a buffer."""
_MOST_BUFFERED_S: Final = 2.0
"""Most seconds of reading what lay in buffers; what is faster for longer is no camera."""
_MOST_FRAMES: Final = 10**7
_WHOLE_RATIO: Final = 0.9
"""Share of the frames that a header tells of; where it has none FFmpeg guesses from the length or the size."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 8.0


def open_network(address: str) -> Any | None:
    """Return an open capture of an address, or None; OpenCV's FFmpeg asks RTSP servers for TCP."""
    limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_MS]
    return _if_open(cv2.VideoCapture(address, cv2.CAP_FFMPEG, limits))


def open_device(number: int, settings: Sequence[tuple[int, float]]) -> Any | None:
    """Return an open capture of a camera, or None; settings that it does not know are left."""
    capture = _if_open(cv2.VideoCapture(number))
    if capture is not None:
        for key, value in settings:
            capture.set(key, value)
    return capture


def _if_open(capture: Any) -> Any | None:
    if capture.isOpened():
        return capture
    capture.release()
    return None


def read_frame(capture: Any) -> Frame | None:
    """Return the next frame, or None where the source ended, went away or took too long."""
    try:
        done, frame = capture.read()
    except cv2.error:
        return None
    return np.asarray(frame, np.uint8) if done and frame is not None else None


def fps_of(capture: Any) -> float | None:
    """Return the rate that a capture tells of, or None."""
    result = float(capture.get(cv2.CAP_PROP_FPS))
    return result if 1 <= result <= _MOST_FPS else None


def count_of(capture: Any) -> int | None:
    """Return how many frames a capture tells of, or None: one that was written into a pipe tells any number."""
    count = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    return int(count) if 0 < count <= _MOST_FRAMES else None


def tell_early_end(watch: Watch, name: str, frames: int, count: int | None) -> None:
    """Tell of a video that ends before its header says: it was cut off, or its rest does not decode."""
    if count is not None and frames < _WHOLE_RATIO * count:
        watch.tell(EventKind.ENDED, f"{name} ended after {frames} frames, and its header tells of {count}")


class Live:
    """A source that goes on for ever: where it goes away it is opened again, with pauses that grow."""

    is_live = True
    is_paced = True
    holds = "picture"
    notes: tuple[Note, ...] = ()
    count: int | None = None
    begins_late = True
    """Whether frames that were buffered while it opened are left out: they are old, and nobody knows how old."""

    def __init__(self, name: str, capture: Any, reopen: Callable[[], Any | None], give_up_s: float) -> None:
        """Take an open capture.

        Args:
            name: For messages; no password.
            capture: Open.
            reopen: Opens it again; None where it cannot.
            give_up_s: After so long without a frame the source is gone.
        """
        self.name, self._capture, self._reopen, self._give_up_s = name, capture, reopen, give_up_s
        self.fps = fps_of(capture)
        self._frames = 0
        self._is_new = self.begins_late

    def read(self, watch: Watch) -> Captured | None:
        """Return the next frame; after a gap the first one that comes again.

        Raises:
            UnavailableError: If the source stays away.
        """
        frame = self._next_frame(watch)
        if frame is None:
            frame = self._return(watch)
        if frame is None:
            return None
        self._frames += 1
        return Captured(frame, f"{self.name}#{self._frames - 1}")

    def _next_frame(self, watch: Watch) -> Frame | None:
        """Return the next frame; just after opening, the first one that had to be waited for."""
        if self._capture is None:
            return None
        was_new, self._is_new = self._is_new, False
        if not was_new:
            return read_frame(self._capture)
        began_ns, waited_ns = watch.now_ns, _WAITED_RATIO * 1e9 / (self.fps or _USUAL_FPS)
        while True:
            asked_ns = watch.now_ns
            frame = read_frame(self._capture)
            now = watch.now_ns
            if frame is None or now - asked_ns > waited_ns or now - began_ns > _MOST_BUFFERED_S * 1e9:
                return frame

    def _return(self, watch: Watch) -> Frame | None:
        """Open it again until a frame comes; None when the stream is stopped."""
        away_ns, pause_s, attempts = watch.now_ns, _FIRST_PAUSE_S, 0
        while watch.pause(pause_s):
            self.close()
            self._capture = self._reopen()
            attempts, pause_s = attempts + 1, min(2 * pause_s, _LONGEST_PAUSE_S)
            self._is_new = self.begins_late
            frame = self._next_frame(watch)
            gone_s = (watch.now_ns - away_ns) / 1e9
            if frame is not None:
                watch.gap(gone_s, f"{self.name} was away for {gone_s:.1f} s, opened again at attempt {attempts}")
                return frame
            if gone_s > self._give_up_s:
                raise UnavailableError(
                    f"{self.name} has given no frame for {gone_s:.0f} s, after {self._frames} before",
                    remedy="look after the camera, or allow longer gaps with give_up_s",
                )
        return None

    def close(self) -> None:
        """Release the capture."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None
