"""Other shapes and places of the same numbers: no arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.ncnn.conversion.conversion import MOST_DIMENSIONS, Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter
from edgeopt.graph.graph import Node, Value, attribute

_OPSET_OF_SLICE_INPUTS, _OPSET_OF_PAD_INPUTS = 10, 11
"""Before them starts, ends and padding are attributes."""
_END = -233
"""ncnn's word for the end of a dimension."""


def _reshape(conversion: Conversion, node: Node) -> None:
    before, after = conversion.dims(node.inputs[0]), conversion.dims(node.outputs[0])
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), before, after)
    conversion.set(node.outputs[0], blob, conversion.grid(node.inputs[0]))


def merged(shape: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the fewest dimensions, and their order, that a transposition really moves.

    Dimensions of one are left out, and those that stay side by side are one.
    """
    moved = [axis for axis in order if shape[axis] > 1]
    groups: list[list[int]] = []
    real = [axis for axis in range(len(shape)) if shape[axis] > 1]
    behind = dict(pairwise(real))
    for axis in moved:
        if groups and behind.get(groups[-1][-1]) == axis:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ordered = sorted(groups)
    dims = tuple(math.prod(shape[axis] for axis in group) for group in ordered) or (1,)
    return dims, tuple(ordered.index(group) for group in groups) or (0,)


def _transpose(conversion: Conversion, node: Node) -> None:
    shape = conversion.shape(node.inputs[0])
    order = attribute(node, "perm", tuple(reversed(range(len(shape)))))
    dims, moved = merged(shape, order)
    if len(dims) > MOST_DIMENSIONS:
        raise conversion.refuse(node, f"of {len(dims)} axes")
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    if moved != tuple(range(len(moved))):
        # ncnn numbers the orders as they come in a dictionary: checked on its own layer for 2, 3 and 4 dimensions
        number = list(permutations(range(len(dims)))).index(moved)
        blob = conversion.layer(node, "Permute", [blob], {0: number})
    turned = tuple(dims[axis] for axis in moved)
    made = conversion.reshaped(node, blob, turned, conversion.dims(node.outputs[0]))
    conversion.set(node.outputs[0], made, conversion.grid(node.inputs[0]))


def _around(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return three dimensions of a tensor: all before an axis, the axis, all behind it; two where none is before."""
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return (shape[axis], behind) if before == 1 else (before, shape[axis], behind)


def _seen_at(conversion: Conversion, node: Node, value: Value, axis: int) -> tuple[str, tuple[int, ...], int]:
    """Return a tensor's blob in dimensions of which the axis is one, those dimensions, and its place there."""
    shape, dims = conversion.shape(value), conversion.dims(value)
    dropped = len(shape) > 1 and shape[0] == 1
    if len(shape) - dropped <= MOST_DIMENSIONS and axis >= dropped:
        return conversion.blob(value), dims, axis - dropped
    seen = _around(shape, axis)
    return conversion.reshaped(node, conversion.blob(value), dims, seen), seen, len(seen) - 2


def _concat(conversion: Conversion, node: Node) -> None:
    made = conversion.shape(node.outputs[0])
    axis = attribute(node, "axis", 1) % len(made)
    seen = [_seen_at(conversion, node, value, axis) for value in node.inputs if value is not None]
    if len({(len(dims), place) for _, dims, place in seen}) > 1:  # a leading 1 of some, which others do not have
        seen = []
        for value in node.inputs:
            dims = _around(conversion.shape(value), axis)
            blob = conversion.reshaped(node, conversion.blob(value), conversion.dims(value), dims)
            seen.append((blob, dims, len(dims) - 2))
    place = seen[0][2]
    blob = conversion.layer(node, "Concat", [blob for blob, _, _ in seen], {0: place})
    dims = tuple(made[axis] if i == place else size for i, size in enumerate(seen[0][1]))
    blob = conversion.reshaped(node, blob, dims, conversion.dims(node.outputs[0]))
    conversion.set(node.outputs[0], blob, conversion.same_grid(node.inputs))


def _split(conversion: Conversion, node: Node) -> None:
    value = node.inputs[0]
    assert value is not None
    axis = attribute(node, "axis", 0) % len(conversion.shape(value))
    blob, dims, place = _seen_at(conversion, node, value, axis)
    sizes = tuple(conversion.shape(output)[axis] for output in node.outputs)
    parameters: dict[int, Parameter] = {0: (*sizes[:-1], _END), 1: place}
    parts = conversion.network.add("Slice", str(node.name), [blob], parameters, outputs=len(sizes))
    for output, part, size in zip(node.outputs, parts, sizes, strict=True):
        held = tuple(size if i == place else other for i, other in enumerate(dims))
        conversion.set(output, conversion.reshaped(node, part, held, conversion.dims(output)), conversion.grid(value))


def _integers(array: NDArray[Any] | None) -> tuple[int, ...]:
    return () if array is None else tuple(int(number) for number in array.reshape(-1))


def _slice(conversion: Conversion, node: Node) -> None:
    shape = conversion.shape(node.inputs[0])
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...]
    steps: tuple[int, ...] = ()
    if conversion.graph.opset < _OPSET_OF_SLICE_INPUTS:
        starts, ends, axes = (attribute(node, name, ()) for name in ("starts", "ends", "axes"))
    else:
        starts, ends, axes, steps = (_integers(conversion.numbers(node, place)) for place in range(1, 5))
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    spans = dict[int, tuple[int, int]]()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, _ = slice(start, end, step).indices(shape[axis])
        if step != 1:
            if len(starts) > 1:
                raise conversion.refuse(node, "in steps along several axes")
            _slice_in_steps(conversion, node, axis % len(shape), range(first, last, step))
            return
        spans[axis % len(shape)] = first, last
    conversion.set(node.outputs[0], _cropped(conversion, node, spans), conversion.grid(node.inputs[0]))


