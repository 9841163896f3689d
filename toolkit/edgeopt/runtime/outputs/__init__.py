"""Where drawn answers of a stream go: a page in a browser, a video, a folder of pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgeopt.graph.tensors import Frame
from edgeopt.runtime.stream.result import StreamResult

Draw = Callable[[Any, Any], Frame]
"""Returns a copy of a frame that shows its answer."""


@dataclass(slots=True)
class Shown:
    """A result, drawn when the first output asks for it."""

    result: StreamResult
    draw: Draw
    _drawn: Frame | None = field(default=None)

    @property
    def drawn(self) -> Frame:
        """The frame with its answer."""
        if self._drawn is None:
            self._drawn = self.draw(self.result.frame, self.result.answer)
        return self._drawn


class Output(Protocol):
    """Takes one result after another."""

    def put(self, shown: Shown) -> None:
        """Take a result.

        Raises:
            EdgeoptError: If it cannot be kept; what came before it stays.
        """
        ...

    def close(self) -> str:
        """Finish; return what there is now, in a clause. A second time does nothing."""
        ...
