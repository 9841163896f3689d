"""Which axis of a Reshape counts attention heads: along it two activations are multiplied side by side."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.graph import Node, Value, attribute
from edgeopt.graph.groups.tracer import Tracer, positive

_KEEPS_AXES = (
    *("Add", "Cast", "Clip", "Concat", "Div", "Dropout", "Identity", "LayerNormalization", "LpNormalization", "Mul"),
    *("Neg", "RMSNormalization", "Relu", "Slice", "Softmax", "Split", "Sqrt", "Sub"),
)
_MOST_NODES = 64
"""How far behind a Reshape its product may lie."""


def head_axis(node: Node, at: Tracer, axes: Sequence[int]) -> int | None:
    """Return the axis of a Reshape's output that is one of a batch in a product of activations, or None.

    Args:
        node: The Reshape.
        at: What is known of shapes.
        axes: The candidates.
    """
    waiting: list[tuple[Value, dict[int, int]]] = [(node.outputs[0], {axis: axis for axis in axes})]
    for value, places in waiting:
        if len(waiting) > _MOST_NODES:
            return None
        for reader in at.graph.consumers(value):
            if reader.op_type == "MatMul":
                result = _batched(reader, at, places)
                if result is not None:
                    return result
                continue
            moved = _moved(reader, at, places)
            if moved:
                waiting.extend((output, moved) for output in reader.outputs)
    return None


def _batched(node: Node, at: Tracer, places: dict[int, int]) -> int | None:
    """Return the candidate along which a product of two activations runs side by side, the last of several."""
    if any(at.constant(input_) is not None for input_ in node.inputs):
        return None
    rank = at.rank(node.outputs[0])
    return next((places[axis] for axis in range(rank - 3, -1, -1) if axis in places), None)


def _moved(node: Node, at: Tracer, places: dict[int, int]) -> dict[int, int]:
    """Return where the candidates lie behind a node; nowhere behind one that is not known to keep them."""
    if node.op_type in _KEEPS_AXES:
        return places
    if node.op_type == "Transpose":
        order = attribute(node, "perm", tuple(reversed(range(at.rank(node.inputs[0])))))
        return {new: places[old] for new, old in enumerate(order) if old in places}
    if node.op_type in ("Squeeze", "Gather", "Reshape", "Unsqueeze"):
        return _renumbered(node, at, places)
    return {}


def _renumbered(node: Node, at: Tracer, places: dict[int, int]) -> dict[int, int]:
    before, after = at.dims(node.inputs[0]), at.dims(node.outputs[0])
    if node.op_type == "Gather":
        axis = positive(int(attribute(node, "axis", 0)), len(before))
        before = tuple(1 if number == axis and len(after) < len(before) else size for number, size in enumerate(before))
        places = {number: place for number, place in places.items() if number != axis}
    olds, news = ([axis for axis, size in enumerate(dims) if size != 1] for dims in (before, after))
    if [before[axis] for axis in olds] != [after[axis] for axis in news]:
        return {}
    return {new: places[old] for old, new in zip(olds, news, strict=True) if old in places}
