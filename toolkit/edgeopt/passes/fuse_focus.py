"""Fold a space-to-depth before a Conv into the Conv: a larger kernel with a larger stride, no copies.

YOLO's Focus cuts the image in n x n phases x[:, :, a::n, b::n] and stacks them as channels. A k x k Conv of
stride s on the stack reads the same pixels as an nk x nk Conv of stride ns and padding np on the image. With
the old input channel j being channel c of phase (a, b):   W'[o, c, n i + a, n l + b] = W[o, j, i, l].
It costs no more multiplications, and saves writing and reading the stack.

Three ways of writing it are known: Slice and Concat, SpaceToDepth, and Reshape, Transpose, Reshape.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_Phase2D = tuple[tuple[int, int], tuple[int, int]]
"""Start and step along height, then along width."""
_WHOLE: _Phase2D = ((0, 1), (0, 1))
_PERMUTATIONS = ((0, 1, 3, 5, 2, 4), (0, 3, 5, 1, 2, 4))
"""PyTorch's pixel_unshuffle (channel first), SpaceToDepth (phase first), on (N, C, H/n, n, W/n, n)."""


@dataclass(frozen=True, slots=True)
class _Stack:
    """A space-to-depth: `places[j]` is channel, row and column within the block of stacked channel j."""

    source: Value
    block: tuple[int, int]
    places: tuple[tuple[int, int, int], ...]


def fuse_focus(graph: Graph) -> int:
    """Return how many space-to-depth and Conv pairs became one Conv."""
    fused = 0
    for conv in graph.nodes("Conv"):
        weight = graph.constant(conv.inputs[1])
        if weight is None or weight.ndim != 4 or not _is_plain(conv):
            continue
        stack = _read_stack(graph, graph.sole_producer(conv.inputs[0]))
        if stack is None or len(stack.places) != weight.shape[1]:
            continue
        graph.set_input(conv, 0, stack.source)
        graph.set_input(conv, 1, _spread(weight, stack))
        _enlarge(graph, conv, weight, stack.block)
        fused += 1
    if fused:
        graph.remove_unused()
    return fused


def _is_plain(conv: Node) -> bool:
    dilations: tuple[int, ...] = attribute(conv, "dilations", ())
    mode: str = attribute(conv, "auto_pad", "NOTSET")
    return attribute(conv, "group", 1) == 1 and set(dilations) <= {1} and mode in ("NOTSET", "VALID")


def _read_stack(graph: Graph, node: Node | None) -> _Stack | None:
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    readers = {"Concat": _read_slices, "SpaceToDepth": _read_space_to_depth, "Reshape": _read_reshapes}
    reader = readers.get(node.op_type)
    return reader(graph, node) if reader else None


def _read_slices(graph: Graph, concat: Node) -> _Stack | None:
    """Read Concat(x[:, :, a::n, b::n] for every phase once, in any order)."""
    axis = attribute(concat, "axis", 1)
    ends = [_trace_slices(graph, value) for value in concat.inputs]
    sources = {id(end[0]): end[0] for end in ends if end is not None}
    if axis not in (1, -3) or len(sources) != 1 or any(end is None for end in ends):
        return None
    source = sources.popitem()[1]
    phases = [end[1] for end in ends if end is not None]
    block = phases[0][0][1], phases[0][1][1]
    starts = [(rows[0], columns[0]) for rows, columns in phases]
    steps = {(rows[1], columns[1]) for rows, columns in phases}
    # Every phase once: then all phases are of one size, so height and width are multiples of the block
    if block == (1, 1) or steps != {block} or sorted(starts) != sorted(product(*map(range, block))):
        return None
    channels = source.shape[1] if source.shape is not None and source.shape.rank() == 4 else None
    if not isinstance(channels, int):
        return None
    return _Stack(source, block, tuple((c, a, b) for a, b in starts for c in range(channels)))


