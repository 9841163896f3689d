"""A pipeline whose time is scripted: reading frame k lets service_ns[k] pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from edgeopt.benchmarking.clock import ScriptedClock
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
