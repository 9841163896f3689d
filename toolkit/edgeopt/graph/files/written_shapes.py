"""Shapes that are written beside the tensors of a model, and contradict what follows from its inputs.

Whoever edits the size of an input by hand, or traces a network with another size than its inputs declare, leaves them
behind. Engines and tools believe them: what they make of the model is refused, or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto, ValueInfoProto, helper
from onnx.shape_inference import InferenceError

from edgeopt.system.text import plural

_SHAPE_NUMBERS = 1024
"""A constant with more numbers holds weights, no shape."""


@dataclass(frozen=True, slots=True)
class StaleShape:
    """One tensor, and both of its shapes."""

    name: str
    written: tuple[int | None, ...]
    derived: tuple[int | None, ...]
    """Shape that follows from the inputs; None: a free size."""

    def __str__(self) -> str:
        return f"{self.name} is {_told(self.derived)}, not {_told(self.written)}"


def drop_stale_shapes(proto: onnx.ModelProto) -> tuple[StaleShape, ...]:
    """Take out all shapes beside tensors, in place, where one contradicts the inputs; outputs get what is derived.

    Whoever needs the others derives them anew: where one is wrong, what cannot be checked may be wrong too.

    Args:
        proto: A whole model; subgraphs are left as they are.

    Returns:
        What was contradicted; empty where nothing was, or shapes cannot be derived.
    """
    graph = proto.graph
    written = {entry.name: entry for entry in (*graph.value_info, *graph.output) if _sizes(entry)}
    derived = {info.name: info for info in _derived(proto)} if written else {}
    stale = [
        StaleShape(name, _sizes(entry), _sizes(derived[name]))
        for name, entry in written.items()
        if name in derived and _contradict(_sizes(entry), _sizes(derived[name]))
    ]
    if not stale or _is_rounded_up(proto.graph, stale):
        return ()
    del graph.value_info[:]
    for value in graph.output:
        if any(stale_shape.name == value.name for stale_shape in stale):
            value.type.tensor_type.shape.CopyFrom(derived[value.name].type.tensor_type.shape)
    return tuple(stale)


def _is_rounded_up(graph: onnx.GraphProto, stale: Iterable[StaleShape]) -> bool:
    """Whether the first contradiction is at a pool that rounds sizes up: engines and onnx disagree there."""
    names = {stale_shape.name for stale_shape in stale}
    first = next((node for node in graph.node if names.intersection(node.output)), None)
    return first is not None and any(attribute.name == "ceil_mode" and attribute.i for attribute in first.attribute)


def told_of(stale: Iterable[StaleShape]) -> str:
    """Return in words what was contradicted; empty where nothing was."""
    named = list(stale)
    shown = ", ".join(map(str, named[:2]))
    return f"shapes written beside {plural(len(named), 'tensor')} contradict the inputs: {shown}" if named else ""


def _derived(proto: onnx.ModelProto) -> list[ValueInfoProto]:
    """Return what follows from the inputs alone."""
    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = light.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    listed = {value_info.name for value_info in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= _SHAPE_NUMBERS:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in proto.graph.output:
        bare = graph.output.add(name=value.name)
        bare.type.tensor_type.elem_type = value.type.tensor_type.elem_type
    try:
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except (InferenceError, ValueError):  # a foreign op: nothing contradicts anything
        return []
    return [*inferred.value_info, *inferred.output]


def _sizes(value: ValueInfoProto) -> tuple[int | None, ...]:
    """Return the sizes of a tensor, None for a free one; empty where no shape is written, or it is a scalar."""
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims)


def _contradict(written: tuple[int | None, ...], derived: tuple[int | None, ...]) -> bool:
    if not derived:
        return False
    if len(written) != len(derived):
        return True
    return any(None not in pair and pair[0] != pair[1] for pair in zip(written, derived, strict=True))


def _told(sizes: tuple[int | None, ...]) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)
