"""Several frames in one run of the model: throughput against latency for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.closed_loop import Pictures, run_frames
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import Summary, summarize
from edgeopt.measurement.turns.interleaved import run_interleaved
from edgeopt.runtime.schedule.batch import part_of, put, why_no_batch
from edgeopt.system.device_clock import device_clock
from edgeopt.tasks import FrameTask

_BLOCK = 5
_REMEDY = "export the model with a free first dimension, or leave --batch out"


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One batch size: rows of `samples` are batches, not frames."""

    size: int
    samples: Samples

    @property
    def latency(self) -> Summary:
        """Time until all answers of a batch are there."""
        return summarize(self.samples.steady().frame_ns)

    @property
    def throughput_per_s(self) -> float:
        """Frames per second of busy time."""
        times = self.samples.steady().frame_ns
        return self.size * len(times) * 1e9 / float(times.sum()) if times.any() else 0.0


@dataclass(frozen=True, slots=True)
class _BatchTask(FrameTask):
    """A task of `size` frames at once: the same picture each time, every one preprocessed and read for itself."""

    task: FrameTask
    size: int

    @property
    def stages(self) -> tuple[str, str]:
        return self.task.stages

    @property
    def holds_outputs(self) -> bool:
        return self.task.holds_outputs

    def preprocess(self, frame: Sample) -> tuple[Tensors, Any]:
        inputs, geometry = self.task.preprocess(frame)
        batch: dict[str, NDArray[Any]] = {}
        for name, input_ in inputs.items():
            batch[name] = np.empty((self.size * input_.shape[0], *input_.shape[1:]), input_.dtype)
        geometries = [geometry]
        put(batch, inputs, 0)
        for i in range(1, self.size):
            inputs, geometry = self.task.preprocess(frame)  # its buffer may be the same again: copied below
            put(batch, inputs, i)
            geometries.append(geometry)
        return batch, geometries

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        return [self.task.postprocess(part_of(outputs, i, self.size), value) for i, value in enumerate(geometry)]

    def count(self, answer: Any) -> int:
        return sum(map(self.task.count, answer))


def sweep_batches(
    frames: Pictures,
    task: FrameTask,
    session: Session,
    sizes: Sequence[int] = (1, 2, 4, 8),
    *,
    seconds: float,
    clock: Clock = device_clock,
) -> tuple[BatchPoint, ...]:
    """Run all batch sizes in turns and return one point each, in the order given.

    Args:
        frames: One or more; a batch repeats one of them.
        task: Preprocess and postprocess of one frame.
        session: The loaded model; the first dimension of its inputs must be free.
        sizes: Different ones, each 1 or more.
        seconds: For all sizes together.
        clock: Nanoseconds that never go back.

    Raises:
        UnsupportedError: If the model's batch is fixed, or it refuses or ignores a batch.
        ValueError: If there is no size, or one is below 1 or given twice.
    """
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise ValueError(f"batch sizes are different numbers from 1 on, not {list(sizes)}")
    if reason := why_no_batch(session.inputs):
        raise UnsupportedError(reason, remedy=_REMEDY)
    tasks = {size: _BatchTask(task, size) for size in sizes}
    first = frames[0]() if callable(frames[0]) else frames[0]
    _require_batches(session, {size: _BatchTask(task, size).preprocess(first)[0] for size in (1, *sizes)})
    if len(sizes) == 1:
        alone = run_frames(frames, tasks[sizes[0]], session, seconds=seconds, min_frames=1, clock=clock)
        return (BatchPoint(sizes[0], alone),)
    variants = {f"batch {size}": (batched, session) for size, batched in tasks.items()}
    samples = run_interleaved(frames, variants, seconds=seconds, block=_BLOCK, clock=clock)
    return tuple(BatchPoint(size, samples[f"batch {size}"]) for size in sizes)


def _require_batches(session: Session, inputs: Mapping[int, Tensors]) -> None:
    """A free dimension is a promise: a Reshape inside may still hold the batch of the export."""
    single = _lengths(session, inputs[1], 1)
    for size, batch in inputs.items():
        for name, length in _lengths(session, batch, size).items():
            if not length or length != size * single[name]:
                raise UnsupportedError(f"output {name} ignores a batch of {size}", remedy=_REMEDY)


def _lengths(session: Session, inputs: Tensors, size: int) -> dict[str, int]:
    """Return the first dimension of each output, 0 for a scalar."""
    try:
        outputs = session.run(inputs)
    except Exception as error:  # each engine has its own classes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedError(f"the model does not run a batch of {size}: {reason}", remedy=_REMEDY) from error
    return {name: len(value) if value.ndim else 0 for name, value in outputs.items()}
