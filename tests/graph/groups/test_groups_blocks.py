"""Residual blocks: what is found, what is left without one, and what is none."""

import numpy as np
import pytest
from channel_nets import alike, attention, ints, net, perceptron, residual, weights
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.graph.groups import Block, removable_blocks, remove_block, trace
from edgeopt.graph.model import Model

WEIGHTS = {f"w{i}": weights(i, 6, 6 if i else 3, 1, 1) for i in range(4)}


def silent(dense: Model, name: str) -> Model:
    """Return the model in which a weight is zero."""
    for one in dense.proto.graph.initializer:
        if one.name == name:
            one.CopyFrom(numpy_helper.from_array(np.zeros([*one.dims], np.float32), name))
    return dense


def test_a_block_that_adds_nothing_is_removed_without_a_trace():
    dense = silent(residual(), "w2")
    (block,) = removable_blocks(dense)
    assert block == Block("s", "r", ("b", "c", "d", "s"))
    cut = remove_block(dense, block)
    assert [node.op_type for node in cut.proto.graph.node] == ["Conv", "Relu", "Relu", "Conv"]
    assert {one.name for one in cut.proto.graph.initializer} == {"b0", "w0", "w3"}
    alike(dense, cut)
    assert trace(cut)["a"].channels == 6


def test_a_sum_of_two_is_as_good_as_an_add():
    dense = net("a = Conv(x, w0) b = Conv(a, w1) s = Sum(b, a) y = Conv(s, w2)", "float[1,6,8,8] y", **WEIGHTS)
    assert removable_blocks(dense) == (Block("s", "a", ("b", "s")),)


def test_blocks_of_a_transformer_end_at_the_output_and_stay():
    assert removable_blocks(attention()) == ()
    assert removable_blocks(perceptron()) == ()


def test_each_of_two_blocks_in_a_row():
    first_half = "a = Conv(x, w0) b = Conv(a, w1) s = Add(a, b)"
    body = f"{first_half} c = Conv(s, w2) d = Relu(c) t = Add(d, s) y = Conv(t, w3)"
    dense = net(body, "float[1,6,8,8] y", **WEIGHTS)
    first, second = removable_blocks(dense)
    assert (first, second) == (Block("s", "a", ("b", "s")), Block("t", "s", ("c", "d", "t")))
    left = remove_block(dense, second)
    assert removable_blocks(left) == (first,)
    assert removable_blocks(remove_block(dense, first)) == (Block("t", "a", ("c", "d", "t")),)


@pytest.mark.parametrize(
    "body",
    [
        "a = Conv(x, w0) b = Conv(a, w1) s = Add(a, b) t = Conv(b, w2) y = Add(s, t)",
        "a = Conv(x, w0) b = Conv(a, w1) c = Conv(x, w0) d = Mul(b, c) s = Add(a, d) y = Relu(s)",
        "a = Conv(x, w0) g = GlobalAveragePool(a) b = Tile(g, r) s = Add(g, b) y = Conv(s, w1)",
        "a = Conv(x, w0) s = Add(a, a) y = Conv(s, w1)",
        "a = Conv(x, w0) b = Conv(a, w1) y = Add(a, b)",
    ],
    ids=["its inside is read", "something else enters", "shapes differ", "nothing is computed", "an output"],
)
def test_what_is_no_block(body):
    assert removable_blocks(net(body, "float[1,6,8,8] y", r=ints(1, 1, 8, 8), **WEIGHTS)) == ()


def test_a_block_of_another_model_is_refused():
    with pytest.raises(EdgeoptError, match="has no block"):
        remove_block(residual(), Block("nothing", "r", ()))
