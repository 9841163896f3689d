"""Turn float16 and bfloat16 into float32 inside a model, for a processor whose kernels know float32 alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._checked import Expectation, left_out, probe
from edgeopt.system.text import plural

_TOLERANCE = 2e-2
"""Error over signal, root mean square: what float16 itself loses in a deep network."""
_SUFFIX = "__float32"
_HALVES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def widen_float16(model: Model, inputs: Sequence[Tensors] = ()) -> Outcome:
    """Turn 16-bit weights and what is computed with them into float32; inputs and outputs keep their types by Casts.

    ONNX Runtime's processor provider has float16 kernels on Arm only: elsewhere it casts around each op, and no
    layer can run on integers. It has none in bfloat16 at all: such weights have a Cast behind them.
    A model without weights in 16 bits, or whose weights lie outside its file, stays as it is.
    Weights in float32 with a Cast behind them, as ONNX Runtime's converter leaves those that are inputs too, count.

    Args:
        model: Any model.
        inputs: Real inputs on which the outputs must stay near; none: random numbers.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    halves = _weights_in_half(proto.graph)
    if not halves or any(constant.data_location == TensorProto.EXTERNAL for constant in proto.graph.initializer):
        return Outcome(model, {})
    _keep_ends(proto.graph)
    ends = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    _widen(proto.graph, ends)
    changed = Model(proto, model.name)
    expected = Expectation.of(model, list(inputs) or [probe(model.inputs)], _TOLERANCE)
    if reason := expected.why_not(changed):
        return Outcome(model, {}, (left_out(f"float32 in place of {' and '.join(sorted(set(halves)))}", reason),))
    text = f"{plural(len(halves), 'weight')} in {' and '.join(sorted(set(halves)))}"
    detail = f"{text} became float32; inputs and outputs keep their types"
    why = "the processor's kernels compute in float32, and integers are made from it"
    return Outcome(changed, {"widen_float16": len(halves)}, (Note(NoteKind.CHOICE, detail, why),))


def _weights_in_half(graph: onnx.GraphProto) -> list[str]:
    """Return the type of each weight that is stored in 16 bits, or becomes so by the Cast behind it."""
    cast = {node.input[0]: _given_half(node) for node in graph.node if node.op_type == "Cast"}
    kinds = [_HALVES.get(constant.data_type) or cast.get(constant.name, "") for constant in graph.initializer]
    return [kind for kind in kinds if kind]


def _given_half(cast: onnx.NodeProto) -> str:
    return next((_HALVES.get(attribute.i, "") for attribute in cast.attribute if attribute.name == "to"), "")


def _keep_ends(graph: onnx.GraphProto) -> None:
    """Put a Cast behind each input in 16 bits and in front of each such output; the graph between has other names."""
    stored = {constant.name for constant in graph.initializer}
    entries = [value_info.name for value_info in graph.input if _is_half(value_info) and value_info.name not in stored]
    kinds = {
        value_info.name: value_info.type.tensor_type.elem_type for value_info in graph.output if _is_half(value_info)
    }
    exits = [name for name in kinds if name not in entries]
    _rename(graph, {name: f"{name}{_SUFFIX}" for name in (*entries, *exits)})
    first = [helper.make_node("Cast", [name], [f"{name}{_SUFFIX}"], to=TensorProto.FLOAT) for name in entries]
    last = [helper.make_node("Cast", [f"{name}{_SUFFIX}"], [name], to=kinds[name]) for name in exits]
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    for tensor in graph.initializer:
        if tensor.name in exits:
            tensor.name += _SUFFIX


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        for place, name in enumerate(node.output):
            node.output[place] = names.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                hidden = {entry.name for entry in (*inner.input, *inner.initializer)}
                free = {old: new for old, new in names.items() if old not in hidden}
                _rename(inner, free)
                for value in inner.output:
                    value.name = free.get(value.name, value.name)


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _HALVES


def _widen(graph: onnx.GraphProto, ends: set[str]) -> None:
    """Rewrite types, constants and casts in place, but for what touches an end of the model."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_half(value) and value.name not in ends:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        if ends.intersection(node.output):
            continue
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _HALVES:
                attribute.i = TensorProto.FLOAT
            elif attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g, set())


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _HALVES:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
