"""The runner of a stream's frames: a runtime as it is, or a pipeline, all of whose stages run in one piece."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Protocol

from edgeopt.graph.tensors import Sample
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.whole_frame import WholeFrame


class Frame(Protocol):
    """One frame on its way; see `edgeopt.runtime.pool.Work`."""

    @property
    def times_ns(self) -> Sequence[int] | Any:
        """The nanoseconds of each stage."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def preprocess(self, frame: Sample) -> None:
        """Make the model's inputs."""
        ...

    def execute(self) -> None:
        """Run."""
        ...

    def postprocess(self) -> Any:
        """Return the answer."""
        ...

    def close(self) -> None:
        """Give its buffers back."""
        ...


class Runner(Protocol):
    """A loaded model, or several."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The timed stages, in order."""
        ...

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> Frame:
        """Take what one frame needs; a recurrent model has states of each stream."""
        ...

    def reset(self, stream: Hashable | None = None) -> None:
        """Forget the states of a stream, or all."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


def runner_of(given: Runtime | Pipeline) -> Runner:
    """Return what a stream runs with."""
    return _Whole(given) if isinstance(given, Pipeline) else given


def name_of(runner: Runner) -> str:
    """Return the file of the model, or the name of the pipeline."""
    return runner.name if isinstance(runner, _Whole) else runner.artefact.file  # type: ignore[attr-defined]


class _Whole:
    """A pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.stages, self.name = pipeline.stages, pipeline.description.name
        self._pipeline = pipeline

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> Frame:
        """Return a frame: its models lease buffers for themselves."""
        del timeout_s, stream
        return WholeFrame(self._serve)

    def reset(self, stream: Hashable | None = None) -> None:
        """Do nothing: a pipeline's models look at each frame for itself."""

    def close(self) -> None:
        """Do nothing: the pipeline is the app's."""

    def _serve(self, frame: Any) -> tuple[Any, tuple[int, ...]]:
        answer = self._pipeline.predict(frame)
        return answer, answer.times_ns
