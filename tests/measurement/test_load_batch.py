from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from fixture_load import MS, PICTURE, PlainTask

from edgeopt.errors import UnsupportedError
from edgeopt.executors import Staged
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.load.batch import sweep_batches, why_no_batch


@dataclass
class RowTask(PlainTask):
    """Numbers its frames in one buffer that it uses again, and notes what each answer was made of."""

    clock: ScriptedClock
    seen: list = field(default_factory=list)
    turn: int = 0
    buffer: np.ndarray = field(default_factory=lambda: np.zeros((1, 2), np.float32))

    def preprocess(self, frame):
        self.clock.advance(MS)
        self.buffer[:] = self.turn
        self.turn += 1
        return {"x": self.buffer}, self.turn - 1

    def postprocess(self, outputs, geometry):
        self.clock.advance(MS)
        self.seen.append((outputs["y"].shape, float(outputs["y"][0, 0]), geometry))
        return outputs["y"]


@dataclass
class BatchSession(Staged):
    """Takes 10 ms and 2 ms a row, doubles its input; `most` rows at once."""

    passing: ScriptedClock
    inputs: tuple = (TensorSpec("x", "float32", ("n", 2)),)
    outputs: tuple = (TensorSpec("y", "float32", ("n", 2)),)
    most: int = 64
    keeps_batch: bool = True

    def execute(self, uploaded):
        if len(uploaded["x"]) > self.most:
            raise RuntimeError("Reshape: {1,2}\nand more")
        self.passing.advance(10 * MS + 2 * MS * len(uploaded["x"]))
        return uploaded["x"] * 2 if self.keeps_batch else uploaded["x"][:1] * 2

    def download(self, results):
        return {"y": results}

    def placement(self):
        return ()

    def close(self):
        pass


def sweep(sizes=(1, 2, 4, 8), **options):
    clock = ScriptedClock()
    task = RowTask(clock)
    return task, sweep_batches([PICTURE], task, BatchSession(clock, **options), sizes, seconds=0.1, clock=clock)


def test_each_batch_has_its_latency_and_throughput():
    _, points = sweep()
    assert [point.size for point in points] == [1, 2, 4, 8]
    for point in points:
        expected = 10 * MS + 4 * MS * point.size
        assert set(point.samples.frame_ns.tolist()) == {expected}
        assert point.latency.p50.value_ns == expected
        assert point.throughput_per_s == pytest.approx(point.size * 1e9 / expected)
        assert set(point.samples.stage("preprocess").tolist()) == {point.size * MS}
        assert set(point.samples.n_out.tolist()) == {point.size}
        assert point.samples.variant == f"batch {point.size}"


def test_every_frame_of_a_batch_gets_its_own_part_of_the_output():
    task, _ = sweep(sizes=(3,))
    assert len(task.seen) >= 60
    assert all(shape == (1, 2) for shape, _, _ in task.seen)
    assert all(value == 2 * turn for _, value, turn in task.seen)


def test_a_fixed_batch_is_named():
    fixed = (TensorSpec("x", "float32", ("n", 2)), TensorSpec("z", "float32", (1, 3)))
    with pytest.raises(UnsupportedError) as caught:
        sweep(inputs=fixed)
    assert caught.value.problem == "the batch of input z float32 1x3 is fixed"
    assert "free first dimension" in caught.value.remedy
    assert why_no_batch(fixed[:1]) is None


def test_a_model_that_refuses_a_batch_is_named_with_the_engines_reason():
    with pytest.raises(UnsupportedError, match=r"does not run a batch of 4: Reshape: \{1,2\}"):
        sweep(most=3)


def test_a_model_that_ignores_the_batch_is_refused():
    with pytest.raises(UnsupportedError, match="output y ignores a batch of 2"):
        sweep(keeps_batch=False)


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 2)])
def test_sizes_that_cannot_be_are_a_bug(sizes):
    with pytest.raises(ValueError, match="batch sizes"):
        sweep(sizes=sizes)
