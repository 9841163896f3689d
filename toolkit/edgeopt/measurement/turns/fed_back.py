"""A session that feeds a recurrent model's states back by itself, so that timed frames are those of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgeopt.executors import Placement, Session, Stage, Staged
from edgeopt.graph.facts.states import Feedback
from edgeopt.graph.tensors import Tensors, TensorSpec


def feed_back(session: Session, states: Mapping[str, str]) -> Session:
    """Return a session that runs one stream: each run takes the states that the run before it left.

    What that costs is part of `upload` and `download`.

    Args:
        session: A loaded model; closed with what is returned.
        states: The output that each state input takes, by the input's name; none: the session itself is returned.
    """
    return _FedBack(session, states) if states else session


class _FedBack(Staged):
    """One stream on one session."""

    def __init__(self, session: Session, states: Mapping[str, str]) -> None:
        self._session, self._states, self._feedback = session, states, Feedback(states)
        parts = list(session.stages)
        (first, take), (last, give) = parts[0], parts[-1]
        if len(parts) == 1:
            parts = [(first, lambda inputs: self._kept(take(self._feedback.into(inputs))))]
        else:
            parts[0] = (first, lambda inputs: take(self._feedback.into(inputs)))
            parts[-1] = (last, lambda found: self._kept(give(found)))
        self._parts = tuple(parts)

    def _kept(self, outputs: Tensors) -> Tensors:
        self._feedback.keep(outputs)
        return outputs

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those of the session."""
        return self._parts

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of the session."""
        return self._session.clock

    def run(self, inputs: Tensors) -> Tensors:
        """Run once; the states that are given count in the first run only."""
        return self._kept(self._session.run(self._feedback.into(inputs)))

    def execute(self, uploaded: Any) -> Any:
        """Run, wait until done."""
        return self._session.execute(uploaded)

    def beside(self, *, reuse: bool = False) -> Session | None:
        """Return a session over the same weights, which runs a stream of its own."""
        other = self._session.beside(reuse=reuse)
        return None if other is None else _FedBack(other, self._states)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a run."""
        return self._session.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of a run."""
        return self._session.outputs

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node of the optimized graph runs."""
        return self._session.placement()

    @property
    def simulated(self) -> bool:
        """Whether another device's numbers are computed here."""
        return self._session.simulated

    def close(self) -> None:
        """Free what the session holds."""
        self._session.close()
