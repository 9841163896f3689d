"""Names, order and written defaults do not change what a graph computes; an operator, a weight or an input does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from edgeopt.optimization.candidates.same_graphs import computation_hash

HEAD = '<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4] x) => (float[1, 4] y)'


def hash_of(body: str, head: str = HEAD) -> str | None:
    return computation_hash(parser.parse_model(f"{head} {body}"))


FIRST = "<float[4] w = {1, 2, 3, 4}> { a = Mul(x, w) b = Sigmoid(x) s = Add(a, b) y = Softmax <axis = -1> (s) }"


@pytest.mark.parametrize(
    "same",
    [
        FIRST.replace("a =", "left =").replace("Add(a,", "Add(left,").replace("w", "weights"),
        "<float[4] w = {1, 2, 3, 4}> { b = Sigmoid(x) a = Mul(x, w) s = Add(a, b) y = Softmax <axis = -1> (s) }",
        FIRST.replace(" <axis = -1>", ""),
    ],
)
def test_names_order_and_written_defaults_are_no_difference(same):
    assert hash_of(same) == hash_of(FIRST) is not None


@pytest.mark.parametrize(
    "other",
    [
        FIRST.replace("4}", "5}"),
        FIRST.replace("Sigmoid", "Tanh"),
        FIRST.replace("Add(a, b)", "Add(b, a)"),
        FIRST.replace("-1", "0"),
        FIRST.replace("Sigmoid(x)", "Sigmoid(a)"),
        FIRST.replace("s = Add", "unused = Tanh(a) s = Add"),
    ],
)
def test_an_operator_a_weight_an_attribute_or_an_input_is_a_difference(other):
    assert hash_of(other) != hash_of(FIRST)


def test_a_weight_in_another_encoding_is_the_same_and_of_another_type_is_not():
    model = parser.parse_model(f"{HEAD} {FIRST}")
    raw = onnx.ModelProto.FromString(model.SerializeToString())
    raw.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "w"))
    assert computation_hash(raw) == computation_hash(model)
    raw.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2, 3, 4], np.float64), "w"))
    assert computation_hash(raw) != computation_hash(model)


def test_of_a_graph_inside_another_nothing_is_said():
    one, other = "g1 () => (float[1, 4] t) { t = Identity(x) }", "g2 () => (float[1, 4] e) { e = Neg(x) }"
    inside = f"<then_branch = {one}, else_branch = {other}>"
    assert hash_of(f"{{ c = Constant <value = bool {{1}}> () y = If (c) {inside} }}") is None
