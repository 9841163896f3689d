"""How large a model's local functions become once they are written out: a few hundred bytes can be a billion nodes."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from edgeopt.errors import InvalidFileError
from edgeopt.graph.subgraphs import all_nodes

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
