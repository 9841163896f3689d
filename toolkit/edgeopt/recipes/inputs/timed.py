"""How frames come to a model while it is timed: read from files as an app has to, or held in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from edgeopt.graph.tensors import Sample
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.jpeg import ReducedDecoding


class FileReader:
    """Reads one frame of a file."""

    __slots__ = ("_frames", "_index", "_read")

    def __init__(self, frames: Frames, index: int) -> None:
        self._frames, self._index, self._read = frames, index, frames.read

    def __call__(self) -> Sample:
        """Return the frame."""
        return self._read(self._index)

    def decoded_by(self, decoding: ReducedDecoding) -> FileReader:
        """Return what gives the frame decoded so."""
        return FileReader(self._frames.decoded_by(decoding), self._index)


def is_read(frames: Frames) -> bool:
    """Return whether each frame is read from a file and decoded, as an app has to; others lie in memory."""
    return bool(frames.paths) and frames.tensors is None and not frames.parts


def readers_of(frames: Frames) -> tuple[Callable[[], Sample], ...]:
    """Return what gives each frame while a model is timed.

    Tensors, windows of a sound and made-up frames are held. To draw or cut them is no work of an app, and it would be a
    large part of a frame whose model takes less than a millisecond.
    """
    if is_read(frames):
        return tuple(FileReader(frames, i) for i in range(len(frames)))
    return tuple(partial(_same, sample) for sample in frames)


def decoded_by(readers: Sequence[Any], decoding: ReducedDecoding | None) -> Sequence[Any]:
    """Return frames, or what gives them, with files of pictures decoded so; None: as they are."""
    if decoding is None:
        return readers
    return [reader.decoded_by(decoding) if isinstance(reader, FileReader) else reader for reader in readers]


def _same(sample: Sample) -> Sample:
    return sample
