"""Check that a file holds a model that can be worked on; otherwise name the part at fault in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.files.outside_weights import piece_of, told_bytes, without_outside
from edgeopt.graph.subgraphs import all_nodes, subgraphs

_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc"})
_ELEMENT_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
_GIVEN_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.STRING}
    | {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)
_MOST_NUMBERS = 2**31
"""Most numbers of one input: more takes 8 GB in float32, and no frame is that large."""
_MOST_TOLD = 300
"""Characters of a library's words; some print a whole node."""
_MOST_NAMED = 4
_FOR_TENSORRT = "it is a plugin of TensorRT alone: export for ONNX Runtime, or without suppression inside"
_AGAIN = "export the model again"


def require_valid(proto: ModelProto, where: str) -> None:
    """Raise unless the model can be worked on: tensors in and out, known ops, and what onnx's checker asks for.

    Args:
        proto: Its nodes are in order; see `sort_nodes`.
        where: What the message calls it.

    Raises:
        UnsupportedError: On a custom op, or on an input that no array can be.
        InvalidFileError: On anything else that is wrong.
    """
    if not _is_text(proto):
        raise InvalidFileError(f"{where} is not a valid model: a name in it is no UTF-8 text", remedy=_AGAIN)
    require_bounded_functions(proto, where)
    _require_tensors(proto.graph, where)
    _require_known_ops(proto, where)
    try:
        checker.check_model(_as_checked(without_outside(proto)))
    except (checker.ValidationError, ValueError) as error:
        raise InvalidFileError(f"{where} is not a valid model: {_one_line(error)}", remedy=_AGAIN) from error


def _one_line(error: Exception) -> str:
    """Return what onnx says and of which node, without its line breaks."""
    text = "; ".join(" ".join(part.split()) for part in str(error).split("==> Context:"))
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"


def _is_text(message: Message) -> bool:
    """Whether all that should be text is: protobuf hands out what is no UTF-8 as bytes, without a word."""
    for field, value in message.ListFields():
        several = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not all(_is_text(entry) for entry in several):
                return False
        elif field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(entry, str) for entry in several):
            return False
    return True


def _require_tensors(graph: GraphProto, where: str) -> None:
    """Raise unless the model takes and gives tensors of known types, in sizes that fit a memory."""
    stored = {constant.name for constant in graph.initializer}
    for value in (value_info for value_info in graph.input if value_info.name not in stored):
        _require_tensor(value, f"{where}: input {value.name!r}")
        tensor = value.type.tensor_type
        if tensor.elem_type not in _GIVEN_TYPES:
            name = TensorProto.DataType.Name(tensor.elem_type).lower()
            raise UnsupportedError(
                f"{where}: input {value.name!r} is of type {name}, which no engine takes out of a NumPy array",
                remedy="export it with an input in float32 or float16; inside the model any type may stay",
            )
        if math.prod(max(size.dim_value, 1) for size in tensor.shape.dim) > _MOST_NUMBERS:
            sizes = "x".join(str(size.dim_value or "?") for size in tensor.shape.dim)
            raise UnsupportedError(
                f"{where}: input {value.name!r} is too large: {sizes}", remedy="export a smaller one"
            )
    if not graph.output:
        raise InvalidFileError(f"{where} has no outputs", remedy=_AGAIN)
    for value in graph.output:
        _require_tensor(value, f"{where}: output {value.name!r}")
    for entry in graph.initializer:
        _require_type(entry.data_type, f"{where}: constant {entry.name!r}")


def _require_tensor(value: ValueInfoProto, where: str) -> None:
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise InvalidFileError(f"{where} has no type", remedy=_AGAIN)
    if kind != "tensor_type":
        raise UnsupportedError(
            f"{where} is no tensor but of kind {kind.removesuffix('_type')}",
            remedy="export the model with tensors only",
        )
    _require_type(value.type.tensor_type.elem_type, where)


def _require_type(element_type: int, where: str) -> None:
    if element_type not in _ELEMENT_TYPES:
        raise InvalidFileError(f"{where} has the element type {element_type}, which ONNX does not know", remedy=_AGAIN)


