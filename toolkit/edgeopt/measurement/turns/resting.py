"""A session that memory does not hold beside another: closed while it rests, and opened anew when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeopt.executors import Placement, Session, Staged
from edgeopt.graph.tensors import Tensors, TensorSpec


class Resting(Staged):
    """A session without its weights; a run opens it, and it stays open until it rests again."""

    def __init__(self, opened: Session, reopen: Callable[[], Session]) -> None:
        """Keep what a session tells of itself, and close it.

        Args:
            opened: It is closed here.
            reopen: Opens the same again.
        """
        self._reopen = reopen
        self._awake: Session | None = opened
        self._inputs, self._outputs, self._placement = opened.inputs, opened.outputs, opened.placement()
        self.rest()

    def rest(self) -> None:
        """Free the weights until the next run."""
        if self._awake is not None:
            self._awake.close()
        self._awake = None

    def _session(self) -> Session:
        if self._awake is None:
            self._awake = self._reopen()
        return self._awake

    def upload(self, inputs: Tensors) -> Any:
        """Open the session where it rests, and bring the inputs to the device."""
        return self._session().upload(inputs)

    def execute(self, uploaded: Any) -> Any:
        """Run, wait until done."""
        return self._session().execute(uploaded)

    def download(self, results: Any) -> Tensors:
        """Bring the results to the host, by output name."""
        return self._session().download(results)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a run."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of a run."""
        return self._outputs

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node runs."""
        return self._placement

    @property
    def simulated(self) -> bool:
        """Never: a simulator's time is no latency, and no such session comes here."""
        return False

    def close(self) -> None:
        """Free the weights."""
        self.rest()
