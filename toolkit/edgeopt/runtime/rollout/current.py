"""The runtime of the version that runs in a place of `edgeopt push`, which an app follows without a restart.

with CurrentRuntime("/opt/door", budget_ms=33) as current:
    for frame in frames:
        answer = current.predict(frame)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, perf_counter_ns
from typing import Any, Final

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.rollout.probation import Probation
from edgeopt.runtime.rollout.signature import require_signed
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.processes.closing import Closing

CURRENT: Final = "current"
"""Name of the link to the version that runs."""
VERSIONS: Final = "versions"
"""Name of the folder with the versions."""
TRUSTED: Final = "trusted.pub"
"""Name of the public key with which every version is signed."""


class CurrentRuntime(Closing):
    """Answers with the version that runs; any number of threads may call.

    Another version is loaded in a thread of its own, while the one before goes on answering. It answers on probation:
    in its first 200 frames the one before stays loaded and answers each tenth too. Where answers differ by more than
    the recipe lets a candidate, or frames miss the budget, the one before answers again, whatever the link says.
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
        """Load the version that runs.

        Args:
            place: Folder into which bundles are pushed.
            budget_ms: Time that a frame may take on probation; None: times are not judged.
            every_s: Seconds between two looks at which version runs.
            on_change: Hears the name of a version, and why it does not answer any more; empty: it answers from now on.
                In the thread that loads it, or that of a frame.
            **loading: As `Runtime.load`.

        Raises:
            UnavailableError: If nothing runs there.
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
        """Return the answer of the version that runs; see `Runtime.predict`."""
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
        """Return the runtime of the version that runs; the one before while another is loaded, or where that fails.

        It is closed when another takes its place: `predict` goes on with that one.
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
        """Close the runtime, after the frames that are on their way."""
        with self._turn:
            self._is_closed, probation, self._probation = True, self._probation, None
        if probation is not None:
            probation.close()
            probation.before.close()
        self._runtime.close()
        if self._loader is not None:
            self._loader.join()
