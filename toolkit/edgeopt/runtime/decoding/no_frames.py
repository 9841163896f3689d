"""The task of a language model where frames are wanted: it refuses them."""

from __future__ import annotations

from typing import Any, NoReturn

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.tasks import FrameTask


class NoFrames(FrameTask):
    """A task that takes no frame."""

    def preprocess(self, frame: Sample) -> NoReturn:
        """Raise UnsupportedError."""
        raise _refused()

    def postprocess(self, outputs: Tensors, geometry: Any) -> NoReturn:
        """Raise UnsupportedError."""
        raise _refused()

    def as_text(self, answer: Any) -> NoReturn:
        """Raise UnsupportedError."""
        raise _refused()

    def as_json(self, answer: Any) -> NoReturn:
        """Raise UnsupportedError."""
        raise _refused()

    def draw(self, frame: Any, answer: Any, height: int = 0) -> NoReturn:
        """Raise UnsupportedError."""
        raise _refused()

    def count(self, answer: Any) -> int:
        """Return 0: there are no answers."""
        return 0


def _refused() -> UnsupportedError:
    return UnsupportedError("this bundle is a language model: it answers prompts, not frames", remedy="call generate")
