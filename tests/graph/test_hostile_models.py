"""Models that are wrong in one place each, and models mutated at random: one clear line, never a traceback."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.inspection.inspect import inspect


def small() -> ModelProto:
    """A convolution, an If, a local function and a quantized product: a part of each kind."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        small (float[1, 3, 8, n] x, bool c) => (float[1, 4, 6, m] z, float[1, 4, 6, m] q)
        <float s = {0.5}, uint8 o = {3}> {
            y = Conv<kernel_shape=[3, 3]>(x, w)
            h = own.twice(y)
            z = If (c) <then_branch = a () => (float[a0, a1, a2, a3] t) { t = Relu(h) },
                        else_branch = b () => (float[b0, b1, b2, b3] e) { e = Identity(h) }>
            i = QuantizeLinear(z, s, o)
            q = DequantizeLinear(i, s, o)
        }
        <domain: "own", opset_import: ["" : 17]>
        twice (v) => (r) { r = Add(v, v) }"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"))
    return proto


def write(proto: ModelProto | bytes, folder: Path) -> Path:
    path = folder / "hostile.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


def input_type(proto: ModelProto, number: int) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = number


def input_sizes(proto: ModelProto, *sizes: int) -> None:
    for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, sizes, strict=True):
        dim.dim_value = size


def add_input(proto: ModelProto, kind: onnx.TypeProto) -> None:
    proto.graph.input.append(helper.make_value_info("other", kind))


def add_nameless_custom_node(proto: ModelProto) -> None:
    proto.graph.node.add(op_type="Odd", domain="my.company")


def hide_custom_node(proto: ModelProto) -> None:
    proto.graph.node[2].attribute[0].g.node.add(op_type="Odd", domain="my.company", name="deep")


def feed_itself(proto: ModelProto) -> None:
    proto.graph.node[0].input[0] = "h"


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
WRONG: dict[str, tuple[Callable[[ModelProto], object], str]] = {
    "unknown type": (lambda p: input_type(p, 99), "input 'x' has the element type 99"),
    "no type": (lambda p: p.graph.input[0].ClearField("type"), "input 'x' has no type"),
    "unknown type of an output": (lambda p: setattr(p.graph.output[0].type.tensor_type, "elem_type", 99), "output 'z'"),
    "unknown type of weights": (lambda p: setattr(p.graph.initializer[-1], "data_type", 99), "constant 'w' has the"),
    "sequence": (
        lambda p: add_input(p, helper.make_sequence_type_proto(FLOATS)),
        "of kind sequence",
    ),
    "optional": (
        lambda p: add_input(p, helper.make_optional_type_proto(FLOATS)),
        "of kind optional",
    ),
    "a million squared": (lambda p: input_sizes(p, 1, 3, 10**6, 10**6), "'x' is too large: 1x3x1000000x1000000"),
    "beyond 64 bits": (lambda p: input_sizes(p, 1, 3, 2**62, 2**62), "'x' is too large"),
    "no outputs": (lambda p: p.graph.ClearField("output"), "has no outputs"),
    "custom node without outputs": (add_nameless_custom_node, "custom op Odd (my.company, node 'without a name')"),
    "custom node in a branch": (hide_custom_node, "custom op Odd (my.company, node 'deep')"),
    "circle": (feed_itself, "nodes feed each other in a circle"),
    "unknown op": (lambda p: setattr(p.graph.node[0], "op_type", "Convv"), "No Op registered for Convv"),
    "short weights": (
        lambda p: setattr(p.graph.initializer[-1], "raw_data", b"abc"),
        "raw_data size (3 bytes)",
    ),
    "negative weights": (lambda p: p.graph.initializer[-1].dims.__setitem__(0, -4), "Negative dimension value"),
    "function that calls itself": (lambda p: setattr(p.functions[0].node[0], "domain", "own"), "not a valid model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_in_one_line(case, tmp_path):
    spoil, told = WRONG[case]
    proto = small()
    spoil(proto)
    with pytest.raises(EdgeoptError) as caught:
        load_model(write(proto, tmp_path))
    assert told in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("text", [b"Conv", b"own", b"twice", b"then_branch", b"\x12\x01n"], ids=repr)
def test_a_name_that_is_no_text_is_one_line(text, tmp_path):
    data = small().SerializeToString().replace(text, text[:-1] + b"\xff")
    with pytest.raises(EdgeoptError, match="a name in it is no UTF-8 text"):
        load_model(write(data, tmp_path))


def test_a_negative_size_is_a_free_one(tmp_path):
    proto = small()
    input_sizes(proto, -1, 3, 8, -5)
    assert load_model(write(proto, tmp_path)).inputs[0].shape == (None, 3, 8, None)


def test_nodes_in_any_order_come_in_sorted(tmp_path):
    proto = small()
    nodes = [*proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    assert [node.op_type for node in load_model(write(proto, tmp_path)).proto.graph.node] == [
        node.op_type for node in nodes
    ]


def test_an_op_that_was_never_standard_comes_in_without_a_word_on_the_standard_output(tmp_path, capfd):
    nodes = [helper.make_node("ImageScaler", ["x"], ["y"], scale=0.5, bias=[0.1, 0.2, 0.3])]
    told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3, 4, 4)) for name in "xy"]
    graph = helper.make_graph(nodes, "old", told[:1], told[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=7), tmp_path / "old.onnx")
    loaded = load_model(tmp_path / "old.onnx")
    assert loaded.op_counts == {"ImageScaler": 1}
    assert loaded.proto.graph.node[0].domain == ""
    assert capfd.readouterr().out == ""


def test_an_output_without_a_shape_comes_in(tmp_path):
    proto = small()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert [one.name for one in load_model(write(proto, tmp_path)).outputs] == ["z", "q"]


