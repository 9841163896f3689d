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
from edgeopt.runtime.stream.sources import Captured, Source, StreamKind, Watch, Wishes
from edgeopt.runtime.stream.sources._capture import Live, count_of, open_network, read_frame, tell_early_end

_ADDRESS = re.compile(r"(rtsp|rtsps|rtmp|rtmps|udp|rtp|srt|http|https)://.+", re.IGNORECASE)
_LONGEST_STEP_MS = 10_000
_STORED = frozenset({".m3u8", ".mpd", *VIDEOS})
"""A web server hands these over as fast as the network is; all else comes when it is sent, MJPEG over HTTP too."""


class _Segments(Live):
    """HLS, or a file on a web server: frames come at the times that are written on them."""

    begins_late = False
    is_file = False
    """Whether it ends even where it does not say after how many frames."""

    def __init__(self, name: str, capture: Any, reopen: Callable[[], Any | None], give_up_s: float) -> None:
        super().__init__(name, capture, reopen, give_up_s)
        self.count = count_of(capture)
        self._due_ns = self._written_ms = -1.0

    def read(self, watch: Watch) -> Captured | None:
        """Return the next frame at its time; None after the last of a file."""
        captured = self._next(watch) if self.is_file or self.count is not None else super().read(watch)
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
            tell_early_end(watch, self.name, self._frames, self.count)
            return None
        self._frames += 1
        return Captured(frame, f"{self.name}#{self._frames - 1}")


class _File(_Segments):
    """A video on a web server: behind its last frame it is not opened again, which would play it from the start."""

    is_file = True


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
    suffix = PurePosixPath(parts.path).suffix.lower()
    is_stored = parts.scheme.lower() in ("http", "https") and suffix in _STORED
    kind = _File if is_stored and suffix in VIDEOS else _Segments if is_stored else Live
    return kind(shown, capture, reopen, wishes.give_up_s)


SOURCE = StreamKind("an address such as rtsp://camera/stream", _fits, _open)
