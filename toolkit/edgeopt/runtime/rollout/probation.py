"""The first frames of a new version in an app: it answers them, and the version before looks over its shoulder."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.processes.closing import Closing
from edgeopt.system.text import format_budget

FRAMES: Final = 200
MOST_MISSED: Final = 5
"""Late frames of 200 that are let pass: six and more come about in 1.7 % of the trials of a version of which 1 % of the
frames are late."""
_EVERY: Final = 10
"""Frames from one that both versions answer to the next."""


class Probation(Closing):
    """The trial of one version; any number of threads may observe."""

    def __init__(self, before: Runtime, after: Runtime, budget_ms: float | None) -> None:
        """Begin a trial.

        Args:
            before: Version that ran.
            after: Version on trial.
            budget_ms: Time that a frame may take; None: times are not judged.
        """
        self.before, self.after, self._budget_ms = before, after, budget_ms
        self._remembers = bool(after.states or after.bundle.recipe.audio.context)
        """Whether an answer rests on earlier frames: the version before gets each tenth only, and answers otherwise."""
        self._turn, self._done = Lock(), False
        self._frames = self._missed = 0
        self._answers = list[tuple[Any, Any]]()
        """Answers of the version on trial, and of the one before."""
        self._beside: Future[None] | None = None
        self._worker = ThreadPoolExecutor(1, "edgeopt-probation")

    def observe(self, frame: Sample, answer: Any, took_ns: int) -> str | None:
        """Hear of a frame that the version on trial answered.

        Args:
            frame: It is copied where the version before answers it too, in a thread beside.
            answer: Of the version on trial.
            took_ns: How long it took.

        Returns:
            None while the trial lasts, or where another thread has its end; then why the version must not stay, empty:
            it may.
        """
        with self._turn:
            if self._done:
                return None
            self._frames += 1
            self._missed += self._budget_ms is not None and took_ns > self._budget_ms * 1e6
            is_compared = not self._remembers and self._frames % _EVERY == 1
            if is_compared and (self._beside is None or self._beside.done()):
                self._beside = self._worker.submit(self._compare, _copy(frame), answer)
            if self._missed <= MOST_MISSED and self._frames < FRAMES:
                return None
            self._done = True
        return self._reason()

    def _compare(self, frame: Sample, answer: Any) -> None:
        try:
            self._answers.append((answer, self.before.predict(frame)))
        except (ValueError, EdgeoptError):
            return  # the version before does not answer it: nothing is compared

    def _reason(self) -> str:
        if self._budget_ms is not None and self._missed > MOST_MISSED:
            return f"{self._missed} of {self._frames} frames over {format_budget(self._budget_ms)} ms"
        self._worker.shutdown()
        if not self._answers:
            return ""
        answers, expected = (list(each) for each in zip(*self._answers, strict=True))
        agreement, least = self.after.task.agreement(answers, expected), self.after.bundle.recipe.least_agreement
        if agreement >= least:
            return ""
        return f"{agreement:.3f} of its answers to {len(answers)} frames agree with those before, {least:g} wanted"

    def close(self) -> None:
        """End the thread beside."""
        with self._turn:
            self._done = True
        self._worker.shutdown()


def _copy(frame: Sample) -> Sample:
    """Return a frame that the app may not write over."""
    if isinstance(frame, np.ndarray):
        return frame.copy()
    if isinstance(frame, Mapping):
        return {name: np.array(value) for name, value in frame.items()}
    return frame
