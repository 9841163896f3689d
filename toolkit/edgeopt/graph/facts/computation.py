"""A hash of the computation of a graph, whatever its tensors and nodes are called and in which order they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import onnx
from onnx import numpy_helper


def computation_hash(proto: onnx.ModelProto) -> str | None:
    """Return a hash of operators, attributes, weights and how they are joined; None where a graph lies inside another.

    Two graphs of one hash run the same operators on the same values. The order in which they stand is not part of it,
    nor are names, apart from those of the graph's own inputs and outputs, nor attributes that say what is so anyhow.
    The version of the opset is none either: what it changes in an operator is seen in the numbers.

    Args:
        proto: Nodes in topological order; weights in the file.
    """
    graph, versions = proto.graph, {opset.domain: opset.version for opset in proto.opset_import}
    known = {"": ""}
    known |= {value_info.name: _hash("input", value_info.name) for value_info in graph.input}
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        known[constant.name] = _hash("weight", value.dtype.str, str(value.shape), value.tobytes())
    for node in graph.node:
        attributes = sorted(node.attribute, key=lambda constant: constant.name)
        if any(attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in attributes):
            return None
        defaults = _defaults(node, versions)
        values = [
            attribute.SerializeToString(deterministic=True)
            for attribute in attributes
            if attribute != defaults.get(attribute.name)
        ]
        made = _hash(node.domain, node.op_type, *values, *(known[name] for name in node.input))
        known |= {name: _hash(made, str(i)) for i, name in enumerate(node.output) if name}
    return _hash(
        str(len(graph.node)), *(part for constant in graph.output for part in (constant.name, known[constant.name]))
    )


def _defaults(node: onnx.NodeProto, versions: Mapping[str, int]) -> Mapping[str, onnx.AttributeProto]:
    """Return what an operator's attributes are where they are not written; nothing of one that ONNX does not know."""
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.name
    }


def _hash(*parts: str | bytes) -> str:
    return hashlib.sha256(b"\0".join(_bytes(parts))).hexdigest()


def _bytes(parts: Iterable[str | bytes]) -> Iterable[bytes]:
    """Yield each part with its length, so that no two lists of parts are the same bytes."""
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        yield str(len(data)).encode()
        yield data
