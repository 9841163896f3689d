"""Compare INT8 models with their float model: agreement without labels, and speed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

from edgeopt.executors import Session
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import answers, why_no_proof
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.interleaved import compare_calls
from edgeopt.recipes.frames import Frames
from edgeopt.system.target import Target
from edgeopt.tasks import Task

AGREEMENT_PICTURES, TIMED_PICTURES = 16, 8
_SECONDS, _BLOCK = 1.5, 5


class Judge:
    """One float model that others are compared with: the same pictures, the same engine."""

    def __init__(
        self,
        model: Model,
        opened: Callable[[Model], Session],
        task: Callable[[Model], Task],
        pictures: Frames,
        inputs: Sequence[Tensors],
        *,
        reference: Sequence[Any] | None = None,
        clock: Clock = perf_counter_ns,
    ) -> None:
        """Open the float model.

        Args:
            model: The float model.
            opened: Opens a model as the target would.
            task: Of a model, with the metric's thresholds.
            pictures: On which agreement is judged.
            inputs: The model's inputs that are timed.
            reference: The answers to agree with; None: the float model's.
            clock: Of the speed; see `own_clock`.
        """
        self._opened, self._task, self._pictures = opened, task, pictures
        self._inputs, self._clock, self._float = inputs, clock, opened(model)
        self._reference = answers(self._float, task(model), pictures) if reference is None else reference
        self._float_model = model

    def why_no_proof(self, least_agreement: float) -> str:
        """Return why agreement proves nothing on these pictures; empty where it does."""
        return why_no_proof(self._task(self._float_model), self._reference, least_agreement)

    def agreement(self, candidate: Model) -> float:
        """Return how far its answers are the reference: 1 is identical."""
        session, task = self._opened(candidate), self._task(candidate)
        try:
            found = answers(session, task, self._pictures)
        finally:
            session.close()
        return task.agreement(found, self._reference)

    def speed(self, candidate: Model) -> float:
        """Return the float model's time over the candidate's, one run against one run."""
        session = self._opened(candidate)
        runs = {"float": self._caller(self._float), "candidate": self._caller(session)}
        try:
            found = compare_calls(runs, baseline="float", seconds=_SECONDS, block=_BLOCK, clock=self._clock)
        finally:
            session.close()
        return found["candidate"].speedup

    def _caller(self, session: Session) -> Callable[[int], None]:
        inputs = self._inputs

        def call(index: int) -> None:
            session.run(inputs[index % len(inputs)])

        return call

    def close(self) -> None:
        """Free the float session."""
        self._float.close()


def own_clock(target: Target, threads: int) -> Clock:
    """Return the clock of a target's speeds.

    A session of one thread computes in the caller's; its own time leaves out what others do to the machine.
    """
    alone = threads == 1 and (target.device, target.executor) == ("cpu", "onnxruntime")
    return thread_time_ns if alone else perf_counter_ns
