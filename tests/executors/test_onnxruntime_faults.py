"""A refusal of ONNX Runtime is one line that names the node, and ONNX Runtime itself prints nothing."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import OnnxRuntime
from edgeopt.executors.onnxruntime.faults import said


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


def node(op: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["x", *inputs], ["y"], **attributes)


REFUSED: list[tuple[onnx.NodeProto, dict[str, np.ndarray], str]] = [
    (node("MatMul", "w"), {"w": np.zeros((4, 4), np.float32)}, "MatMul dimension mismatch"),
    (node("Add", "w"), {"w": np.zeros(3, np.float32)}, "Attempting to broadcast an axis"),
    (node("Concat", "w", axis=0), {"w": np.zeros((4, 4), np.float32)}, "Non concat axis dimensions must match"),
    (node("Gather", "i", axis=1), {"i": np.array([99])}, "indices element out of data bounds, idx=99"),
    (node("Slice", "a", "b"), {"a": np.array([0, 0, 0]), "b": np.array([1, 1])}, "Starts and ends shape mismatch"),
    (node("Squeeze", "a"), {"a": np.array([1])}, "Dimension of input 1 must be 1 instead of 8"),
    (node("Unsqueeze", "a"), {"a": np.array([9])}, "axis 9 is not in valid range"),
    (node("GatherElements", "i"), {"i": np.array([[7]])}, "Out of range value in index tensor"),
    (node("Clip", "a"), {"a": np.zeros(3, np.float32)}, "min should be a scalar"),
    (node("Mod", "a"), {"a": np.ones((1, 8), np.float32)}, "fmod attribute must be true"),
    (node("Pad", "p"), {"p": np.array([-9, 0, 0, 0])}, "Tensor shape.Size() must be >= 0"),
    (node("MaxPool", kernel_shape=[3, 3]), {}, "Input dimension cannot be less than 3"),
    (node("Softmax", axis=7), {}, "axis 7 is not in valid range"),
    (node("Resize", "", "z"), {"z": np.array([0, 1], np.float32)}, "Scale value should be greater than 0"),
]


@pytest.mark.parametrize(("refused", "weights", "reason"), REFUSED, ids=lambda value: getattr(value, "op_type", ""))
def test_a_reason_is_whole_and_tells_nothing_of_ONNX_Runtimes_source(refused, weights, reason):
    kept = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        [refused],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        kept,
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    with pytest.raises(EdgeoptError) as caught:
        opened(source).run({"x": np.zeros((1, 8), np.float32)})
    assert reason in caught.value.problem
    for trace in ("onnxruntime_src", "::", "ONNXRuntimeError", " was false", "[with ", ".cc:", ".h:", "Compute "):
        assert trace not in caught.value.problem, trace


@pytest.mark.parametrize(
    ("said_by_engine", "reason"),
    [
        (
            "CUDA failure 35: CUDA driver version is insufficient ; GPU=-1 ; hostname=box ; "
            "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; line=282 ; "
            "expr=cudaSetDevice(info_.device_id);",
            "CUDA failure 35: CUDA driver version is insufficient",
        ),
        (
            r"D:\a\_work\1\s\onnxruntime\core\graph\graph.cc:77 onnxruntime::Graph::Resolve The graph has a cycle",
            "The graph has a cycle",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/a.cc:5 onnxruntime::(anonymous namespace)::Get(int)::<lambda(auto:1)> "
            "it is too long",
            "it is too long",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/a.cc:5 void onnxruntime::Get(int) const i < n was false.",
            "i < n was false.",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/b.h:9 T* onnxruntime::At(std::map<int, T>&) [with T = int] "
            "[ONNXRuntimeError] : 1 : FAIL : b.cc:7 Find no such key",
            "no such key",
        ),
        ("no place at all: 3 by 8", "no place at all: 3 by 8"),
    ],
)
def test_words_of_other_builds_lose_their_places_too(said_by_engine, reason):
    assert said(RuntimeError(said_by_engine)) == reason


def of_microsoft(op: str, **attributes: int) -> bytes:
    node = helper.make_node(op, ["x", "x", "w", "w", "", "w", "w"], ["y"], domain="com.microsoft", **attributes)
    proto = onnx.ModelProto.FromString(model(node))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto.SerializeToString()


def test_an_op_of_a_newer_engine_is_told_with_the_version_that_has_it() -> None:
    with pytest.raises(UnavailableError) as caught:
        opened(of_microsoft("QMoE", unheard=1))
    assert caught.value.problem.startswith("ONNX Runtime ")
    assert caught.value.problem.endswith(" is too old: the model has the op QMoE, which needs 1.31")
    assert caught.value.remedy == "install onnxruntime 1.31 or newer"


def test_an_op_that_no_engine_is_known_to_have_is_a_fault_of_the_model() -> None:
    with pytest.raises(InvalidFileError, match=r"ONNX Runtime refuses the model: .*Unheard"):
        opened(of_microsoft("Unheard"))
