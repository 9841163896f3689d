"""A video file, frame after frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2

from edgeopt.errors import InvalidFileError, Note
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.runtime.stream.sources import Captured, Source, StreamKind, Watch, Wishes
from edgeopt.runtime.stream.sources._capture import count_of, fps_of, read_frame, tell_early_end
from edgeopt.system.disk.files import require_regular


class _Video:
    is_live = False
    is_paced = False
    holds = "picture"
    notes: tuple[Note, ...] = ()

    def __init__(self, path: Path) -> None:
        require_regular(path, remedy="pass a video, a folder of pictures, an address or a camera's number")
        self.name, self._stem, self._capture = str(path), path.stem, cv2.VideoCapture(str(path))
        self._next, self._frames = read_frame(self._capture), 0
        if self._next is None:
            self._capture.release()
            raise InvalidFileError(
                f"{path} does not decode as a video", remedy="convert it to MP4 (H.264) or to pictures"
            )
        self.fps, self.count = fps_of(self._capture), count_of(self._capture)

    def read(self, watch: Watch) -> Captured | None:
        """Return the next frame; the first one was decoded when the file was opened."""
        frame, self._next = self._next, None
        frame = read_frame(self._capture) if frame is None else frame
        if frame is None:
            tell_early_end(watch, self.name, self._frames, self.count)
            return None
        self._frames += 1
        return Captured(frame, f"{self._stem}#{self._frames - 1}")

    def close(self) -> None:
        self._capture.release()


def _fits(given: Any) -> bool:
    return isinstance(given, str | Path) and "://" not in str(given) and Path(given).suffix.lower() in VIDEOS


def _open(given: str | Path, wishes: Wishes) -> Source:
    del wishes
    return _Video(Path(given))


SOURCE = StreamKind("a video file", _fits, _open)
