"""Drawn answers as a video that runs as fast as its source did."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import Frame
from edgeopt.runtime.outputs import Shown
from edgeopt.system.disk.files import require_writable
from edgeopt.system.text import plural

CODECS: Final = {".mp4": "mp4v", ".m4v": "mp4v", ".mov": "mp4v", ".mkv": "mp4v", ".avi": "MJPG"}
"""Suffix of a file -> codec that OpenCV's own FFmpeg encodes."""
_RESERVE_BYTES: Final = 2 << 20
"""Kept free for what the end of a video needs: without its index a video does not play."""
_INDEX_BYTES: Final = 64
"""Index bytes of one frame in the index."""
_LONGEST_STILL: Final = 300
"""Frames for which a picture stands still at most, where frames were lost."""


class Video:
    """Writes a video. In place of a lost frame it shows the one before, so that its time is the source's."""

    def __init__(self, path: Path, fps: float) -> None:
        """Find out whether a video can be written.

        Args:
            path: A file with one of the ends of `CODECS`.
            fps: Of the source.

        Raises:
            InvalidFileError: If the place is not writable.
            UnsupportedError: If it is no kind of video that can be written.
        """
        if path.suffix.lower() not in CODECS:
            raise UnsupportedError(
                f"{path} is no video that can be written", remedy=f"write to a file ending in {', '.join(CODECS)}"
            )
        require_writable(path)
        self._path, self._fps = path, fps
        self._writer: cv2.VideoWriter | None = None
        self._last: Frame | None = None
        self._index, self._frames, self._told = 0, 0, ""

    def put(self, shown: Shown) -> None:
        """Write one frame, and the one before it for each that was lost between.

        Raises:
            InvalidFileError: If the disk is full; the frames before it stay, and play.
        """
        picture = shown.drawn
        if self._writer is None:
            self._open(picture)
        lost = min(shown.result.index - self._index - 1, _LONGEST_STILL) if self._last is not None else 0
        for _ in range(lost):
            assert self._last is not None
            self._write(self._last)
        self._last, self._index = self._fitted(picture), shown.result.index
        self._write(self._last)

    def _open(self, picture: Frame) -> None:
        height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2  # codecs halve the colours
        self._size = max(width, 2), max(height, 2)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        code = cv2.VideoWriter.fourcc(*CODECS[self._path.suffix.lower()])
        self._writer = cv2.VideoWriter(str(self._path), code, self._fps, self._size)
        if not self._writer.isOpened():
            raise UnsupportedError(f"{self._path} cannot be encoded by this OpenCV", remedy="save to an .avi")

    def _fitted(self, picture: Frame) -> Frame:
        if picture.shape[1::-1] == self._size:
            return picture
        return np.asarray(cv2.resize(picture, self._size, interpolation=cv2.INTER_AREA), np.uint8)

    def _write(self, picture: Frame) -> None:
        assert self._writer is not None
        needed = _RESERVE_BYTES + _INDEX_BYTES * self._frames + picture.nbytes // 4
        if _room_bytes(self._path) < needed:  # OpenCV says nothing when a write fails
            raise InvalidFileError(
                f"{self.close()}: there is no room for more", remedy="free disk space, or save to another disk"
            )
        self._writer.write(picture)
        self._frames += 1

    def close(self) -> str:
        """Write the end of the video; return what there is, as it can be read again."""
        if self._writer is not None:
            self._writer.release()
            self._writer, self._last = None, None
            again = cv2.VideoCapture(str(self._path))
            plays = again.isOpened() and again.read()[0]
            again.release()
            self._told = f"{plural(self._frames, 'frame')} in {self._path}{'' if plays else ', which does not play'}"
        return self._told or f"nothing in {self._path}"


def _room_bytes(path: Path) -> int:
    """Return how many bytes a file may still grow: what the disk has, within this process's own limit."""
    free = shutil.disk_usage(path.parent).free
    if sys.platform == "win32":
        return free
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return free if limit == resource.RLIM_INFINITY else min(free, limit - path.stat().st_size)
