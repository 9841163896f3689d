"""A frame all of whose stages run in one piece, for callers that take them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeopt.graph.tensors import Sample
from edgeopt.system.processes.closing import Closing

Serve = Callable[[Sample], tuple[Any, tuple[int, ...]]]
"""A frame to its answer and the times of its stages, in nanoseconds."""


class WholeFrame(Closing):
    """One frame on its way; see `edgeopt.runtime.pool.Work`. Everything runs in `execute`."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._frame: Sample | None = None
        self._answer: Any = None
        self.times_ns: tuple[int, ...] = ()

    def preprocess(self, frame: Sample) -> None:
        """Keep the frame."""
        self._frame = frame

    def execute(self) -> None:
        """Run all stages.

        Raises:
            ValueError: If there is no frame.
            EdgeoptError: If one of them fails.
        """
        if self._frame is None:
            raise ValueError("execute comes after preprocess")
        self._answer, self.times_ns = self._serve(self._frame)

    def postprocess(self) -> Any:
        """Return the answer."""
        return self._answer

    def close(self) -> None:
        """Forget the frame."""
        self._frame = self._answer = None
