"""How many different tokens a model knows: the rows of the table that its input of tokens is looked up in."""

from __future__ import annotations

from edgeopt.graph.model import Model

_KEEPING = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops that keep the numbers of tokens."""


def embedded_rows(model: Model, name: str) -> int | None:
    """Return the rows of the smallest table that an input's numbers choose from; None where there is none.

    Args:
        model: Any.
        name: Of the input.
    """
    graph = model.proto.graph
    sizes = {constant.name: constant.dims[0] for constant in graph.initializer if constant.dims}
    known, result = {name}, list[int]()
    for node in graph.node:
        if node.op_type in _KEEPING and node.input and node.input[0] in known:
            known.update(node.output)
        if node.op_type == "Gather" and node.input[1] in known and node.input[0] in sizes:
            result.append(int(sizes[node.input[0]]))
    return min(result, default=None)
