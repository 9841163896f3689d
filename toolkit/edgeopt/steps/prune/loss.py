"""The loss of a pruned model on held-out pictures, as the task counts it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.system.processes.time_limit import require_time
from edgeopt.tasks import Task

JUDGED_PICTURES = 24
"""Held-out ones: more tell little more, and each is run for every cut."""
FITTED_PICTURES = 128
_MOST_BYTES = 2**28
"""Most bytes of all pictures that are held in memory."""


class HeldOutLoss:
    """Loss of models against the dense one; called with a model."""

    def __init__(self, dense: Model, task: Task, pictures: Sequence[Tensors], threads: int) -> None:
        """Run the dense model.

        Args:
            dense: What others are compared with.
            task: Of it.
            pictures: Model inputs that no repair sees.
            threads: Of the sessions on this machine's processor.
        """
        self._task, self._pictures, self._threads = task, pictures, threads
        self._reference = self._outputs(dense)

    def __call__(self, model: Model) -> float:
        """Return the loss, 0 none to 1 everything and above; infinite where the model does not run."""
        try:
            lost = self._task.loss(self._outputs(model), self._reference)
        except EdgeoptError:
            return math.inf
        return lost if math.isfinite(lost) else math.inf

    def _outputs(self, model: Model) -> list[Tensors]:
        return [*outputs_of(model, self._pictures, self._threads)]


def outputs_of(model: Model, pictures: Sequence[Tensors], threads: int) -> Iterator[Tensors]:
    """Yield a model's outputs on this machine's processor, picture by picture."""
    session = EXECUTOR.open(model.source, SessionOptions(threads=threads))
    try:
        for picture in pictures:
            require_time()
            yield session.run(picture)
    finally:
        session.close()


def held_out(pictures: Sequence[Tensors]) -> tuple[list[Tensors], list[Tensors]]:
    """Return pictures to fit on, and every fourth to judge by: no fit sees those.

    Args:
        pictures: Model inputs; of fewer than four all are both.
    """
    if len(pictures) < 4:
        return [*pictures], [*pictures]
    judged = [picture for i, picture in enumerate(pictures) if i % 4 == 3]
    return [picture for i, picture in enumerate(pictures) if i % 4 != 3], judged[:JUDGED_PICTURES]


def fitting_count(first: Tensors) -> int:
    """Return how many pictures are taken: as many as memory holds well.

    Args:
        first: One of them.
    """
    size = max(sum(np.asarray(array).nbytes for array in first.values()), 1)
    return max(min(FITTED_PICTURES, _MOST_BYTES // size), 4)
