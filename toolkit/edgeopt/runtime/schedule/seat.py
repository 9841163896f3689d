"""A model of a scheduler as a stream takes it: with what a runtime has, each frame in its turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.bundle import Artefact, Bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule.model import TURN
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.whole_frame import Serve, WholeFrame


class Seat:
    """The handle that `Scheduler.runtime` returns."""

    def __init__(self, runtime: Runtime, serve: Serve, stats: Callable[[], Stats]) -> None:
        """Bind to a model; a scheduler does this.

        Args:
            runtime: Tells what the model is; it may be unloaded later.
            serve: Answers a frame in its turn, with the times of `stages`.
            stats: Of the model.
        """
        self.bundle: Bundle = replace(runtime.bundle, lighter=())  # a stream opens no second model past the scheduler
        self.artefact: Artefact = runtime.artefact
        self.stages = (TURN, *runtime.stages)
        self.session: Session = runtime.session
        self._serve, self.stats = serve, stats

    def predict(self, frame: Sample) -> Any:
        """Return the answer for one frame; see `Scheduler.predict`."""
        return self._serve(frame)[0]

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> WholeFrame:
        """Take a frame's stages one by one; they all run in `execute`, in the frame's turn.

        The stream is the one that the scheduler was asked for.
        """
        del timeout_s, stream
        return WholeFrame(self._serve)

    def reset(self, stream: Hashable | None = None) -> None:
        """Do nothing: the states are the scheduler's."""

    def close(self) -> None:
        """Do nothing: the model is the scheduler's."""
