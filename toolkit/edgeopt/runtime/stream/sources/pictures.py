"""A picture, a folder of pictures, or an .npz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.runtime.stream.sources import Captured, Source, StreamKind, Watch, Wishes


class Pictures:
    """Frames that lie there, in their order."""

    is_live = False
    is_paced = False
    fps: float | None = 2.0
    """As many as a person can look at."""

    def __init__(self, frames: Frames, name: str) -> None:
        """Take open frames."""
        self.frames, self.count, self._next, self._stream = frames, len(frames), 0, 0
        self.name, self.notes = name, frames.notes
        self.holds = frames.given

    def read(self, watch: Watch) -> Captured | None:
        """Return the next one."""
        del watch
        if self._next >= len(self.frames):
            return None
        index = self._next
        self._next += 1
        begins, sample = self.frames.begins_stream(index), self.frames.read(index)
        self._stream += index > 0 and begins
        if isinstance(sample, Mapping) and not begins:  # states that are passed would be taken: they are fed back
            sample = {name: array for name, array in sample.items() if name not in self.frames.states}
        return Captured(sample, self.frames.names[index], self._stream)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _fits(given: Any) -> bool:
    if isinstance(given, Frames):
        return True
    if not isinstance(given, str | Path) or "://" in str(given):
        return False
    is_number = isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 4
    return not is_number and Path(given).suffix.lower() not in VIDEOS


def _open(given: Frames | str | Path, wishes: Wishes) -> Source:
    frames = given if isinstance(given, Frames) else open_frames(Path(given))
    return Pictures(wishes.fit(frames), str(frames.source if isinstance(given, Frames) else given))


SOURCE = StreamKind("a picture or a folder of pictures", _fits, _open)