def _trace_slices(graph: Graph, value: Value | None) -> tuple[Value, _Phase2D] | None:
    """Follow Slices upwards as long as they only take every n-th row or column to the end."""
    phase = _WHOLE
    while (node := graph.producer(value, "Slice")) is not None:
        own = _read_slice(graph, node)
        if own is None:
            break
        # Taking phase (s2, n2) of phase (s1, n1) of x is phase (s1 + n1 s2, n1 n2) of x
        rows, columns = ((s1 + n1 * s2, n1 * n2) for (s1, n1), (s2, n2) in zip(own, phase, strict=True))
        value, phase = node.inputs[0], (rows, columns)
    return (value, phase) if value is not None else None


def _read_slice(graph: Graph, node: Node) -> _Phase2D | None:
    """Read a Slice of opset 10 or later that runs to the end of height, width or both."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    constants = graph.constants(node.inputs[1:])
    if constants is None or len(constants) < 3 or shape is None or shape.rank() != 4:
        return None
    starts, ends, axes = (constant.tolist() for constant in constants[:3])
    steps = constants[3].tolist() if len(constants) > 3 else [1] * len(axes)
    phase = list(_WHOLE)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size, axis = shape[axis], axis % 4
        length = size if isinstance(size, int) else 2**31 - 1
        if axis < 2 or step < 1 or end < length or not 0 <= start < step:
            return None
        phase[axis - 2] = (start, step)
    return phase[0], phase[1]


def _read_space_to_depth(graph: Graph, node: Node) -> _Stack | None:
    """Read SpaceToDepth: the phase is the slow index, the channel the fast one (ONNX SpaceToDepth-13)."""
    source, block = node.inputs[0], attribute(node, "blocksize", 0)
    shape = graph.shape(source)
    if source is None or shape is None or len(shape) != 4 or block < 2:
        return None
    places = tuple((c, a, b) for a in range(block) for b in range(block) for c in range(shape[1]))
    return _Stack(source, (block, block), places)


def _read_reshapes(graph: Graph, last: Node) -> _Stack | None:
    """Read Reshape to (N, C, H/n, n, W/n, n), Transpose, Reshape to (N, C n n, H/n, W/n)."""
    transpose = graph.producer(last.inputs[0], "Transpose")
    first = graph.producer(transpose.inputs[0], "Reshape") if transpose is not None else None
    if transpose is None or first is None or first.inputs[0] is None:
        return None
    permutation: tuple[int, ...] = attribute(transpose, "perm", ())
    shapes = [graph.shape(value) for value in (first.inputs[0], first.outputs[0], last.outputs[0])]
    if permutation not in _PERMUTATIONS or any(shape is None for shape in shapes):
        return None
    (n, c, *image), blocks, stacked = (shape or () for shape in shapes)
    rows, columns = blocks[3], blocks[5]
    if blocks != (n, c, image[0] // rows, rows, image[1] // columns, columns):
        return None
    if stacked != (n, c * rows * columns, blocks[2], blocks[4]) or rows * columns < 2:
        return None
    order = np.indices((c, rows, columns)).transpose(0, *(1 + np.argsort(np.argsort(permutation[1:4]))))
    places = tuple((int(i), int(a), int(b)) for i, a, b in order.reshape(3, -1).T)
    return _Stack(first.inputs[0], (rows, columns), places)


def _spread(weight: Array, stack: _Stack) -> Array:
    out, _, height, width = weight.shape
    rows, columns = stack.block
    channels = 1 + max(place[0] for place in stack.places)
    spread = np.zeros((out, channels, height, rows, width, columns), weight.dtype)
    for j, (channel, row, column) in enumerate(stack.places):
        spread[:, channel, :, row, :, column] = weight[:, j]
    return spread.reshape(out, channels, height * rows, width * columns)


def _enlarge(graph: Graph, conv: Node, weight: Array, block: tuple[int, int]) -> None:
    rows, columns = block
    strides: tuple[int, ...] = attribute(conv, "strides", (1, 1))
    pads: tuple[int, ...] = attribute(conv, "pads", (0, 0, 0, 0))
    graph.set_attribute(conv, "kernel_shape", [weight.shape[2] * rows, weight.shape[3] * columns])
    graph.set_attribute(conv, "strides", [strides[0] * rows, strides[1] * columns])
    graph.set_attribute(conv, "pads", [pads[0] * rows, pads[1] * columns, pads[2] * rows, pads[3] * columns])


PASS = Pass(fuse_focus, Phase.FUSE)
