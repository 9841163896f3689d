"""What ONNX Runtime refuses is told in one line that names the node, and ONNX Runtime itself prints nothing."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import OnnxRuntime


def model(*nodes: onnx.NodeProto, opset: int = 17, kind: int = TensorProto.FLOAT, weights: object = None) -> bytes:
    inputs = [
        helper.make_tensor_value_info("x", kind, [1, 8]),
        helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
    ]
    kept = [numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")] if weights is None else weights
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "graph", inputs, [output], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()


def opened(source: bytes) -> Session:
    return OnnxRuntime().open(source, SessionOptions(threads=1))


@pytest.mark.parametrize(("name", "told"), [("resh", "Reshape node 'resh': "), ("", "Reshape node without a name: ")])
def test_a_failed_run_names_its_node_and_no_source_of_another_project(name, told, capfd) -> None:
    session = opened(model(helper.make_node("Reshape", ["x", "s"], ["y"], name=name)))
    with closing(session), pytest.raises(EdgeoptError) as caught:
        session.run({"x": np.zeros((1, 8), np.float32), "s": np.array([3, 5])})
    assert f"on these inputs: {told}The input tensor cannot be reshaped" in caught.value.problem
    assert "/onnxruntime" not in caught.value.problem
    assert "::" not in caught.value.problem
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "the MatMul node that makes 'y': "), (2, "one of 2 MatMul nodes without a name (the first makes 'a'): ")],
)
def test_a_node_without_a_name_is_told_by_what_it_makes(count, told) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y" if count == 1 else "a"])]
    if count == 2:
        nodes.append(helper.make_node("MatMul", ["a", "w"], ["y"]))
    with pytest.raises(InvalidFileError) as caught:
        opened(model(*nodes))
    assert told in caught.value.problem


def test_an_opset_of_the_future_is_told_with_the_newest_that_runs() -> None:
    with pytest.raises(InvalidFileError, match=r"newer than \d+, the newest") as caught:
        opened(model(helper.make_node("Relu", ["x"], ["y"]), opset=99))
    assert "export it with opset" in caught.value.remedy
    assert "::" not in str(caught.value)


def test_an_op_that_has_no_double_leads_to_float32() -> None:
    weights = [numpy_helper.from_array(np.zeros((4, 3, 3, 3)), "w")]
    wide = helper.make_node("Reshape", ["x", "shape"], ["wide"], name="resh")
    conv = helper.make_node("Conv", ["wide", "w"], ["y"], name="conv_a", pads=[1, 1, 1, 1])
    weights.append(numpy_helper.from_array(np.array([1, 3, 2, 4]), "shape"))
    with pytest.raises(InvalidFileError, match="conv_a") as caught:
        opened(model(wide, conv, kind=TensorProto.DOUBLE, weights=weights))
    assert "float32" in caught.value.remedy
