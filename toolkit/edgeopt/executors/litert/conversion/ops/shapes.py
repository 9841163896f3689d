"""Ops that move numbers: other shapes and orders, parts, joins, padding and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.litert.conversion.conversion import ANY_TYPE, Order, TfliteConversion, TfliteStep, channels_last
from edgeopt.executors.litert.conversion.grids import one_grid
from edgeopt.executors.litert.conversion.network import type_name

_OPSET_OF_SLICE_INPUTS, _OPSET_OF_PAD_INPUTS, _OPSET_OF_SPLIT_INPUTS = 10, 11, 13


def _reshape(conversion: TfliteConversion, step: TfliteStep) -> None:
    before, after = conversion.shape(step.inputs[0]), conversion.shape(step.outputs[0])
    known = conversion.order(step.inputs[0])
    order = _order_kept(before, after, known)
    if order is None:
        known, order = tuple(range(len(before))), tuple(range(len(after)))
    place = conversion.tensor(step.inputs[0], known)
    conversion.set(step.outputs[0], conversion.reshaped(place, [after[axis] for axis in order]), order)


def _order_kept(before: Sequence[int], after: Sequence[int], order: Order) -> Order | None:
    """Return the order of a tensor's axes after a reshape that leaves its numbers where they lie; None: it moves them.

    Axes fall into the smallest groups whose products agree on both sides. Where each group lies in one piece, its axes
    in the model's order, the reshape happens within groups, and the groups stay in the order in which they lie.
    """
    groups = _groups(before, after)
    place_of = {axis: place for place, axis in enumerate(axis for axis in order if before[axis] > 1)}
    ordered, last = list[tuple[int, list[int]]](), -1
    for reads, makes in groups:
        large = [axis for axis in reads if before[axis] > 1]
        places = [place_of[axis] for axis in large]
        if places and places != list(range(places[0], places[0] + len(places))):
            return None
        last = order.index((large or reads)[0]) if reads else last  # a new axis of size 1 stays behind the last group
        ordered.append((last, makes))
    ordered.sort(key=lambda group: group[0])
    return tuple(axis for _, makes in ordered for axis in makes)


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    groups = list[tuple[list[int], list[int]]]()
    i = j = 0
    while i < len(before) or j < len(after):
        reads, makes = list[int](), list[int]()
        left = right = 1
        if i < len(before):
            reads, left, i = [i], before[i], i + 1
        if j < len(after) and (left > 1 or not reads or after[j] == 1):
            makes, right, j = [j], after[j], j + 1
        while left != right:
            if left < right:
                reads.append(i)
                left, i = left * before[i], i + 1
            else:
                makes.append(j)
                right, j = right * after[j], j + 1
        groups.append((reads, makes))
    return groups


def _transpose(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write nothing: the tensor that carries the input carries the output, in an order of its own."""
    known = conversion.order(step.inputs[0])
    permutation = step.attribute("perm", tuple(reversed(range(len(known)))))
    order = tuple(permutation.index(axis) for axis in known)
    conversion.set(step.outputs[0], conversion.tensor(step.inputs[0], known), order)


def _concat(conversion: TfliteConversion, step: TfliteStep) -> None:
    rank = len(conversion.shape(step.outputs[0]))
    computed = [value for value in step.inputs if conversion.constant(value) is None]
    order = conversion.order(computed[0]) if computed else tuple(range(rank))
    places = [conversion.tensor(value, order) for value in step.inputs]
    axis = order.index(step.attribute("axis", 0) % rank)
    conversion.network.add("CONCATENATION", places, [conversion.new(step.outputs[0], order)], axis=axis)


def _split(conversion: TfliteConversion, step: TfliteStep) -> None:
    shape, order = conversion.shape(step.inputs[0]), conversion.order(step.inputs[0])
    axis = step.attribute("axis", 0) % len(shape)
    sizes = [conversion.shape(output)[axis] for output in step.outputs]
    place, stored = conversion.tensor(step.inputs[0], order), order.index(axis)
    made = [conversion.new(output, order) for output in step.outputs]
    number = conversion.network.constant("axis", np.array(stored, np.int32))
    if len(set(sizes)) == 1:
        conversion.network.add("SPLIT", [number, place], made, numSplits=len(sizes))
    else:
        conversion.network.add("SPLIT_V", [place, conversion.integers(sizes), number], made, numSplits=len(sizes))


def _integers(array: NDArray[Any] | None) -> tuple[int, ...]:
    return () if array is None else tuple(int(number) for number in array.reshape(-1))


def _slice(conversion: TfliteConversion, step: TfliteStep) -> None:
    shape = conversion.shape(step.inputs[0])
    steps: tuple[int, ...] = ()
    if conversion.graph.opset < _OPSET_OF_SLICE_INPUTS:
        starts, ends, axes = (step.attribute(name, ()) for name in ("starts", "ends", "axes"))
    else:
        starts, ends, axes, steps = (_integers(conversion.numbers(step.node, place)) for place in range(1, 5))
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    spans = [range(size) for size in shape]
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        spans[axis] = range(*slice(start, end, stride).indices(shape[axis]))
    _cut(conversion, step, spans)


