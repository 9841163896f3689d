"""Frames of the app's own: a list, a generator, any iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from edgeopt.errors import Note
from edgeopt.graph.tensors import Sample
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.stream.sources import Captured, Source, StreamKind, Watch, Wishes


class _Iterated:
    is_live = False
    is_paced = True
    name = "frames of the app"
    fps: float | None = None
    holds = "picture"
    notes: tuple[Note, ...] = ()

    def __init__(self, frames: Iterable[Sample]) -> None:
        self._frames: Iterator[Sample] = iter(frames)
        self._next = 0
        self.count: int | None = len(frames) if isinstance(frames, Sized) else None

    def read(self, watch: Watch) -> Captured | None:
        """Return a copy of the next frame: an iterator may fill the same array again."""
        del watch
        for sample in self._frames:
            self._next += 1
            return Captured(_copy(sample), f"frame#{self._next - 1}")
        return None

    def close(self) -> None:
        """End a generator, so that its `finally` runs."""
        end = getattr(self._frames, "close", None)
        if end is not None:
            end()


def _copy(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return {name: np.array(value) for name, value in sample.items()}
    return sample.copy() if isinstance(sample, np.ndarray) else sample


def _fits(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | np.ndarray | Frames)


def _open(given: Iterable[Sample], wishes: Wishes) -> Source:
    del wishes
    return _Iterated(given)


SOURCE = StreamKind("an iterator of frames", _fits, _open)
