"""Several frames in one run of a model whose first dimension is free."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Staged
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.runtime.runtime import Runtime

_clock = time.perf_counter_ns


def why_no_batch(inputs: Sequence[TensorSpec], states: Collection[str] = ()) -> str | None:
    """Return None if frames can go together: the first dimension of every input is free, and no state is fed back."""
    if states:
        return f"the states {', '.join(states)} are fed back from frame to frame"
    fixed = [spec for spec in inputs if not spec.shape or (isinstance(spec.shape[0], int) and spec.shape[0] > 0)]
    return f"the batch of input {fixed[0]} is fixed" if fixed else None


def put(batch: Mapping[str, NDArray[Any]], inputs: Tensors, place: int) -> None:
    """Copy the inputs of one frame into those of a batch."""
    for name, input_ in inputs.items():
        batch[name][place * input_.shape[0] : (place + 1) * input_.shape[0]] = input_


def part_of(outputs: Tensors, place: int, size: int) -> Tensors:
    """Return the outputs of one frame of a batch; they share its memory."""
    return {
        name: output[place * len(output) // size : (place + 1) * len(output) // size]
        for name, output in outputs.items()
    }


def is_in_parts(outputs: Tensors, size: int) -> bool:
    """Return whether every output has a part for each frame: a free dimension is a promise that a Reshape may break."""
    return all(output.ndim and len(output) and not len(output) % size for output in outputs.values())


class Batches:
    """Runs frames of one runtime together; each has a task with buffers of its own. One thread at a time."""

    def __init__(self, runtime: Runtime) -> None:
        """Bind to a runtime, which nobody else runs meanwhile."""
        self._runtime, self._session = runtime, runtime.session
        self._tasks = [runtime.task]
        self._memory: dict[tuple[int, str], NDArray[Any]] = {}

    def run(self, frames: Sequence[Sample]) -> list[tuple[Any, tuple[int, ...]]]:
        """Return the answer of each frame, and the times of the runtime's stages: those of the model are the batch's.

        Raises:
            ValueError: If one is no frame, or the model does not answer each for itself.
            EdgeoptError: If the engine fails.
        """
        size = len(frames)
        while len(self._tasks) < size:
            self._tasks.append(self._runtime.make_task())
        fed = [self._feed(place, frame, size) for place, frame in enumerate(frames)]
        batch = {spec.name: self._memory[size, spec.name] for spec in self._session.inputs}
        outputs, times = _run(self._session, batch)
        if not is_in_parts(outputs, size):
            raise ValueError(f"the model does not answer each of {size} frames for itself")
        result: list[tuple[Any, tuple[int, ...]]] = []
        for place, (geometry, preprocess_ns) in enumerate(fed):
            begun = _clock()
            answer = self._tasks[place].postprocess(part_of(outputs, place, size), geometry)
            result.append((answer, (preprocess_ns, *times, _clock() - begun)))
        return result

    def _feed(self, place: int, frame: Sample, size: int) -> tuple[Any, int]:
        """Write the inputs of a frame into the batch; return its geometry and how long that took."""
        begun = _clock()
        inputs, geometry = self._runtime.feed(self._tasks[place], frame)
        for name, input_ in inputs.items():
            shape = (size * input_.shape[0], *input_.shape[1:])
            held = self._memory.get((size, name))
            if held is None or held.shape != shape:
                if place:
                    raise ValueError(f"input {name} of frames that go together differs in shape")
                self._memory[size, name] = np.empty(shape, input_.dtype)
        put({name: self._memory[size, name] for name in inputs}, inputs, place)
        return geometry, _clock() - begun


def _run(session: Staged, inputs: Tensors) -> tuple[Tensors, list[int]]:
    value: Any = inputs
    times = []
    for _, part in session.stages:
        begun = _clock()
        value = part(value)
        times.append(_clock() - begun)
    return value, times
