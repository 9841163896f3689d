"""Compare INT8 models with their float model: agreement without labels, and speed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time_ns
from typing import Any

from edgeopt.executors import Session
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import why_no_proof
from edgeopt.measurement.accuracy.pool import HERE, AnswerPool
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.declared.target import Target
from edgeopt.system.device_clock import device_clock
from edgeopt.system.processes.time_limit import require_time
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
        clock: Clock = device_clock,
        one_open: bool = False,
        pool: AnswerPool = HERE,
        runnable: Callable[[Model], Runnable | None] = lambda _: None,
    ) -> None:
        """Open the float model, unless memory holds one session at a time.

        Args:
            model: The float model.
            opened: Opens a model as the target would.
            task: Of a model, with the metric's thresholds.
            pictures: On which agreement is judged.
            inputs: The model's inputs that are timed.
            reference: The answers to agree with; None: the float model's.
            clock: Of the speed; see `own_clock`.
            one_open: Whether memory holds one session at a time: the float model is then opened for each speed.
            pool: Answers the pictures.
            runnable: How another process opens a model; None of one that only this process can.
        """
        self._opened, self._task, self._pictures = opened, task, pictures
        self._inputs, self._clock, self._float_model = inputs, clock, model
        self._float = None if one_open else opened(model)
        self._pool, self._runnable = pool, runnable
        self._reference = self._answers(model) if reference is None else reference

    def _answers(self, model: Model) -> list[Any]:
        session = self._float if self._float and model is self._float_model else self._opened(model)
        try:
            return self._pool.answers(self._runnable(model), session, self._task(model), self._pictures)
        finally:
            if session is not self._float:
                session.close()

    def why_no_proof(self, least_agreement: float) -> str:
        """Return why agreement proves nothing on these pictures; empty where it does."""
        return why_no_proof(self._task(self._float_model), self._reference, least_agreement, self._pictures.kind)

    def agreement(self, candidate: Model) -> float:
        """Return how far its answers are the reference: 1 is identical."""
        return self._task(candidate).agreement(self._answers(candidate), self._reference)

    def speed(self, candidate: Model) -> float:
        """Return the float model's time over the candidate's, one run against one run."""
        if self._float is None:
            return self._speed_one_open(candidate)
        session = self._opened(candidate)
        runs = {"float": self._caller(self._float), "candidate": self._caller(session)}
        try:
            ratios = compare_calls(runs, baseline="float", seconds=_SECONDS, block=_BLOCK, clock=self._clock)
        finally:
            session.close()
        return ratios["candidate"].speedup

    def _speed_one_open(self, candidate: Model) -> float:
        """Return it with the models opened in turns, A B B A: several runs of each, the first not kept."""
        times_ns: dict[bool, list[int]] = {True: [], False: []}
        for is_float, turns in ((True, 1), (False, 2), (True, 1)):
            session = self._opened(self._float_model if is_float else candidate)
            try:
                call = self._caller(session)
                call(0)
                for i in range(turns * _BLOCK):
                    require_time()
                    began_ns = self._clock()
                    call(i)
                    times_ns[is_float].append(self._clock() - began_ns)
            finally:
                session.close()
        return median(times_ns[True]) / max(median(times_ns[False]), 1)

    def _caller(self, session: Session) -> Callable[[int], None]:
        inputs = self._inputs

        def call(index: int) -> None:
            session.run(inputs[index % len(inputs)])

        return call

    def close(self) -> None:
        """Free the float session."""
        if self._float is not None:
            self._float.close()


def own_clock(target: Target, threads: int) -> Clock:
    """Return the clock of a target's speeds.

    A session of one thread computes in the caller's; its own time leaves out what others do to the machine.
    """
    alone = threads == 1 and (target.device, target.executor) == ("cpu", "onnxruntime")
    return thread_time_ns if alone else device_clock
