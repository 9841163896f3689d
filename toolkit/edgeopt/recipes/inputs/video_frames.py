"""Frames of a video file by their numbers, as calibration and labels ask for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from edgeopt.errors import InvalidFileError
from edgeopt.graph.tensors import Frame

_MOST_FRAMES = 10**7
"""Most frames of a video, 90 hours; what damaged heads tell beyond it is no count."""


def open_video(path: Path) -> tuple[int, Callable[[int], Frame]]:
    """Return how many frames a video has, and what reads one of them.

    Raises:
        InvalidFileError: If not even the first frame is read.
    """
    count, can_seek = _count_frames(path)
    capture = cv2.VideoCapture(str(path))
    position = 0

    def read(index: int) -> Frame:
        nonlocal position
        if index != position:
            go_to(index)
        ok, frame = capture.read()
        position = index + 1
        if not ok:
            position = count + 1
            raise InvalidFileError(f"{path} ends at frame {index}", remedy="convert the video again")
        return np.asarray(frame, np.uint8)

    def go_to(index: int) -> None:
        nonlocal position
        if can_seek:  # it decodes from the last key frame: slow, so only when it must
            capture.set(cv2.CAP_PROP_POS_FRAMES, index)
            return
        if index < position:
            capture.open(str(path))
            position = 0
        for _ in range(index - position):
            capture.grab()

    return count, read


def _count_frames(path: Path) -> tuple[int, bool]:
    """Return how many frames a video has, and whether any of them can be sought.

    A video that was written into a pipe tells no number of frames, or any; one that was cut off tells too many. Both,
    and a transport stream, have no index, without which a search ends at another frame, or at none. Then all frames
    are counted.

    Raises:
        InvalidFileError: If not even the first frame is read.
    """
    capture = cv2.VideoCapture(str(path))
    try:
        ok, first = capture.read()
        if not ok:
            raise InvalidFileError(
                f"{path} does not decode as a video", remedy="convert it to MP4 (H.264) or to pictures"
            )
        count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        if 0 < count <= _MOST_FRAMES and _sought(capture, int(count) - 1) is not None:
            again = _sought(capture, 0)
            if again is not None and np.array_equal(first, again):
                return int(count), True
        capture.open(str(path))
        count = 0
        while count < _MOST_FRAMES and capture.grab():
            count += 1
        return count, False
    finally:
        capture.release()


def _sought(capture: cv2.VideoCapture, index: int) -> Frame | None:
    capture.set(cv2.CAP_PROP_POS_FRAMES, index)
    ok, frame = capture.read()
    return np.asarray(frame, np.uint8) if ok else None
