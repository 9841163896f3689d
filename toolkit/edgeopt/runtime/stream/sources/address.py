"""An address on the network: RTSP, RTMP, HLS, or a video on a web server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import cv2

from edgeopt.errors import UnavailableError
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.runtime.stream.events import EventKind
from edgeopt.runtime.stream.sources import Captured, Source, StreamKind, Watch, Wishes
from edgeopt.runtime.stream.sources._capture import Live, open_network, read_frame

_ADDRESS = re.compile(r"(rtsp|rtsps|rtmp|rtmps|udp|rtp|srt|http|https)://.+", re.IGNORECASE)
_MOST_FRAMES = 10**7
_LONGEST_STEP_MS = 10_000
_STORED = frozenset({".m3u8", ".mpd", *VIDEOS})
"""A web server hands these over as fast as the network is; all else comes when it is sent, MJPEG over HTTP too."""


class _Segments(Live):
    """HLS, or a file on a web server: frames come at the times that are written on them."""

    begins_late = False

    def __init__(self, name: str, capture: Any, reopen: Callable[[], Any | None], give_up_s: float) -> None:
        super().__init__(name, capture, reopen, give_up_s)
        told = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self.count = int(told) if 0 < told < _MOST_FRAMES else None
        self._due_ns = self._written_ms = -1.0

    def read(self, watch: Watch) -> Captured | None:
        """Return the next frame at its time; None after the last of a file."""
        captured = super().read(watch) if self.count is None else self._next(watch)
        if captured is None:
            return None
        written_ms, now = float(self._capture.get(cv2.CAP_PROP_POS_MSEC)), watch.now_ns
        step_ms = written_ms - self._written_ms
        due = self._due_ns + step_ms * 1e6 if self._due_ns >= 0 and 0 < step_ms < _LONGEST_STEP_MS else now
        self._due_ns, self._written_ms = max(due, now - 1e9), written_ms  # what was late is not hurried after
        return captured if watch.wait_until(round(self._due_ns)) else None

    def _next(self, watch: Watch) -> Captured | None:
        """Return the next frame of a file; a file that ends early is told of."""
        frame = read_frame(self._capture)
        if frame is None:
            if self.count and self._frames < self.count // 2:
                watch.tell(EventKind.STALLED, f"{self.name} ended at frame {self._frames} of about {self.count}")
            return None
        self._frames += 1
        return Captured(frame, f"{self.name}#{self._frames - 1}")


def _fits(given: Any) -> bool:
    return isinstance(given, str) and _ADDRESS.fullmatch(given) is not None


def without_password(address: str) -> str:
    """Return an address as messages show it: who logs in, and with which password, stays out."""
    return re.sub(r"//[^/@]*@", "//", address)


def _open(given: str, wishes: Wishes) -> Source:
    shown = without_password(given)

    def reopen() -> Any | None:
        return open_network(given)

    capture = reopen()
    if capture is None:
        raise UnavailableError(
            f"{shown} does not open as a video",
            remedy="check the address, name and password, and that the server is up: ffprobe ADDRESS",
        )
    parts = urlsplit(given)
    is_stored = parts.scheme.lower() in ("http", "https") and PurePosixPath(parts.path).suffix.lower() in _STORED
    kind = _Segments if is_stored else Live
    return kind(shown, capture, reopen, wishes.give_up_s)


SOURCE = StreamKind("an address such as rtsp://camera/stream", _fits, _open)
