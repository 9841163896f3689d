"""How frames come to a model while it is timed: read from files as an app has to, or held in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgeopt.graph.tensors import Sample
from edgeopt.recipes.inputs.frames import Frames


def is_read(frames: Frames) -> bool:
    """Return whether each frame is read from a file and decoded, as an app has to; others lie in memory."""
    return bool(frames.paths) and frames.tensors is None and not frames.parts


def readers_of(frames: Frames) -> tuple[Callable[[], Sample], ...]:
    """Return what gives each frame while a model is timed.

    Tensors, windows of a sound and made-up frames are held. To draw or cut them is no work of an app, and it would be a
    large part of a frame whose model takes less than a millisecond.
    """
    if is_read(frames):
        return tuple(partial(frames.read, i) for i in range(len(frames)))
    return tuple(partial(_same, sample) for sample in frames)


def _same(sample: Sample) -> Sample:
    return sample