def _require_known_ops(proto: ModelProto, where: str) -> None:
    functions = {(function.domain, function.name) for function in proto.functions}
    custom = [
        f"{node.op_type} ({node.domain}, node {_name(node)!r})"
        for node in all_nodes(proto.graph)
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions
    ]
    if custom:
        raise UnsupportedError(
            f"{where}: custom op {', '.join(custom[:3])}",
            remedy=_FOR_TENSORRT
            if any(name.partition(" ")[0].endswith("_TRT") for name in custom)
            else "export the model with standard ONNX ops, or replace the op before edgeopt",
        )


def _name(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "without a name")


_OF_ENGINES = frozenset({"SimplifiedLayerNormalization"})
"""Ops that ONNX Runtime registers among the standard ones, where its own exporters write them."""
_NEVER_STANDARD = _OF_ENGINES | frozenset(
    {"ATen", "Affine", "ConstantFill", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler"}
    | {"ParametricSoftplus", "Scale", "ScaledTanh"}
)
"""Further ops that are of no standard: onnx's checker lets them pass, and prints a line of its own to the standard
output."""


def _as_checked(proto: ModelProto) -> ModelProto:
    """Return the model, or a copy without what engines run and the checker refuses or prints lines about.

    Inputs and outputs without a shape get one, and ops that were never standard a domain of their own.
    """
    values = (*proto.graph.input, *proto.graph.output)
    has_shapes = all(value.type.tensor_type.HasField("shape") for value in values)
    if has_shapes and not any(other.op_type in _NEVER_STANDARD for other in all_nodes(proto.graph)):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.shape.SetInParent()
    for node in all_nodes(copy.graph):
        if node.op_type in _NEVER_STANDARD and node.domain in ("", "ai.onnx"):
            node.domain = "experimental"
    copy.opset_import.add(domain="experimental", version=1)
    return copy


def sort_nodes(graph: GraphProto, where: str) -> None:
    """Put nodes behind those that feed them, in place: engines sort, so exporters do not have to.

    Raises:
        InvalidFileError: If nodes feed each other in a circle.
    """
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    waits = [{makers[name] for name in _read_names([node]) if name in makers} for node in graph.node]
    if all(max(before, default=-1) < i for i, before in enumerate(waits)):
        return
    try:
        order = list(TopologicalSorter(dict(enumerate(waits))).static_order())
    except CycleError as error:
        names = ", ".join(dict.fromkeys(repr(_name(graph.node[i])) for i in error.args[1][:_MOST_NAMED]))
        raise InvalidFileError(f"{where}: nodes feed each other in a circle: {names}", remedy=_AGAIN) from error
    nodes = [NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)


def _read_names(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Yield what nodes and their subgraphs read; what a subgraph makes itself may have a name of the outer graph."""
    for node in nodes:
        yield from node.input
        for graph in subgraphs([node]):
            made = {name for inner in graph.node for name in inner.output}
            made |= {value.name for value in (*graph.input, *graph.initializer)}
            read = (*_read_names(graph.node), *(value_info.name for value_info in graph.output))
            yield from (name for name in read if name not in made)


# How large a model's local functions become once they are written out: a few hundred bytes can be a billion nodes.

_MOST_NODES = 2_000_000
"""Most nodes of a model with its functions written out; exporters that make one of each layer stay below 50,000."""
_MOST_DEPTH = 100
"""Functions in functions: onnx and the engines call themselves for each."""
_REMEDY = "export the model again, without functions"
_Key = tuple[str, str, str]


def require_bounded_functions(proto: ModelProto, where: str) -> None:
    """Raise unless the local functions of a model can be written out.

    Args:
        proto: The model.
        where: What the message calls it.

    Raises:
        InvalidFileError: If one calls itself, or they nest too deeply or become too many nodes.
    """
    if not proto.functions:
        return
    bodies = {(function.domain, function.name, function.overload): function for function in proto.functions}
    called = {key: [_key(node) for node in _with_subgraphs(body.node)] for key, body in bodies.items()}
    sizes, depths, unsized = dict[_Key, int](), dict[_Key, int](), set(bodies)
    while unsized:
        ready = [key for key in unsized if not any(entry in unsized for entry in called[key])]
        if not ready:
            name = min(unsized)[1]
            raise InvalidFileError(f"{where}: its function {name!r} calls itself, over others or not", remedy=_REMEDY)
        for key in ready:
            sizes[key] = sum(sizes.get(entry, 1) for entry in called[key])
            depths[key] = 1 + max((depths.get(entry, 0) for entry in called[key]), default=0)
        if max(depths.values()) > _MOST_DEPTH:
            raise InvalidFileError(f"{where}: its functions nest deeper than {_MOST_DEPTH}", remedy=_REMEDY)
        unsized.difference_update(ready)
    count = sum(sizes.get(_key(node), 1) for node in all_nodes(proto.graph))
    if count > _MOST_NODES:
        text = f"{count:,}" if count < 10**15 else "more than 10^15"
        raise InvalidFileError(f"{where}: its functions become {text} nodes once written out", remedy=_REMEDY)


def _key(node: NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def _with_subgraphs(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from all_nodes(graph)


# Weights that are no numbers: what a training that diverged leaves in a file.

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
_LAYERS = frozenset(
    {"BatchNormalization", "Conv", "ConvTranspose", "DequantizeLinear", "Einsum", "FusedConv", "FusedMatMul", "GRU"}
    | {"Gemm", "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "MatMulNBits"}
    | {"MoE", "PRelu", "QLinearConv", "QLinearMatMul", "QMoE", "RNN", "SimplifiedLayerNormalization"}
    | {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)
"""Ops whose constants are weights, however many numbers they hold."""
_HAND_ON = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Transpose"})
"""Ops whose constants are weights where they hold several numbers: a bias of a MatMul, or a weight in another type.
One NaN alone may be what Where chooses."""


def require_numbers(proto: ModelProto, where: str, *, of_file: bool = False) -> None:
    """Raise if a weight is NaN; fillings, limits and masks may be. Weights in files of their own are not read.

    Args:
        proto: A whole model.
        where: What the message calls it.
        of_file: Whether weights that lie outside lie in the model's own file, and are read there.

    Raises:
        InvalidFileError: If one is, or its data do not fit its shape; the message names it.
    """
    for tensor in _weights(proto.graph, {}):
        is_outside = tensor.data_location == TensorProto.EXTERNAL
        if is_outside and not of_file:
            continue
        try:
            numbers = _mapped(tensor) if is_outside else numpy_helper.to_array(tensor)
        except ValueError as error:
            raise InvalidFileError(
                f"{where}: weight {tensor.name!r} holds other data than its shape {list(tensor.dims)} says",
                remedy="export the model again, or copy it again: it is damaged",
            ) from error
        numbers = numbers if numbers.dtype.kind == "f" else numbers.astype(np.float32)  # bfloat16 is no type of NumPy
        if numbers.size and np.isnan(numbers.min()):  # NaN is the least of all, and takes no memory to find
            count = int(np.isnan(numbers).sum())
            raise InvalidFileError(
                f"{where}: weight {tensor.name!r} is NaN in {count} of {numbers.size} numbers",
                remedy="export the model again, from a checkpoint of before the training diverged",
            )


def _mapped(tensor: TensorProto) -> NDArray[Any]:
    """Return the numbers of a constant where they lie in a file.

    Raises:
        ValueError: If they are more or fewer than its shape says.
    """
    piece = piece_of(tensor)
    if piece.length != told_bytes(tensor):
        raise ValueError("other data than its shape says")
    numbers = np.memmap(piece.file, np.uint8, "r", piece.offset, (piece.length,))
    return numbers.view(helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tensor.dims)


def _weights(graph: GraphProto, around: dict[str, TensorProto]) -> Iterator[TensorProto]:
    """Yield each float constant that is a weight, in the graph and the graphs inside its nodes.

    Args:
        graph: It may read constants of the graphs around it.
        around: Those, by name.
    """
    known = around | {constant.name: constant for constant in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            known.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    seen = set[str]()
    for node in graph.node:
        for name in node.input:
            tensor = known.get(name)
            if tensor is None or name in seen:
                continue
            is_weight = node.op_type in _LAYERS or (node.op_type in _HAND_ON and np.prod(tensor.dims) > 1)
            if is_weight and tensor.data_type in _FLOATS:
                seen.add(name)
                yield tensor
    for inner in subgraphs(graph.node):
        yield from _weights(inner, known)
