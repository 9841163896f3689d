"""Who answers the frames on which accuracy is judged: this process, or many that answer as it does to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

from edgeopt.executors import Session
from edgeopt.measurement.accuracy.evaluate import Progress, answers
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.tasks import Task

Expected: TypeAlias = Mapping[str, Callable[[], Runnable | None]]
"""Models that will be asked next, in their order: the word for `tell`, and what returns each when its turn comes."""


class AnswerPool(Protocol):
    """Answers frames, as `answers` does."""

    def answers(
        self,
        runnable: Runnable | None,
        session: Session,
        task: Task,
        frames: Frames,
        tell: Progress | None = None,
        what: str = "",
        *,
        is_evaluating: bool = True,
    ) -> list[Any]:
        """Return the task's answer for each frame.

        Args:
            runnable: How other processes open the model as this one did; None: they cannot.
            session: Of the model, open in this process.
            task: Of the model.
            frames: What is answered.
            tell: Called as frames are done.
            what: It is told.
            is_evaluating: How the task was made.

        Raises:
            OutOfTime: At the end of a time limit.
        """
        ...

    def expecting(self, expected: Expected, frames: Frames) -> AbstractContextManager[None]:
        """Return a context in which several models are asked the same frames: others may begin with the next one."""
        ...


class AnswersHere:
    """The pool of this process alone."""

    def answers(
        self,
        runnable: Runnable | None,
        session: Session,
        task: Task,
        frames: Frames,
        tell: Progress | None = None,
        what: str = "",
        *,
        is_evaluating: bool = True,
    ) -> list[Any]:
        """Return the answers of the open session; see `AnswerPool`."""
        del runnable, is_evaluating
        return answers(session, task, frames, tell, what)

    def expecting(self, expected: Expected, frames: Frames) -> AbstractContextManager[None]:
        """Return a context that does nothing: one model after the other."""
        del expected, frames
        return nullcontext()


HERE: AnswerPool = AnswersHere()
"""Where nobody else answers."""
