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


def _concat(conversion: Conversion, node: Node) -> None:
    place = conversion.blob_axis(node, node.outputs[0], attribute(node, "axis", 1))
    for value in node.inputs:
        conversion.blob_axis(node, value, attribute(node, "axis", 1))
    if len({len(conversion.dims(value)) for value in (*node.inputs, node.outputs[0])}) > 1:
        raise conversion.refuse(node, "of pictures")
    blob = conversion.layer(node, "Concat", node.inputs, {0: place})
    conversion.set(node.outputs[0], blob, conversion.same_grid(node.inputs))


def _split(conversion: Conversion, node: Node) -> None:
    value, axis = node.inputs[0], attribute(node, "axis", 0)
    place = conversion.blob_axis(node, value, axis)
    sizes = tuple(conversion.shape(output)[axis] for output in node.outputs)
    parameters: dict[int, Parameter] = {0: (*sizes[:-1], _END), 1: place}
    blobs = conversion.network.add("Slice", str(node.name), [conversion.blob(value)], parameters, outputs=len(sizes))
    for output, blob in zip(node.outputs, blobs, strict=True):
        conversion.set(output, _as_tensor(conversion, node, blob, output), conversion.grid(value))


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
    blob = _as_tensor(conversion, node, _cropped(conversion, node, spans), node.outputs[0])
    conversion.set(node.outputs[0], blob, conversion.grid(node.inputs[0]))


def _as_tensor(conversion: Conversion, node: Node, blob: str, output: Value) -> str:
    """Return the blob of a part in the dimensions of its tensor: a part of one place may lose its first axis."""
    before, made = conversion.shape(node.inputs[0]), conversion.shape(output)
    held = made[1:] if len(before) > 1 and before[0] == 1 else made
    return conversion.reshaped(node, blob, held, conversion.dims(output)) if len(held) <= MOST_DIMENSIONS else blob


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
    """Return the blob of what lies between two places of each axis."""
    value = node.inputs[0]
    shape = conversion.shape(value)
    real = {axis: span for axis, span in spans.items() if span != (0, shape[axis])}
    if not real:
        return conversion.blob(value)
    places = tuple(conversion.blob_axis(node, value, axis) for axis in real)
    parameters: dict[int, Parameter] = {
        9: tuple(first for first, _ in real.values()),
        10: tuple(last for _, last in real.values()),
        11: places,
    }
    return conversion.layer(node, "Crop", [value], parameters)


def _gather(conversion: Conversion, node: Node) -> None:
    """Write one place of an axis, or a run of neighbours; ncnn has no layer that takes places apart."""
    shape = conversion.shape(node.inputs[0])
    axis = attribute(node, "axis", 0) % len(shape)
    indices = conversion.numbers(node, 1)
    assert indices is not None
    places = (indices.reshape(-1) % shape[axis]).tolist()
    if places != list(range(places[0], places[0] + len(places))):
        raise conversion.refuse(node, "of places that are no neighbours")
    blob = _cropped(conversion, node, {axis: (places[0], places[-1] + 1)})
    sizes = tuple(len(places) if i == axis else size for i, size in enumerate(shape))
    before = tuple(sizes[1:]) if len(shape) > 1 and shape[0] == 1 else sizes
    conversion.set(
        node.outputs[0],
        conversion.reshaped(node, blob, before, conversion.dims(node.outputs[0])),
        conversion.grid(node.inputs[0]),
    )


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
