"""The part of a graph that one value is computed from, as a model of its own."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model

_IR_VERSION = 10


def part_of(graph: Graph, value: Value) -> Model | None:
    """Return a model whose output is `value`, and whose inputs are those of the graph that it hangs on.

    None where a subgraph is among what computes it, or where it is no output of a node.
    """
    found, seen, waiting = set[Node](), set[Value](), [value]
    while waiting:
        other = waiting.pop()
        if other in seen:
            continue
        seen.add(other)
        node = graph.producer(other)
        if node is None:
            continue
        if any(each.type is ir.AttributeType.GRAPH for each in node.attributes.values()):
            return None
        found.add(node)
        waiting += [input_ for input_ in node.inputs if input_ is not None]
    if graph.producer(value) is None:
        return None
    nodes = [ir.to_proto(node) for node in graph.nodes() if node in found]
    stored = [
        ir.to_proto(initializer.const_value)
        for initializer in graph.initializers
        if initializer in seen and initializer.const_value is not None
    ]
    infos = [ir.to_proto(input_) for input_ in graph.inputs if input_ in seen]
    made = onnx.helper.make_graph(nodes, "part", infos, [onnx.ValueInfoProto(name=str(value.name))], stored)
    domains = {node.domain or "" for node in found} - {""}
    imports = {"": graph.opset, **dict.fromkeys(domains, 1)}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return Model(onnx.helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION), "part")
