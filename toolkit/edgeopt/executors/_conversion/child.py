"""The parent's side of a child in which an engine's own converter runs: it may die, hang, or print as it likes.

The child is started when it is first needed, serves all models that follow, and is started anew after a death.
"""

from __future__ import annotations

from edgeopt.errors import ELSEWHERE, MissingDependencyError, UnsupportedError
from edgeopt.executors._child import abort_in
from edgeopt.system.declared.optional import how_to_install
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.time_limit import require_time, time_left_s
from edgeopt.system.processes.worker import Worker, WorkerDeathError, python_worker

"""Remedy for a model that an engine does not take."""


class ConversionChild:
    """One child. Not for two threads at once."""

    def __init__(self, module: str, engine: str, extra: str) -> None:
        """Name the child; it is not started yet.

        Args:
            module: Run as its program. It answers `missing`, `refusal` with `remedy`, or `error` where it fails.
            engine: Called so in errors.
            extra: Of edgeopt, which brings the engine.
        """
        self._module, self._engine, self._extra = module, engine, extra
        self._worker: Worker | None = None

    @property
    def is_started(self) -> bool:
        """Whether it runs."""
        return self._worker is not None

    def ask(self, message: Message, *, longest_s: float) -> Message:
        """Return the child's answer.

        Args:
            message: Of the conversion.
            longest_s: A conversion that takes longer hangs; the time limit of the command ends it before.

        Raises:
            UnsupportedError: If the model cannot be held, or its conversion hangs or dies.
            MissingDependencyError: If the engine is not installed.
        """
        require_time()
        try:
            if self._worker is None:
                self._worker = python_worker(self._module, self._engine)
            answer = self._worker.ask(message, timeout_s=min(longest_s, max(time_left_s(), 0.1)))
        except WorkerDeathError as death:
            self.end()
            require_time()
            abort = abort_in(self._engine, "converting", death)
            problem = f"the conversion to {self._engine} {death.how}"
            raise abort or UnsupportedError(problem, remedy=ELSEWHERE) from death
        except BaseException:  # an interrupt: its answer would be taken for the next request's
            self.end()
            raise
        values = answer.values
        if missing := values.get("missing"):
            raise MissingDependencyError(missing, remedy=how_to_install(self._extra))
        if refusal := values.get("refusal"):
            raise UnsupportedError(refusal, remedy=values.get("remedy") or ELSEWHERE)
        if error := values.get("error"):
            raise UnsupportedError(f"{self._engine} does not convert the model: {error}"[:400], remedy=ELSEWHERE)
        return answer

    def end(self) -> None:
        """End it, whatever it does."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
