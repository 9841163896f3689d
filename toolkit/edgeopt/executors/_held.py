"""A session whose runs hold the calling thread to some cores.

Engines hold threads of their own; the thread that asks for a run computes its share of it too.
"""

from __future__ import annotations

from typing import Any

from edgeopt.executors import Staged
from edgeopt.system.machine.affinity import held_to


class HeldSession(Staged):
    """The words of `Session`, with `execute` on some cores."""

    cores: tuple[int, ...] = ()
    """Numbers of logical cores; empty: wherever the system likes."""

    def execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done; the calling thread is where it was afterwards.

        Raises:
            UnsupportedError: If the engine cannot run the model on these inputs.
        """
        if not self.cores:
            return self._execute(uploaded)
        with held_to(self.cores):
            return self._execute(uploaded)

    def _execute(self, uploaded: Any) -> Any:
        """Run, wherever the calling thread is."""
        raise NotImplementedError
