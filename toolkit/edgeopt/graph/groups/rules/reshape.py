"""Reshape and Flatten: one channel becomes many entries, or many one; attention heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.graph.graph import Node, Value, attribute
from edgeopt.graph.groups.labels import FIXED
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import NO_HEADS, Dims, PinnedError, Tracer, positive
from edgeopt.graph.groups.types import Channels, channels

_TAKEN_OVER = "the size of an axis is taken over from another one"


@dataclass(frozen=True, slots=True)
class AxisBlock:
    """Neighbouring axes before and after that hold the same entries in the same order; none of them has size 1."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def reshape(node: Node, at: Tracer) -> None:
    """Carry labels over to the axis that holds their entries, and rewrite its size."""
    before, after = at.dims(node.inputs[0]), at.dims(node.outputs[0])
    if any(before[axis] == 1 for axis in at.axes(node.inputs[0])):
        raise PinnedError("an axis of one channel is reshaped")
    blocks = _blocks(before, after)
    result: dict[int, Channels] = {}
    for axis, labels in at.axes(node.inputs[0]).items():
        block = next((other for other in blocks if axis in other.before), None)
        if block is None or sum(number in at.axes(node.inputs[0]) for number in block.before) > 1:
            raise PinnedError("the shapes around a Reshape are not known well enough")
        sizes = [_size(before[number]) for number in block.before] if len(block.before) > 1 else [len(labels)]
        shaped = labels.reshape([-1 if number == axis else 1 for number in block.before])
        entries = channels(np.broadcast_to(shaped, sizes).reshape(-1))
        where, carried = _onto(node, at, entries, block.after, after)
        result[where] = carried
    if node.op_type == "Reshape":
        _rewrite(node, at, result)
    at.give(node.outputs[0], result)


def _onto(node: Node, at: Tracer, entries: Channels, axes: tuple[int, ...], dims: Dims) -> tuple[int, Channels]:
    """Return the axis of a block that carries the labels of its entries, and the labels along it."""
    if len(axes) == 1:
        return axes[0], entries
    shaped = entries.reshape([_size(dims[axis]) for axis in axes])
    for place, axis in enumerate(axes):
        rows = np.moveaxis(shaped, place, 0).reshape(shaped.shape[place], -1)
        if (rows == rows[:, :1]).all():
            return axis, channels(rows[:, 0])
    axis_of_heads = head_axis(node, at, axes)
    if axis_of_heads is None:
        raise PinnedError(NO_HEADS)
    place = axes.index(axis_of_heads)
    rows = np.moveaxis(shaped, place, 0).reshape(shaped.shape[place], -1)
    at.tie(node, channels(np.broadcast_to(rows[:, :1], rows.shape)), channels(rows), "a head has channels that stay")
    at.splits.append((node, channels(rows[:, 0])))
    return axis_of_heads, channels(np.where((rows == FIXED).any(1), FIXED, rows[:, 0]))


def _rewrite(node: Node, at: Tracer, result: dict[int, Channels]) -> None:
    given = attribute(node, "shape", None)
    place: int | str = "shape" if given is not None else 1
    values = tuple(int(value) for value in given) if given is not None else at.integers(node.inputs[1], "a shape")
    for axis, labels in result.items():
        if values[axis] > 0:
            at.count(node, place, values, axis, labels)
        elif values[axis] == 0 and not attribute(node, "allowzero", 0):
            own = at.axes(node.inputs[0]).get(axis)
            if own is None or not np.array_equal(own, labels):
                raise PinnedError(_TAKEN_OVER)
    if not attribute(node, "allowzero", 0):
        taken = [axis for axis in at.axes(node.inputs[0]) if axis < len(values) and values[axis] == 0]
        if any(axis not in result for axis in taken):
            raise PinnedError(_TAKEN_OVER)


def _size(dim: int | str | None) -> int:
    if not isinstance(dim, int):
        raise PinnedError("the shapes around a Reshape are not known well enough")
    return dim


def _blocks(before: Dims, after: Dims) -> list[AxisBlock]:
    """Return the blocks of two shapes with the same entries, those of a size that is not known in between too."""
    olds, news = ([axis for axis, size in enumerate(dims) if size != 1] for dims in (before, after))
    blocks: list[AxisBlock] = []
    while olds and news and _alike(before[olds[0]], after[news[0]]):
        blocks.append(AxisBlock((olds.pop(0),), (news.pop(0),)))
    behind: list[AxisBlock] = []
    while olds and news and _alike(before[olds[-1]], after[news[-1]]):
        behind.append(AxisBlock((olds.pop(),), (news.pop(),)))
    unknown = [axis for axis in olds if not isinstance(before[axis], int)]
    unknown_after = [axis for axis in news if not isinstance(after[axis], int)]
    if len(unknown) == len(unknown_after) == 1 and (olds[0], news[0]) == (unknown[0], unknown_after[0]):
        if _product(before, olds[1:]) != _product(after, news[1:]):
            return [*blocks, *behind]
        blocks.append(AxisBlock((olds.pop(0),), (news.pop(0),)))
    elif unknown or unknown_after:
        return [*blocks, *behind]
    return [*blocks, *_known_blocks(before, olds, after, news), *behind]


def _alike(one: int | str | None, other: int | str | None) -> bool:
    return one == other and one is not None


def _known_blocks(before: Dims, olds: list[int], after: Dims, news: list[int]) -> list[AxisBlock]:
    blocks: list[AxisBlock] = []
    while olds and news:
        left, right = [olds.pop(0)], [news.pop(0)]
        while (product := _product(before, left)) != (other := _product(after, right)):
            shorter, rest = (left, olds) if product < other else (right, news)
            if not rest:
                return blocks
            shorter.append(rest.pop(0))
        blocks.append(AxisBlock(tuple(left), tuple(right)))
    return blocks


def _product(dims: Dims, axes: list[int]) -> int:
    return math.prod(_size(dims[axis]) for axis in axes)


RULES = {"Reshape": Rule(reshape), "Flatten": Rule(reshape)}


# Which axis of a Reshape counts attention heads: along it two activations are multiplied side by side.

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
