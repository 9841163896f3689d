"""Channels that are cut out of small nets leave what the dense net gives without them."""

import numpy as np
import onnx
import pytest
from fixture_models import model, numbers
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.groups import ChannelGroups, keep_channels, trace
from edgeopt.graph.model import Model


def without_reading(dense: Model, groups: ChannelGroups, keep: dict[str, np.ndarray]) -> Model:
    """Return the dense model whose consumers read zeros of the channels that are not kept."""
    proto = onnx.ModelProto()
    proto.CopyFrom(dense.proto)
    stored = {one.name: one for one in proto.graph.initializer}
    for name, kept in keep.items():
        for use in groups[name].consumers:
            array = numpy_helper.to_array(stored[use.tensor]).copy()
            gone = (use.channels >= 0) & ~np.isin(use.channels, kept)
            array[(slice(None),) * use.axis + (gone,)] = 0
            stored[use.tensor].CopyFrom(numpy_helper.from_array(array, use.tensor))
    return Model(proto, dense.name)


def run(one: Model) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    feed = {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in one.inputs}
    session = EXECUTOR.open(one.data, SessionOptions())
    return [*session.run(feed).values()]


def check(dense: Model, keep: dict[str, list[int]]) -> Model:
    groups = trace(dense)
    chosen = {name: np.array(kept) for name, kept in keep.items()}
    cut = keep_channels(dense, groups, chosen)
    for want, got in zip(run(without_reading(dense, groups, chosen)), run(cut), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    return cut


def test_a_residual_add_ties_what_it_adds():
    dense = model(
        """net (float[1,3,8,8] x) => (float[1,2,8,8] y) {
            a = Conv <pads = [1,1,1,1]> (x, w0, b0)
            r = Relu(a)
            c = Conv <pads = [1,1,1,1]> (r, w1)
            s = Add(c, r)
            y = Conv (s, w2)
        }""",
        w0=numbers(6, 3, 3, 3), b0=numbers(6), w1=numbers(6, 6, 3, 3, seed=1), w2=numbers(2, 6, 1, 1, seed=2),
    )  # fmt: skip
    groups = trace(dense)
    assert [(one.name, one.channels, one.pinned != "") for one in groups] == [("a", 6, False), ("y", 2, True)]
    cut = check(dense, {"a": [0, 2, 5]})
    shapes = {one.name: tuple(one.dims) for one in cut.proto.graph.initializer}
    assert shapes == {"w0": (3, 3, 3, 3), "b0": (3,), "w1": (3, 3, 3, 3), "w2": (2, 3, 1, 1)}


def test_a_pinned_group_is_refused():
    dense = model("net (float[1,3] x) => (float[1,4] y) { y = MatMul(x, w) }", w=numbers(3, 4))
    groups = trace(dense)
    assert groups["y"].pinned
    with pytest.raises(EdgeoptError, match="pinned"):
        keep_channels(dense, groups, {"y": np.array([0])})
