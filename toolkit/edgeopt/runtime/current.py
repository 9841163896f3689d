"""The runtime of the version that runs in a place of `edgeopt push`, which an app follows without a restart.

with CurrentRuntime("/opt/door") as current:
    for frame in frames:
        answer = current.predict(frame)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.signature import require_signed
from edgeopt.system.processes.closing import Closing

CURRENT: Final = "current"
"""Name of the link to the version that runs."""
VERSIONS: Final = "versions"
"""Name of the folder with the versions."""
TRUSTED: Final = "trusted.pub"
"""Name of the public key with which every version is signed."""


class CurrentRuntime(Closing):
    """Loads another version in a thread of its own, while the one before goes on answering; any thread may call."""

    def __init__(
        self,
        place: str | Path,
        *,
        every_s: float = 1.0,
        on_change: Callable[[str, str], None] | None = None,
        **loading: Any,
    ) -> None:
        """Load the version that runs.

        Args:
            place: Folder into which bundles are pushed.
            every_s: Seconds between two looks at which version runs.
            on_change: Hears the name of a version that was loaded, and why it cannot be used; empty: it is used. In
                the thread that loads it.
            **loading: As `Runtime.load`.

        Raises:
            UnavailableError: If nothing runs there.
            EdgeoptError: If the version does not load, or is not signed with the key that the place trusts.
        """
        self.place, self._loading, self._on_change = Path(place), loading, on_change
        self._every_s, self._next_s = every_s, monotonic() + every_s
        self._turn = Lock()
        self._tried = self._name_of_current()
        if not self._tried:
            raise UnavailableError(
                f"nothing runs in {place}", remedy=f"push a bundle: edgeopt push BUNDLE --to {place}"
            )
        self.version = self._tried
        """Name of the version that answers."""
        self._runtime = self._load(self._tried)
        self._loader: Thread | None = None
        self._is_closed = False

    def predict(self, frame: Sample, **wishes: Any) -> Any:
        """Return the answer of the version that runs; see `Runtime.predict`."""
        while True:
            runtime = self.get()
            try:
                return runtime.predict(frame, **wishes)
            except UnavailableError:
                if runtime is self._runtime:  # it was not closed because another took its place meanwhile
                    raise

    def get(self) -> Runtime:
        """Return the runtime of the version that runs; the one before while another is loaded, or where that fails.

        It is closed when another takes its place: `predict` goes on with that one.
        """
        if monotonic() >= self._next_s:
            self._look()
        return self._runtime

    def _look(self) -> None:
        with self._turn:
            self._next_s = monotonic() + self._every_s
            name = self._name_of_current()
            if self._is_closed or not name or name == self._tried or (self._loader and self._loader.is_alive()):
                return
            self._tried = name
            self._loader = Thread(target=self._change, args=(name,), name="edgeopt-next-version", daemon=True)
            self._loader.start()

    def _change(self, name: str) -> None:
        """Load a version and let it answer; where it does not load, the one before goes on."""
        try:
            loaded = self._load(name)
        except EdgeoptError as error:
            problem = str(error)
        else:
            with self._turn:
                left = loaded if self._is_closed else self._runtime
                if not self._is_closed:
                    self._runtime, self.version = loaded, name
            left.close()  # after the frames that are on their way
            problem = ""
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
            self._is_closed = True
        self._runtime.close()
        if self._loader is not None:
            self._loader.join()
