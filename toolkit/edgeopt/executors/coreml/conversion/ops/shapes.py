"""Ops that move numbers: other shapes and orders, parts, joins, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.graph.graph import Node, attribute

_OPSET_OF_SLICE_INPUTS, _OPSET_OF_PAD_INPUTS = 10, 11
_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def _reshape(conversion: MilConversion, node: Node) -> None:
    after = conversion.shape(node.outputs[0])
    if not after:
        raise conversion.refuse(node, "to a number without axes")
    conversion.set(node.outputs[0], conversion.mb.reshape(x=conversion.var(node.inputs[0]), shape=after))


def _transpose(conversion: MilConversion, node: Node) -> None:
    rank = len(conversion.shape(node.inputs[0]))
    order = attribute(node, "perm", tuple(reversed(range(rank))))
    if sorted(order) != [*range(rank)]:
        raise ValueError(order)
    source = node.inputs[0]
    assert source is not None
    conversion.turn(node.outputs[0], source, tuple(order))


def _concat(conversion: MilConversion, node: Node) -> None:
    axis = attribute(node, "axis", 0) % len(conversion.shape(node.outputs[0]))
    axis = axis if conversion.order is None else conversion.order[axis]
    values = [conversion.var(value) for value in node.inputs]
    conversion.set(node.outputs[0], values[0] if len(values) == 1 else conversion.mb.concat(values=values, axis=axis))


def _split(conversion: MilConversion, node: Node) -> None:
    axis = attribute(node, "axis", 0) % len(conversion.shape(node.inputs[0]))
    sizes = [conversion.shape(output)[axis] for output in node.outputs]
    x = conversion.var(node.inputs[0])
    parts = [x] if len(sizes) == 1 else conversion.mb.split(x=x, split_sizes=sizes, axis=axis)
    for output, part in zip(node.outputs, parts, strict=True):
        conversion.set(output, part)


def _slice_options(conversion: MilConversion, node: Node) -> list[tuple[int, ...]]:
    """Return starts, ends, axes and steps; empty where one is left out."""
    if conversion.graph.opset < _OPSET_OF_SLICE_INPUTS:
        none: tuple[int, ...] = ()
        return [*(attribute(node, name, none) for name in ("starts", "ends", "axes")), none]
    return [conversion.whole_numbers(node, place) for place in range(1, 5)]


def _slice(conversion: MilConversion, node: Node) -> None:
    shape = conversion.shape(node.inputs[0])
    starts, ends, axes, steps = _slice_options(conversion, node)
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    spans = [range(size) for size in shape]
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        spans[axis] = range(*slice(start, end, stride).indices(shape[axis]))
    conversion.set(node.outputs[0], cut(conversion, conversion.var(node.inputs[0]), spans))


def cut(conversion: MilConversion, x: Any, spans: Sequence[range]) -> Any:
    """Return the numbers at these places of each axis; steps backwards are steps forwards that are turned around."""
    forwards = [span if span.step > 0 else span[::-1] for span in spans]
    if any(span != range(size) for span, size in zip(forwards, x.shape, strict=True)):
        x = conversion.mb.slice_by_index(
            x=x,
            begin=[span.start for span in forwards],
            end=[span[-1] + 1 for span in forwards],
            stride=[span.step for span in forwards],
        )
    turned = [axis for axis, span in enumerate(spans) if span.step < 0]
    return conversion.mb.reverse(x=x, axes=turned) if turned else x


def _indices(conversion: MilConversion, node: Node, axis: int) -> Any:
    """Return places counted from the first; Core ML knows no others.

    Raises:
        UnsupportedError: If one lies beyond the axis.
    """
    size, numbers = conversion.shape(node.inputs[0])[axis], conversion.constant(node.inputs[1])
    if numbers is not None:
        if ((numbers < -size) | (numbers >= size)).any():
            raise conversion.refuse(node, f"of places beyond {size}")
        return (numbers % size).astype(np.int32)
    if conversion.dtype(node.inputs[1]) != "int32":
        raise conversion.refuse(node, "by numbers that are no whole ones")
    return conversion.mb.mod(x=conversion.var(node.inputs[1]), y=np.int32(size))


def _gather(conversion: MilConversion, node: Node) -> None:
    axis = attribute(node, "axis", 0) % len(conversion.shape(node.inputs[0]))
    indices, x = _indices(conversion, node, axis), conversion.var(node.inputs[0])
    if conversion.dtype(node.inputs[0]) == "bool" or not conversion.shape(node.outputs[0]):
        raise conversion.refuse(node, "of truths, or of a number without axes")
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        begin = [int(indices) if place == axis else 0 for place in range(x.rank)]
        end = [int(indices) + 1 if place == axis else size for place, size in enumerate(x.shape)]
        made = conversion.mb.squeeze(x=conversion.mb.slice_by_index(x=x, begin=begin, end=end), axes=[axis])
    else:
        made = conversion.mb.gather(x=x, indices=indices, axis=axis, validate_indices=False)
    conversion.set(node.outputs[0], made)


def _gather_elements(conversion: MilConversion, node: Node) -> None:
    axis = attribute(node, "axis", 0) % len(conversion.shape(node.inputs[0]))
    shapes = [conversion.shape(value) for value in node.inputs[:2]]
    others = [[size for i, size in enumerate(shape) if i != axis] for shape in shapes]
    x = conversion.var(node.inputs[0])
    if others[0] != others[1]:  # Core ML wants all axes but this alike, ONNX reads the first places of longer ones
        spans = [range(a if i == axis else b) for i, (a, b) in enumerate(zip(*shapes, strict=True))]
        x = cut(conversion, x, spans)
    indices = _indices(conversion, node, axis)
    made = conversion.mb.gather_along_axis(x=x, indices=indices, axis=axis, validate_indices=False)
    conversion.set(node.outputs[0], made)


def _gather_nd(conversion: MilConversion, node: Node) -> None:
    made = conversion.mb.gather_nd(
        x=conversion.var(node.inputs[0]),
        indices=_coordinates(conversion, node, attribute(node, "batch_dims", 0)),
        batch_dims=attribute(node, "batch_dims", 0),
        validate_indices=False,
    )
    conversion.set(node.outputs[0], made)


def _coordinates(conversion: MilConversion, node: Node, first: int) -> Any:
    """Return whole coordinates, each counted from the first place of its axis."""
    shape, count = conversion.shape(node.inputs[0]), conversion.shape(node.inputs[1])[-1]
    sizes, numbers = np.array(shape[first : first + count], np.int32), conversion.constant(node.inputs[1])
    if numbers is None:
        return conversion.mb.mod(x=conversion.var(node.inputs[1]), y=sizes)
    if ((numbers < -sizes) | (numbers >= sizes)).any():
        raise conversion.refuse(node, "of places beyond its input")
    return (numbers % sizes).astype(np.int32)


def _scatter_nd(conversion: MilConversion, node: Node) -> None:
    modes = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}
    made = conversion.mb.scatter_nd(
        data=conversion.var(node.inputs[0]),
        indices=_coordinates(conversion, node, 0),
        updates=conversion.var(node.inputs[2]),
        mode=modes[attribute(node, "reduction", "none")],
        validate_indices=False,
    )
    conversion.set(node.outputs[0], made)


def _pad(conversion: MilConversion, node: Node) -> None:
    rank, number = len(conversion.shape(node.inputs[0])), 0.0
    named: tuple[int, ...] = ()
    pads: tuple[int, ...] = attribute(node, "pads", named)
    if conversion.graph.opset < _OPSET_OF_PAD_INPUTS:
        number = attribute(node, "value", 0.0)
    else:
        pads, named = (conversion.whole_numbers(node, place) for place in (1, 3))
        fill = conversion.numbers(node, 2)
        number = 0.0 if fill is None else float(fill.reshape(()))
    if (grid := conversion.grid(node.inputs[0])) is not None:
        number = float(grid.scale[0]) * (number - int(grid.zero[0]))
    axes = tuple(axis % rank for axis in named) or tuple(range(rank))
    mode = attribute(node, "mode", "constant")
    if mode not in _MODES or any(pad < 0 for pad in pads) or conversion.dtype(node.inputs[0]) != "fp32":
        raise conversion.refuse(node, f"in mode {mode}, negative or of whole numbers")
    table = [(0, 0)] * rank
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        table[axis] = (before, behind)
    x = conversion.var(node.inputs[0])
    if any(map(any, table)):
        first = next(axis for axis, pair in enumerate(table) if any(pair))
        if mode != "constant" and first < rank - 2:
            raise conversion.refuse(node, f"in mode {mode} of other axes than the last two")
        flat = [pad for pair in table[first:] for pad in pair]
        x = conversion.mb.pad(x=x, pad=flat, mode=_MODES[mode], constant_val=np.float32(number))
    conversion.set(node.outputs[0], x)


def _depth_to_space(conversion: MilConversion, node: Node) -> None:
    size, x = attribute(node, "blocksize", 1), conversion.var(node.inputs[0])
    if attribute(node, "mode", "DCR") == "CRD":
        made = conversion.mb.pixel_shuffle(x=x, upscale_factor=size)
    else:
        made = conversion.mb.depth_to_space(x=x, block_size=size)
    conversion.set(node.outputs[0], made)


def _space_to_depth(conversion: MilConversion, node: Node) -> None:
    if (mode := attribute(node, "mode", "DCR")) != "DCR":
        raise conversion.refuse(node, f"in mode {mode}")
    size = attribute(node, "blocksize", 1)
    made = conversion.mb.space_to_depth(x=conversion.var(node.inputs[0]), block_size=size)
    conversion.set(node.outputs[0], made)


def _expand(conversion: MilConversion, node: Node) -> None:
    before, after = conversion.shape(node.inputs[0]), conversion.shape(node.outputs[0])
    x = conversion.var(node.inputs[0])
    wide = (1,) * (len(after) - len(before)) + before
    if wide != before:
        x = conversion.mb.reshape(x=x, shape=wide)
    if math.prod(wide) != math.prod(after):
        x = conversion.mb.tile(x=x, reps=[to // size for to, size in zip(after, wide, strict=True)])
    conversion.set(node.outputs[0], x)


def _tile(conversion: MilConversion, node: Node) -> None:
    repeats = conversion.whole_numbers(node, 1)
    conversion.set(node.outputs[0], conversion.mb.tile(x=conversion.var(node.inputs[0]), reps=repeats))


def _top(conversion: MilConversion, node: Node) -> None:
    axis = attribute(node, "axis", -1) % len(conversion.shape(node.inputs[0]))
    values, places = conversion.mb.topk(
        x=conversion.var(node.inputs[0]),
        k=conversion.shape(node.outputs[0])[axis],
        axis=axis,
        ascending=not attribute(node, "largest", 1),
    )
    conversion.set(node.outputs[0], values)
    conversion.set(node.outputs[1], places)


OPS = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Expand": _expand,
    "Tile": _tile,
    "TopK": _top,
}
