"""Answers by several processes at once: every frame once, in order, with progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest

from edgeopt.errors import StepError
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import EXECUTOR, Script
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.parallel import simulate_answers
from edgeopt.recipes.inputs.frames import Frames

SCRIPT = Script((TensorSpec("x", "int64", ()),), ({"y": np.zeros(1)},), execute_ns=(2_000_000,)).to_bytes()


@dataclass
class Numbered:
    """A task whose answer is the number in the frame, and the thread that gave it."""

    made_in: int = 0
    decoding: None = None

    def preprocess(self, frame):
        return {"x": np.int64(frame[0, 0, 0])}, int(frame[0, 0, 0])

    def postprocess(self, outputs, geometry):
        self.made_in = self.made_in or get_ident()
        assert self.made_in == get_ident()
        return geometry


def frames(count):
    def read(index):
        return np.full((1, 1, 3), index, np.uint8)

    return Frames(tuple(map(str, range(count))), read, Path())


def open_session():
    return EXECUTOR.open(SCRIPT, SessionOptions())


@pytest.mark.parametrize("processes", [1, 2, 5, 50])
def test_every_frame_is_answered_once_and_in_order(processes):
    told = []
    found = simulate_answers(
        open_session, Numbered, frames(17), processes=processes, tell=lambda *one: told.append(one), what="npu"
    )
    assert found == list(range(17))
    assert told == [("npu", i + 1, 17) for i in range(17)]


def test_each_process_is_opened_and_closed():
    opened = []

    def remember():
        opened.append(open_session())
        return opened[-1]

    simulate_answers(remember, Numbered, frames(9), processes=3)
    assert [one.is_closed for one in opened] == [True] * 3


def test_a_failure_of_one_process_is_the_failure_of_all():
    def broken():
        raise StepError("the library died of SIGSEGV", remedy="none")

    with pytest.raises(StepError, match="SIGSEGV"):
        simulate_answers(broken, Numbered, frames(4), processes=2)
