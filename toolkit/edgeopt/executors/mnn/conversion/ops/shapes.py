"""Ops that only move numbers, with shapes, axes and places in numbers."""

from __future__ import annotations

import math

import numpy as np

from edgeopt.executors.mnn.conversion.ops import ANY_TYPE
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute


def _reshape(graph: MnnGraph, node: Node) -> None:
    value = node.inputs[0]
    assert value is not None
    graph.put(node, graph.reshaped(node, value, graph.shape(node.outputs[0])))


def _transpose(graph: MnnGraph, node: Node) -> None:
    shape = graph.shape(node.outputs[0])
    order = attribute(node, "perm", tuple(range(len(shape)))[::-1])
    if sorted(order) != list(range(len(shape))):
        raise ValueError(order)
    graph.put(node, graph.add(node, "Transpose", [node.inputs[0]], shape, perm=order))


def _concat(graph: MnnGraph, node: Node) -> None:
    shape = graph.shape(node.outputs[0])
    axis = attribute(node, "axis", 0) % len(shape)
    graph.put(node, graph.add(node, "Concat", [*node.inputs], shape, axis=axis))


def _sliced(graph: MnnGraph, node: Node, value: Value, axis: int, start: int, end: int, step: int, size: int) -> Value:
    shape = [size if i == axis else own for i, own in enumerate(graph.shape(value))]
    numbers = [np.array([number], np.int64) for number in (start, end, axis, step)]
    made = graph.add(node, "Slice", [value, *numbers], shape)
    made.type = value.type
    return made


def _split(graph: MnnGraph, node: Node) -> None:
    """Write a slice for each part that is read."""
    value, shape = node.inputs[0], graph.shape(node.inputs[0])
    assert value is not None
    axis, start = attribute(node, "axis", 0) % len(shape), 0
    outputs = [*node.outputs]
    sizes = [_length(graph, node, output, axis) for output in outputs]
    for output, size in zip(outputs, sizes, strict=True):
        if output.uses() or graph.graph.is_output(output):
            made = _sliced(graph, node, value, axis, start, start + size, 1, size)
            if not graph.graph.replace(output, made):
                raise graph.refuse(node, "")
        start += size
    graph.graph.remove(node)


def _length(graph: MnnGraph, node: Node, output: Value, axis: int) -> int:
    shape = graph.graph.shape(output)
    sizes = graph.stored(node, 1)
    if shape is not None:
        return shape[axis]
    if sizes is None:
        raise graph.refuse(node, "in parts of unknown sizes")
    return int(sizes[[*node.outputs].index(output)])


def _slice(graph: MnnGraph, node: Node) -> None:
    """Write a slice for each axis, its ends inside the tensor; backwards rows are taken by their numbers."""
    value, shape = node.inputs[0], graph.shape(node.inputs[0])
    starts, ends, axes, steps = (graph.numbers(node, place) for place in range(1, 5))
    if value is None or starts is None or ends is None:
        raise graph.refuse(node, "")
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = int(axis) % len(shape)
        places = range(shape[place])[slice(*_ends(int(start), int(end), int(step), shape[place]))]
        if not len(places):
            raise graph.refuse(node, "of nothing")
        if len(places) == shape[place] and places.step > 0:
            continue
        if places.step > 0:
            value = _sliced(graph, node, value, place, places[0], places[-1] + 1, places.step, len(places))
        else:
            value = _taken(graph, node, value, place, np.array(places, np.int64))
    graph.put(node, value)


def _ends(start: int, end: int, step: int, size: int) -> tuple[int | None, int | None, int]:
    """Return the ends of a slice as Python has them: ONNX counts from behind once only."""
    least = -size - 1 if step < 0 else -size
    first, last = max(start, -size), max(end, least)
    return first, None if step < 0 and last == -size - 1 else last, step


def _taken(graph: MnnGraph, node: Node, value: Value, axis: int, places: np.ndarray) -> Value:
    own = graph.shape(value)
    made = graph.add(node, "Gather", [value, places], (*own[:axis], *places.shape, *own[axis + 1 :]), axis=axis)
    made.type = value.type
    return made


def _gather(graph: MnnGraph, node: Node) -> None:
    """Write places counted from the first; MNN reads others beyond the tensor."""
    value, places = node.inputs[0], graph.numbers(node, 1)
    assert value is not None
    assert places is not None
    shape = graph.shape(value)
    axis = attribute(node, "axis", 0) % len(shape)
    size = shape[axis]
    if places.size and not -size <= places.min() <= places.max() < size:
        raise graph.refuse(node, f"of places beyond {size}")
    numbers = np.where(places < 0, places + size, places).astype(np.int64)
    made = _taken(graph, node, value, axis, numbers.reshape(-1))
    graph.put(node, graph.reshaped(node, made, graph.shape(node.outputs[0])))


def _elements(graph: MnnGraph, node: Node) -> None:
    axis = attribute(node, "axis", 0) % len(graph.shape(node.inputs[0]))
    graph.graph.set_attribute(node, "axis", axis)


def _pad(graph: MnnGraph, node: Node) -> None:
    shape, pads = graph.shape(node.inputs[0]), graph.numbers(node, 1)
    number, axes, mode = graph.stored(node, 2), graph.stored(node, 3), attribute(node, "mode", "constant")
    if pads is None or (len(node.inputs) > 2 and node.inputs[2] is not None and number is None):
        raise graph.refuse(node, "with its input 1 or 2 computed")
    whole = np.zeros((2, len(shape)), np.int64)
    whole[:, range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]] = pads.reshape(2, -1)
    if whole.min() < 0 or mode not in ("constant", "reflect"):
        raise graph.refuse(node, f"in mode {mode}, or that cuts off")
    if not whole.any():
        value = node.inputs[0]
        assert value is not None
        graph.put(node, value)
        return
    inputs = [node.inputs[0], whole.reshape(-1)]
    if mode == "constant":
        inputs.append(np.array(0 if number is None else float(number.reshape(())), np.float32))
    graph.put(node, graph.add(node, "Pad", inputs, graph.shape(node.outputs[0]), mode=mode))


def _expand(graph: MnnGraph, node: Node) -> None:
    graph.put(node, graph.expanded(node, node.inputs[0], graph.shape(node.outputs[0])))


def _tile(graph: MnnGraph, node: Node) -> None:
    repeats = graph.numbers(node, 1)
    assert repeats is not None
    made = graph.add(node, "Tile", [node.inputs[0], repeats.astype(np.int64)], graph.shape(node.outputs[0]))
    graph.put(node, made)


def _largest(graph: MnnGraph, node: Node) -> None:
    """The order of the results is that of their size; how equal numbers are ordered is MNN's."""
    shape = graph.shape(node.inputs[0])
    axis = attribute(node, "axis", -1) % len(shape)
    if graph.stored(node, 1) is None or not attribute(node, "largest", 1) or axis != len(shape) - 1:
        raise graph.refuse(node, "of computed numbers, of the smallest, or along another axis than the last")
    graph.graph.set_attribute(node, "axis", axis)
    graph.graph.set_attribute(node, "sorted", 1)


def _blocks(graph: MnnGraph, node: Node) -> None:
    if len(graph.shape(node.inputs[0])) != 4 or math.prod(graph.shape(node.outputs[0])) == 0:
        raise graph.refuse(node, "")


OPS = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _elements,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "TopK": _largest,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
}
_MOVES = (
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "Expand",
    "Tile",
)
OTHER_TYPES = dict.fromkeys((*_MOVES, "GatherElements", "TopK"), ANY_TYPE)