def _slice_in_steps(conversion: Conversion, node: Node, axis: int, places: range) -> None:
    """Write every n-th place of an axis: seen as rows of n places, they are a column."""
    shape = conversion.shape(node.inputs[0])
    step, inner = places.step, math.prod(shape[axis + 1 :])
    if step < 1 or shape[axis] % step:
        raise conversion.refuse(node, f"in steps of {step} through {shape[axis]} places")
    rows, column = shape[axis] // step, places.start % step
    dims = (math.prod(shape[:axis]), rows, step * inner)
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    first = places.start // step
    parameters: dict[int, Parameter] = {
        9: (first, column * inner),
        10: (first + len(places), (column + 1) * inner),
        11: (1, 2),
    }
    made = conversion.layer(node, "Crop", [blob], parameters)
    after = (dims[0], len(places), inner)
    conversion.set(
        node.outputs[0],
        conversion.reshaped(node, made, after, conversion.dims(node.outputs[0])),
        conversion.grid(node.inputs[0]),
    )


def _cropped(conversion: Conversion, node: Node, spans: dict[int, tuple[int, int]]) -> str:
    """Return the blob of what lies between two places of each axis, in the dimensions of the node's output."""
    value = node.inputs[0]
    shape = list(conversion.shape(value))
    blob, dims = conversion.blob(value), conversion.dims(value)
    for axis, (first, last) in spans.items():
        if (first, last) == (0, shape[axis]):
            continue
        seen = _around(shape, axis)
        blob = conversion.reshaped(node, blob, dims, seen)
        place = len(seen) - 2
        blob = conversion.layer(node, "Crop", [blob], {9: (first,), 10: (last,), 11: (place,)})
        dims = tuple(last - first if i == place else size for i, size in enumerate(seen))
        shape[axis] = last - first
    return conversion.reshaped(node, blob, dims, conversion.dims(node.outputs[0]))


def _gather(conversion: Conversion, node: Node) -> None:
    """Write one place of an axis, or a run of neighbours; ncnn has no layer that takes places apart."""
    shape = conversion.shape(node.inputs[0])
    axis = attribute(node, "axis", 0) % len(shape)
    indices = conversion.numbers(node, 1)
    assert indices is not None
    if ((indices < -shape[axis]) | (indices >= shape[axis])).any():
        raise conversion.refuse(node, f"of places beyond {shape[axis]}")
    places = (indices.reshape(-1) % shape[axis]).tolist()
    if places != list(range(places[0], places[0] + len(places))):
        raise conversion.refuse(node, "of places that are no neighbours")
    blob = _cropped(conversion, node, {axis: (places[0], places[-1] + 1)})
    conversion.set(node.outputs[0], blob, conversion.grid(node.inputs[0]))


_PAD_MODES = {"constant": 0, "edge": 1, "reflect": 2}


def _pad(conversion: Conversion, node: Node) -> None:
    shape = conversion.shape(node.inputs[0])
    pads: tuple[int, ...]
    named: tuple[int, ...] = ()
    if conversion.graph.opset < _OPSET_OF_PAD_INPUTS:
        pads, value = attribute(node, "pads", ()), attribute(node, "value", 0.0)
    else:
        pads, named = (_integers(conversion.numbers(node, place)) for place in (1, 3))
        fill = conversion.numbers(node, 2)
        value = 0.0 if fill is None else float(fill.reshape(()))
    axes = tuple(axis % len(shape) for axis in named) or tuple(range(len(shape)))
    mode = attribute(node, "mode", "constant")
    if mode not in _PAD_MODES or any(pad < 0 for pad in pads):
        raise conversion.refuse(node, f"in mode {mode}, or negative")
    keys = ((2, 3), (0, 1), (7, 8))  # before and behind: width, height, channels
    rank = len(conversion.dims(node.inputs[0]))
    parameters: dict[int, Parameter] = {4: _PAD_MODES[mode], 5: float(value)}
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if not before and not behind:
            continue
        place = rank - 1 - conversion.blob_axis(node, node.inputs[0], axis)
        if place >= len(keys) or rank > len(keys):
            raise conversion.refuse(node, f"over axis {axis}")
        parameters |= {keys[place][0]: int(before), keys[place][1]: int(behind)}
    conversion.set(node.outputs[0], conversion.layer(node, "Padding", [node.inputs[0]], parameters))


def _depth_to_space(conversion: Conversion, node: Node) -> None:
    conversion.require_one_picture(node)
    parameters: dict[int, Parameter] = {
        0: attribute(node, "blocksize", 1),
        1: int(attribute(node, "mode", "DCR") == "DCR"),
    }
    conversion.set(node.outputs[0], conversion.layer(node, "PixelShuffle", [node.inputs[0]], parameters))


def _expand(conversion: Conversion, node: Node) -> None:
    """As a sum with zeros of the wanted shape."""
    before, after = conversion.shape(node.inputs[0]), conversion.shape(node.outputs[0])
    if before == after:
        conversion.set(node.outputs[0], conversion.blob(node.inputs[0]))
        return
    dims = conversion.dims(node.outputs[0])
    wide = (*(1,) * (len(after) - len(before)), *before)[-len(dims) :]
    is_flat = len(after) - (after[0] == 1) > MOST_DIMENSIONS
    if is_flat or math.prod(wide) != math.prod(before) or len(wide) != len(dims):
        raise conversion.refuse(node, f"from {before} to {after}")
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), wide)
    zeros = conversion.memory(f"{node.name}_zeros", np.zeros(dims, np.float32), dims)
    conversion.set(node.outputs[0], conversion.layer(node, "BinaryOp", [blob, zeros], {0: 0}))


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
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
}
