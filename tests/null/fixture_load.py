"""Pipelines whose time is scripted, and strategies for timetables, service times and queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from edgeopt.benchmarking.arrivals import Arrivals
from edgeopt.benchmarking.clock import ScriptedClock
from edgeopt.benchmarking.queueing import FIFO, LATEST, QueueKind, QueuePolicy
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Null, NullSession, Script
from edgeopt.labels import Labels
from edgeopt.tasks import Accuracy
from edgeopt.tensors import Frame, Tensors, TensorSpec

MS = 1_000_000
PICTURE = np.zeros((4, 4, 3), np.uint8)
SCRIPT = Script(inputs=(TensorSpec("x", "float32", (1,)),), answers=({"y": np.array([0.5, 0.25], np.float32)},))


@dataclass
class PlainTask:
    """A task that takes no time of its own."""

    def preprocess(self, frame: Frame) -> tuple[Tensors, Any]:
        return {"x": np.ones(1, np.float32)}, frame.shape

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        return outputs["y"]

    def score(self, answers: Sequence[Any], labels: Labels) -> Accuracy:
        raise NotImplementedError

    def agreement(self, answers: Sequence[Any], reference: Sequence[Any]) -> float:
        raise NotImplementedError


def session(wait_ns: Callable[[int], None], script: Script = SCRIPT) -> NullSession:
    return Null(wait_ns).open(script.to_bytes(), SessionOptions())


def frames_taking(service_ns: Sequence[int], clock: ScriptedClock) -> list[Callable[[], Frame]]:
    """Return readers of frames; the k-th lets service_ns[k] pass."""

    def read(time_ns: int) -> Frame:
        clock.advance(int(time_ns))
        return PICTURE

    return [partial(read, one) for one in service_ns]


def waiting_on(clock: ScriptedClock) -> Callable[[int], None]:
    """Return how to wait for an instant of a scripted clock: be there."""
    return lambda due_ns: clock.advance(max(0, due_ns - clock.now_ns))


policies = st.one_of(
    st.sampled_from([FIFO, LATEST]), st.integers(1, 4).map(lambda depth: QueuePolicy(QueueKind.BOUNDED, depth))
)


@st.composite
def timetables(draw) -> Arrivals:
    gaps = draw(st.lists(st.integers(0, 40), min_size=1, max_size=60))
    streams = draw(st.lists(st.integers(0, 2), min_size=len(gaps), max_size=len(gaps)))
    return Arrivals(np.cumsum(gaps) * MS, np.array(streams))


@st.composite
def runs(draw):
    arrivals = draw(timetables())
    service = draw(st.lists(st.integers(1, 90), min_size=len(arrivals), max_size=len(arrivals)))
    return arrivals, np.array(service, np.int64) * MS
