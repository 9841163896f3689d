"""Two graphs of the two or three that optimum-cli writes: an encoder that makes the cross cache, and one decoder.

optimum's first decoder holds all weights of the next one again, only to make keys and values of what was heard.
Here the encoder makes them: cross.key = split(hidden @ W + b), where split cuts a row into heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.cross_decoder import HIDDEN
from edgeopt.graph.model import Model, load_model
from edgeopt.recipes.texts.encoder_decoder import DECODER, ENCODER, EncoderDecoderFiles

_WITH_PAST, _WITHOUT = "then_branch", "else_branch"
_PASSED = ("Identity", "Reshape", "Transpose", "Cast")
"""Operators that may stand between a product and the cache, and between the encoder's output and the product."""
_PREFIX = "edgeopt_cross_"
_REMEDY = "export it with optimum-onnx 0.1, or with edgeopt export hf:FOLDER"


@dataclass(frozen=True, slots=True)
class Pair:
    """Both graphs; one with the names of the cache among the encoder's outputs and the decoder's inputs."""

    encoder: Model
    decoder: Model


def read_pair(files: EncoderDecoderFiles) -> Pair:
    """Return the two graphs of a model.

    Raises:
        UnsupportedError: If keys and values of what was heard are no plain products of it.
        InvalidFileError: If a graph is damaged.
    """
    if files.is_pair:
        return Pair(load_model(files.encoder), load_model(files.following))
    first, following = load_model(files.first), load_model(files.following)
    if files.first == files.following:
        first, following = _branch(first, _WITHOUT), _branch(following, _WITH_PAST)
    crossing = list(_crossing(first))
    if not crossing:
        raise UnsupportedError(f"{files.first} makes no keys and values of what was heard", remedy=_REMEDY)
    made = _with_crossing(load_model(files.encoder), crossing)
    return Pair(Model(made, ENCODER), Model(_as_following(following), DECODER))


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Keys or values of what was heard: one product, in heads."""

    name: str
    weight: NDArray[np.float32]
    """(width of what was heard, heads * size of one)."""
    bias: NDArray[np.float32] | None
    heads: int
    size: int


def _branch(merged: Model, which: str) -> Model:
    """Return one of the two decoders of a graph that is both."""
    graph = merged.proto.graph
    node = next((value for value in graph.node if value.op_type == "If"), None)
    branch = next((value.g for value in (node.attribute if node else ()) if value.name == which), None)
    if node is None or branch is None or len(graph.node) != 1:
        raise UnsupportedError("a merged decoder is one If of two branches, and this is none", remedy=_REMEDY)
    made = onnx.ModelProto()
    made.CopyFrom(merged.proto)
    del made.graph.node[:]
    made.graph.node.extend(branch.node)
    made.graph.initializer.extend(branch.initializer)
    for inner, outer in zip(branch.output, node.output, strict=True):
        if inner.name != outer:
            made.graph.node.append(helper.make_node("Identity", [inner.name], [outer]))
    return Model(made, merged.name)


def _as_following(model: Model) -> onnx.ModelProto:
    """Return a decoder that gives no keys and values of what was heard, without what only they hang on."""
    made = onnx.ModelProto()
    made.CopyFrom(model.proto)
    graph = made.graph
    makers = {name: node for node in graph.node for name in node.output}
    kept = [value_info for value_info in graph.output if ".encoder." not in value_info.name]
    used, waiting = set[str](), [entry.name for entry in kept]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += _reads(makers[name]) if name in makers else []
    nodes = [node for node in graph.node if used & set(node.output)]
    stored = [constant for constant in graph.initializer if constant.name in used]
    given = [value_info for value_info in graph.input if value_info.name in used]
    for field, values in (("node", nodes), ("initializer", stored), ("input", given), ("output", kept)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del getattr(graph, field)[:]
        getattr(graph, field).extend(copies)
    del graph.value_info[:]
    return made


def _reads(node: onnx.NodeProto) -> list[str]:
    """Return what a node reads, its subgraphs too."""
    inner = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return [*node.input, *(name for graph in inner for each in graph.node for name in _reads(each))]


def _data_source(name: str, makers: dict[str, onnx.NodeProto]) -> str:
    """Return the tensor whose values these are, in another shape."""
    while name in makers and makers[name].op_type in _PASSED:
        name = makers[name].input[0]
    return name


def _crossing(first: Model) -> Iterator[_Crossing]:
    """Yield the products that make keys and values of what was heard.

    Raises:
        UnsupportedError: If one is made otherwise.
    """
    graph = first.proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    stored = {output.name: output for output in graph.initializer}

    def constant(name: str) -> NDArray[np.float32] | None:
        node = makers.get(name)
        if node is not None and node.op_type in _PASSED:
            array = constant(node.input[0])
            return array.T if array is not None and node.op_type == "Transpose" else array
        if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
            return np.asarray(numpy_helper.to_array(node.attribute[0].t), np.float32)
        return np.asarray(numpy_helper.to_array(stored[name]), np.float32) if name in stored else None

    for output in first.outputs:
        if ".encoder." not in output.name:
            continue
        node, bias = makers.get(_data_source(output.name, makers)), None
        if node is not None and node.op_type == "Add":
            arrays = [constant(each) for each in node.input]
            place = 0 if arrays[0] is None else 1
            bias, node = arrays[1 - place], makers.get(_data_source(node.input[place], makers))
        is_product = node is not None and node.op_type == "MatMul"
        weight = constant(node.input[1]) if is_product and node is not None else None
        heads, size = output.shape[1], output.shape[3]
        if (
            node is None
            or weight is None
            or _data_source(node.input[0], makers) != HIDDEN
            or not isinstance(heads, int)
            or not isinstance(size, int)
            or weight.shape[1:] != (heads * size,)
        ):
            raise UnsupportedError(f"{output.name} is no plain product of {HIDDEN}", remedy=_REMEDY)
        yield _Crossing(output.name, weight, bias, heads, size)


def _with_crossing(encoder: Model, crossing: list[_Crossing]) -> onnx.ModelProto:
    """Return the encoder with keys and values of what it gives among its outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(encoder.proto)
    graph, heard = made.graph, encoder.outputs[0].name
    for i, other in enumerate(crossing):
        name = f"{_PREFIX}{i}"
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(other.weight), f"{name}_weight"))
        shape = np.array([0, -1, other.heads, other.size], np.int64)
        graph.initializer.append(numpy_helper.from_array(shape, f"{name}_shape"))
        graph.node.append(helper.make_node("MatMul", [heard, f"{name}_weight"], [f"{name}_product"], name))
        last = f"{name}_product"
        if other.bias is not None:
            graph.initializer.append(numpy_helper.from_array(other.bias.reshape(-1), f"{name}_bias"))
            graph.node.append(helper.make_node("Add", [last, f"{name}_bias"], [f"{name}_sum"], f"{name}_add"))
            last = f"{name}_sum"
        graph.node.append(helper.make_node("Reshape", [last, f"{name}_shape"], [f"{name}_heads"], f"{name}_split"))
        graph.node.append(
            helper.make_node("Transpose", [f"{name}_heads"], [other.name], f"{name}_turn", perm=[0, 2, 1, 3])
        )
        sizes: list[str | int | None] = ["batch_size", other.heads, "heard_rows", other.size]
        graph.output.append(helper.make_tensor_value_info(other.name, onnx.TensorProto.FLOAT, sizes))
    return made