def with_external_weights(folder: Path, **entries: str) -> Path:
    proto = small()
    weights = proto.graph.initializer[-1]
    (folder / "weights.bin").write_bytes(weights.raw_data[:100])
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    told = {"location": "weights.bin", "offset": "0", "length": str(4 * math.prod(weights.dims)), **entries}
    for key, value in told.items():
        weights.external_data.add(key=key, value=value)
    return write(proto, folder)


@pytest.mark.parametrize("entries", [{}, {"offset": "abc"}, {"offset": "-5"}, {"location": "."}, {"location": "../x"}])
def test_external_data_that_is_short_or_elsewhere_is_no_truncated_model(entries, tmp_path):
    with pytest.raises(EdgeoptError, match=r"hostile.onnx: its external data (cannot be loaded|')"):
        load_model(with_external_weights(tmp_path, **entries))


def test_a_name_too_long_for_a_file_is_one_line():
    with pytest.raises(EdgeoptError, match="cannot be read"):
        inspect("m" * 5000)


def test_deep_nesting_is_one_line(tmp_path):
    inner = b""
    for _ in range(500):  # a graph in an attribute of a node of a graph
        node = b"\x2a" + _length(b"\x32" + _length(inner))
        inner = b"\x0a" + _length(node)
    with pytest.raises(EdgeoptError, match="not an ONNX file"):
        load_model(write(b"\x08\x08\x3a" + _length(inner), tmp_path))


def _length(data: bytes) -> bytes:
    """Return data behind its length, as protobuf writes it."""
    size, head = len(data), b""
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + data


def accept_or_refuse(data: bytes, folder: Path) -> None:
    with contextlib.suppress(EdgeoptError):
        inspect(str(write(data, folder)))


GOOD = small().SerializeToString()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@example([(0, 255)])
def test_bytes_changed_anywhere_are_taken_or_refused_in_one_line(tmp_path, changes):
    data = bytearray(GOOD)
    for place, byte in changes:
        data[place] = byte
    accept_or_refuse(bytes(data), tmp_path)


NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 3, 99, 2**31, 2**63 - 1])
TEXTS = st.sampled_from(["", "x", "y", "w", "Conv", "If", "Loop", "Constant", "\x1b[31m", "a" * 3000, "com.microsoft"])


def spots(proto: object) -> list[tuple[object, object, str]]:
    """Return every single field of a message and the messages in it: owner, its description, name."""
    found: list[tuple[object, object, str]] = []
    for field, value in proto.ListFields():
        several = value if field.is_repeated else [value]
        if field.message_type is not None:
            found += [spot for one in several for spot in spots(one)]
        found.append((proto, field, field.name))
    return found


def value_for(field: object, data: st.DataObject) -> object:
    """Draw what a field of this type may hold; None: it is left out."""
    if field.message_type is not None or data.draw(st.booleans()):
        return None
    if field.cpp_type == field.CPPTYPE_STRING:
        text = data.draw(TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type == field.CPPTYPE_INT64:
        return data.draw(NUMBERS)
    return data.draw(st.integers(0, 14)) if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_ENUM) else None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fields_changed_anywhere_are_taken_or_refused_in_one_line(tmp_path, data):
    proto = small()
    owner, field, name = data.draw(st.sampled_from(spots(proto)))
    value = value_for(field, data)
    if value is None:
        owner.ClearField(name)
    elif field.is_repeated:
        getattr(owner, name)[0] = value
    else:
        setattr(owner, name, value)
    accept_or_refuse(proto.SerializeToString(), tmp_path)


def of_functions(bodies: dict[str, list[str]]) -> ModelProto:
    """Return a model that calls the last of some local functions, each a chain of calls and of standard ops."""
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for name, ops in bodies.items():
        tensors = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
        nodes = [
            helper.make_node(op, [tensors[i]], [tensors[i + 1]], domain="own" if op in bodies else "")
            for i, op in enumerate(ops)
        ]
        functions.append(helper.make_function("own", name, ["x"], ["y"], nodes, versions))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node([*bodies][-1], ["x"], ["y"], domain="own")], "g", values[:1], values[1:]
    )
    return helper.make_model(graph, opset_imports=versions, functions=functions, ir_version=9)


@pytest.mark.parametrize(
    ("bodies", "told"),
    [
        ({"f0": ["Relu"], **{f"f{i}": [f"f{i - 1}"] * 2 for i in range(1, 28)}}, "134,217,728 nodes"),
        ({"f0": ["Relu"], **{f"f{i}": [f"f{i - 1}"] * 9 for i in range(1, 90)}}, "more than 10^15 nodes"),
        ({"f0": ["Relu"], **{f"f{i}": [f"f{i - 1}"] for i in range(1, 500)}}, "nest deeper than 100"),
        ({"f": ["g"], "g": ["Relu", "f"]}, "'f' calls itself"),
    ],
)
def test_functions_that_cannot_be_written_out_are_refused_before_anybody_tries(bodies, told, tmp_path):
    with pytest.raises(InvalidFileError) as refused:
        load_model(write(of_functions(bodies), tmp_path))
    assert told in refused.value.problem


def test_functions_of_a_bounded_size_come_in(tmp_path):
    loaded = load_model(write(of_functions({"f": ["Relu"], "g": ["f", "Abs", "f"]}), tmp_path))
    assert len(loaded.proto.functions) == 2


def test_a_name_of_any_length_is_shown_in_a_line():
    shown = str(TensorSpec("x" * 100_000, "float32", (1, "d" * 100_000)))
    assert len(shown) < 500
    assert shown.startswith("xxx")
