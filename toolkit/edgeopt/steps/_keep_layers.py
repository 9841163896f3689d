"""Layers of which nothing is pruned: found by the names that a person knows, those of the model as it came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import onnx

from edgeopt.errors import NotFoundError
from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model

_FURTHEST = 8
"""Nodes behind a layer that may have been joined with it."""


def require_layers(model: Model, names: Sequence[str]) -> None:
    """Raise unless every name is a node's, an output's or a constant's of a model.

    Raises:
        NotFoundError: For the first that is not.
    """
    known = _outputs_by_name(model)
    for name in names:
        if name not in known:
            raise NotFoundError("layer", name, (node.name or node.output[0] for node in model.proto.graph.node))


def groups_of(original: Model, model: Model, groups: ChannelGroups, names: Iterable[str]) -> frozenset[str]:
    """Return the names of the groups that hold what some layers make.

    Args:
        original: The model as it came, whose names they are.
        model: What became of it before pruning: nodes may be joined, and names gone.
        groups: Of that one.
        names: Of nodes, outputs or constants.
    """
    carried = defaultdict[str, set[str]](set)
    for group in groups:
        for tensor in (*(use.tensor for use in group.tensors), *(use.node for use in group.producers)):
            carried[tensor].add(group.name)
    first, now = _outputs_by_name(original), _outputs_by_name(model)
    readers = _readers(original)
    result = set[str]()
    for name in names:
        tensors = {*first.get(name, ()), *now.get(name, ())}
        for _ in range(_FURTHEST):
            if here := {group for tensor in tensors for group in carried.get(tensor, ())}:
                result |= here
                break
            tensors = {output for tensor in tensors for node in readers.get(tensor, ()) for output in node.output}
    return frozenset(result)


def _outputs_by_name(model: Model) -> dict[str, set[str]]:
    """Return what is made by the layer of each name: a node's own, one of its outputs, or a constant that it reads."""
    constants = {constant.name for constant in model.proto.graph.initializer}
    outputs = defaultdict[str, set[str]](set)
    for node in model.proto.graph.node:
        for name in (node.name, *node.output, *(value_info for value_info in node.input if value_info in constants)):
            if name:
                outputs[name] |= {value_info for value_info in node.output if value_info}
    return outputs


def _readers(model: Model) -> dict[str, list[onnx.NodeProto]]:
    readers = defaultdict[str, list[onnx.NodeProto]](list)
    for node in model.proto.graph.node:
        for name in node.input:
            readers[name].append(node)
    return readers
