"""The runtime of the version that runs in a place of `edgeopt push`, which an app follows without a restart.

with CurrentRuntime("/opt/door", budget_ms=33) as current:
    for frame in frames:
        answer = current.predict(frame)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, perf_counter_ns
from typing import Any, Final

import numpy as np

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.rollout.signature import require_signed
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.processes.closing import Closing
from edgeopt.system.text import format_budget

# The first frames of a new version in an app: it answers them, and the version before looks over its shoulder.

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


CURRENT: Final = "current"
"""Name of the link to the version that runs."""
VERSIONS: Final = "versions"
"""Name of the folder with the versions."""
TRUSTED: Final = "trusted.pub"
"""Name of the public key with which every version is signed."""


class CurrentRuntime(Closing):
    """Answers frames with the current version of a place. Any number of threads may call it.

    A new version is loaded in another thread while the old one keeps answering. It then answers on probation: for its
    first 200 frames the old version stays loaded, and answers every tenth frame too. If answers differ by more than the
    recipe allows a candidate, or frames miss the budget, the old version answers again, whatever the link says.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        budget_ms: float | None = None,
        every_s: float = 1.0,
        on_change: Callable[[str, str], None] | None = None,
        **loading: Any,
    ) -> None:
        """Load the current version.

        Args:
            place: Folder into which `edgeopt push` puts bundles.
            budget_ms: Time that a frame may take on probation; None: times are not judged.
            every_s: Seconds between two checks for a new version.
            on_change: Called with the name of a version and the reason why it stopped answering (empty: it answers from
                now on), in the thread that loads it or in that of a frame.
            **loading: As `Runtime.load`.

        Raises:
            UnavailableError: If the place has no version.
            EdgeoptError: If the version does not load, or is not signed with the key that the place trusts.
        """
        self.place, self._budget_ms, self._loading, self._on_change = Path(place), budget_ms, loading, on_change
        self._every_s, self._next_s = every_s, monotonic() + every_s
        self._turn = Lock()
        self._tried = self._name_of_current()
        if not self._tried:
            raise UnavailableError(f"nothing runs in {place}", remedy=f"edgeopt push BUNDLE --to {place}")
        self.version = self._tried
        """Name of the version that answers."""
        self._runtime = self._load(self._tried)
        self._probation: Probation | None = None
        self._version_before = ""
        self._loader: Thread | None = None
        self._is_closed = False

    def predict(self, frame: Sample, **wishes: Any) -> Any:
        """Return the answer of the current version; see `Runtime.predict`."""
        while True:
            runtime, probation = self.get(), self._probation
            began_ns = perf_counter_ns()
            try:
                answer = runtime.predict(frame, **wishes)
            except UnavailableError:
                if runtime is self._runtime:  # it was not closed because another took its place meanwhile
                    raise
                continue
            if probation is not None and runtime is probation.after and not wishes:
                reason = probation.observe(frame, answer, perf_counter_ns() - began_ns)
                if reason is not None:
                    self._end_probation(probation, reason)
            return answer

    def get(self) -> Runtime:
        """Return the runtime of the current version, or of the one before while a new one is loaded or if that fails.

        It is closed when another version takes its place; `predict` always uses the current one.
        """
        if monotonic() >= self._next_s:
            self._look()
        return self._runtime

    def _look(self) -> None:
        """Load another version where the link leads to one that was not tried, and none is on probation."""
        with self._turn:
            self._next_s = monotonic() + self._every_s
            name, is_loading = self._name_of_current(), self._loader is not None and self._loader.is_alive()
            if self._is_closed or not name or name == self._tried or is_loading or self._probation:
                return
            self._tried = name
            if name == self.version:  # the link came back to what answers
                return
            self._loader = Thread(target=self._change, args=(name,), name="edgeopt-next-version", daemon=True)
            self._loader.start()

    def _change(self, name: str) -> None:
        """Load a version and let it answer on probation; where it does not load, the one before goes on."""
        try:
            loaded = self._load(name)
        except EdgeoptError as error:
            self._tell(name, str(error))
            return
        with self._turn:
            if self._is_closed:
                loaded.close()
                return
            self._probation = Probation(self._runtime, loaded, self._budget_ms)
            self._version_before, self._runtime, self.version = self.version, loaded, name
        self._tell(name, "")

    def _end_probation(self, probation: Probation, reason: str) -> None:
        """Keep the version on probation, or return to the one before, and close the other."""
        with self._turn:
            if self._probation is not probation:
                return
            self._probation = None
            left, name = (probation.after, self.version) if reason else (probation.before, self.version)
            if reason:
                self._runtime, self.version = probation.before, self._version_before
        probation.close()
        left.close()  # after the frames that are on their way
        if reason:
            self._tell(name, reason)

    def _tell(self, name: str, problem: str) -> None:
        if self._on_change is not None:
            self._on_change(name, problem)

    def _load(self, name: str) -> Runtime:
        bundle, key = self.place / VERSIONS / name / "bundle", self.place / TRUSTED
        if key.is_file():
            require_signed(bundle, key)
        return Runtime.load(bundle, **self._loading)

    def _name_of_current(self) -> str:
        try:
            return Path(os.readlink(self.place / CURRENT)).name
        except OSError:
            return ""

    def close(self) -> None:
        """Close the runtime when the current frames are done."""
        with self._turn:
            self._is_closed, probation, self._probation = True, self._probation, None
        if probation is not None:
            probation.close()
            probation.before.close()
        self._runtime.close()
        if self._loader is not None:
            self._loader.join()