def _cut(conversion: TfliteConversion, step: TfliteStep, spans: Sequence[range]) -> None:
    """Write the numbers at these places of each axis of the input."""
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    stored = [spans[axis] for axis in order]
    for axis, span in enumerate(stored):
        if span.step > 1 and conversion.shown(place)[axis] % span.step == 0:
            place = _every(conversion, place, axis, span)
            stored[axis] = range(len(span))
    begins = conversion.integers([span.start for span in stored])
    extents = [len(span) for span in stored]
    if all(span.step == 1 for span in stored):
        if tuple(extents) != conversion.shown(place):
            place = conversion.apply("SLICE", [place, begins, conversion.integers(extents)], extents)
        conversion.set(step.outputs[0], place, order)
        return
    # an end before the first place cannot be said: -1 would be the last
    masked = sum(1 << i for i, span in enumerate(stored) if span.stop < 0)
    ends = conversion.integers([max(span.stop, 0) for span in stored])
    strides = conversion.integers([span.step for span in stored])
    conversion.set(
        step.outputs[0],
        conversion.apply("STRIDED_SLICE", [place, begins, ends, strides], extents, endMask=masked),
        order,
    )


def _every(conversion: TfliteConversion, place: int, axis: int, span: range) -> int:
    """Return every n-th place of an axis: seen as rows of n places, they are a column.

    XNNPACK has no slices in steps, and LiteRT's own take a picture of 416 x 416 apart in 1 ms (AMD EPYC, one thread).
    """
    shape = conversion.shown(place)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    rows = conversion.reshaped(place, (outer, shape[axis] // span.step, span.step * inner))
    begins = conversion.integers([0, span.start // span.step, span.start % span.step * inner])
    extents = (outer, len(span), inner)
    made = conversion.apply("SLICE", [rows, begins, conversion.integers(extents)], extents)
    return conversion.reshaped(made, (*shape[:axis], len(span), *shape[axis + 1 :]))


def _within(conversion: TfliteConversion, step: TfliteStep, numbers: NDArray[Any], size: int) -> NDArray[Any]:
    """Return places counted from the first; negative ones count from the end. Raises UnsupportedError beyond."""
    if ((numbers < -size) | (numbers >= size)).any():
        raise conversion.refuse(step.node, f"of places beyond {size}")
    return numbers % size


def _gather(conversion: TfliteConversion, step: TfliteStep) -> None:
    shape = conversion.shape(step.inputs[0])
    axis = step.attribute("axis", 0) % len(shape)
    order = conversion.order(step.inputs[0])
    numbers = conversion.constant(step.node.inputs[1])
    if numbers is None or numbers.ndim > 1:
        order = tuple(range(len(shape)))
    place = conversion.tensor(step.inputs[0], order)
    if numbers is None:
        rank = len(conversion.shape(step.inputs[1]))
        read = conversion.tensor(step.inputs[1], tuple(range(rank)))
        if conversion.network.tensors[read].dtype not in ("int32", "int64"):
            raise conversion.refuse(step.node, "by numbers that are no whole ones")
    else:
        rank = numbers.ndim
        read = conversion.network.constant("places", _within(conversion, step, numbers, shape[axis]).astype(np.int32))
    after = order
    if rank == 0:
        left = [other for other in order if other != axis]
        after = tuple(sorted(left).index(other) for other in left)
    elif rank > 1:
        after = tuple(range(len(shape) + rank - 1))
    made = conversion.new(step.outputs[0], after)
    conversion.network.add("GATHER", [place, read], [made], axis=order.index(axis))


def _gather_elements(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write whole coordinates of each number that is read: those of the other axes are known before."""
    shape, made = conversion.shape(step.inputs[0]), conversion.shape(step.node.inputs[1])
    axis = step.attribute("axis", 0) % len(shape)
    place, plain = conversion.tensor(step.inputs[0], tuple(range(len(shape)))), tuple(range(len(made)))
    numbers = conversion.constant(step.node.inputs[1])
    if numbers is not None:
        read = conversion.network.constant("places", _within(conversion, step, numbers, shape[axis]))
    else:
        read = conversion.tensor(step.inputs[1], plain)
    dtype = conversion.network.tensors[read].dtype
    if dtype not in ("int32", "int64"):
        raise conversion.refuse(step.node, "by numbers that are no whole ones")
    known = np.indices(made).astype(dtype)
    parts = [conversion.reshaped(read, (*made, 1))]
    for others, is_before in ((known[:axis], True), (known[axis + 1 :], False)):
        if len(others):
            part = conversion.network.constant("coordinates", np.ascontiguousarray(np.moveaxis(others, 0, -1)))
            parts.insert(0 if is_before else len(parts), part)
    whole = conversion.network.tensor("coordinates", (*made, len(shape)), dtype)
    conversion.network.add("CONCATENATION", parts, [whole], axis=len(made))
    conversion.network.add("GATHER_ND", [place, whole], [conversion.new(step.outputs[0], plain)])


_MIRRORS = {"reflect": "REFLECT"}


def _pad(conversion: TfliteConversion, step: TfliteStep) -> None:
    shape = conversion.shape(step.inputs[0])
    number = 0.0
    named: tuple[int, ...] = ()
    if conversion.graph.opset < _OPSET_OF_PAD_INPUTS:
        pads, number = step.attribute("pads", ()), step.attribute("value", 0.0)
    else:
        pads, named = (_integers(conversion.numbers(step.node, place)) for place in (1, 3))
        fill = conversion.numbers(step.node, 2)
        number = 0.0 if fill is None else float(fill.reshape(()))
    axes = tuple(axis % len(shape) for axis in named) or tuple(range(len(shape)))
    mode = step.attribute("mode", "constant")
    if mode not in ("constant", *_MIRRORS) or any(pad < 0 for pad in pads) or (step.is_integer and number):
        raise conversion.refuse(step.node, f"in mode {mode}, or negative")
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    table = np.zeros((len(shape), 2), np.int32)
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        table[order.index(axis)] = before, behind
    if not table.any():
        conversion.set(step.outputs[0], place, order)
        return
    made, places = conversion.new(step.outputs[0], order), [place, conversion.network.constant("padding", table)]
    if mode in _MIRRORS:
        conversion.network.add("MIRROR_PAD", places, [made], mode=_MIRRORS[mode])
    elif number:
        conversion.network.add("PADV2", [*places, conversion.number(number)], [made])
    else:
        conversion.network.add("PAD", places, [made])


def _depth_to_space(conversion: TfliteConversion, step: TfliteStep) -> None:
    size, order = step.attribute("blocksize", 1), channels_last(4)
    place = conversion.tensor(step.inputs[0], order)
    if step.attribute("mode", "DCR") == "CRD":
        channels = conversion.shown(place)[-1]
        rows = np.arange(channels, dtype=np.int32).reshape(-1, size * size).T.reshape(-1)
        place = conversion.apply(
            "GATHER", [place, conversion.network.constant("channels", rows)], conversion.shown(place), axis=3
        )
    conversion.network.add("DEPTH_TO_SPACE", [place], [conversion.new(step.outputs[0], order)], blockSize=size)


def _space_to_depth(conversion: TfliteConversion, step: TfliteStep) -> None:
    if (mode := step.attribute("mode", "DCR")) != "DCR":
        raise conversion.refuse(step.node, f"in mode {mode}")
    order = channels_last(4)
    place = conversion.tensor(step.inputs[0], order)
    made = conversion.new(step.outputs[0], order)
    conversion.network.add("SPACE_TO_DEPTH", [place], [made], blockSize=step.attribute("blocksize", 1))


def _expand(conversion: TfliteConversion, step: TfliteStep) -> None:
    before, after = conversion.shape(step.inputs[0]), conversion.shape(step.outputs[0])
    plain = tuple(range(len(before)))
    place = conversion.tensor(step.inputs[0], plain)
    order = tuple(range(len(after)))
    if math.prod(before) == math.prod(after):
        conversion.set(step.outputs[0], conversion.reshaped(place, after), order)
        return
    made = conversion.new(step.outputs[0], order)
    conversion.network.add("BROADCAST_TO", [place, conversion.integers(after)], [made])


def _tile(conversion: TfliteConversion, step: TfliteStep) -> None:
    repeats = _integers(conversion.numbers(step.node, 1))
    order = conversion.order(step.inputs[0])
    numbers = conversion.integers([repeats[axis] for axis in order])
    made = conversion.new(step.outputs[0], order)
    conversion.network.add("TILE", [conversion.tensor(step.inputs[0], order), numbers], [made])


def _top(conversion: TfliteConversion, step: TfliteStep) -> None:
    shape = conversion.shape(step.inputs[0])
    axis = step.attribute("axis", -1) % len(shape)
    if not step.attribute("largest", 1):
        raise conversion.refuse(step.node, "of the least")
    order = (*(other for other in range(len(shape)) if other != axis), axis)
    place = conversion.tensor(step.inputs[0], order)
    count = conversion.shape(step.outputs[0])[axis]
    stored = [shape[other] for other in order[:-1]] + [count]
    values, places = conversion.new(step.outputs[0], order), conversion.network.tensor("top_places", stored, "int32")
    number = conversion.network.constant("count", np.array(count, np.int32))
    conversion.network.add("TOPK_V2", [place, number], [values, places])
    wide = conversion.new(step.outputs[1], order)
    names = {"inDataType": type_name("int32"), "outDataType": type_name("int64")}
    conversion.network.add("CAST", [places], [wide], **names)


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
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Expand": _expand,
    "Tile": _tile,
    "TopK": _top,
}
OTHER_TYPES = dict.fromkeys(OPS.keys() - {"Pad", "DepthToSpace", "SpaceToDepth"}, ANY_TYPE)
_ON_ONE_GRID = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Pad"),
    *("DepthToSpace", "SpaceToDepth", "Expand", "Tile"),
)
ON_INTEGERS = dict.fromkeys(_ON_ONE_GRID, one_grid)
