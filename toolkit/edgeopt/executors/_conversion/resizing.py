"""Where the pixels of a Resize are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, attribute


def positions_of(graph: Graph, node: Node, before: Sequence[int], after: Sequence[int]) -> list[NDArray[np.float64]]:
    """Return the place in the picture at which each row and each column of the result is read.

    Args:
        graph: Of the node; its opset decides the defaults.
        node: A Resize or an Upsample whose scales are constant or left out.
        before: Height and width of the picture.
        after: Height and width of the result.

    Raises:
        ValueError: If the mode of coordinates is another; the message is its name.
    """
    default = "asymmetric" if graph.opset < 11 else "half_pixel"
    mode = attribute(node, "coordinate_transformation_mode", default)
    factors = _factors(graph, node, before, after)
    return [_places(mode, *row) for row in zip(before, after, factors, strict=True)]


def nearest_places(
    graph: Graph, node: Node, positions: Sequence[NDArray[np.float64]], sizes: Sequence[int]
) -> list[NDArray[np.int32]]:
    """Return the row and the column that each pixel of a Resize in mode nearest is a copy of."""
    rounding = attribute(node, "nearest_mode", "floor" if graph.opset < 11 else "round_prefer_floor")
    reads = []
    for position, size in zip(positions, sizes, strict=True):
        rounded = {
            "floor": np.floor(position),
            "ceil": np.ceil(position),
            "round_prefer_ceil": np.floor(position + 0.5),
        }.get(rounding, np.ceil(position - 0.5))
        reads.append(np.clip(rounded, 0, size - 1).astype(np.int32))
    return reads


def is_repetition(reads: Sequence[NDArray[np.int32]], sizes: Sequence[int]) -> bool:
    """Whether every row and column is repeated equally often."""
    return all(
        len(read) % size == 0 and (read == np.arange(len(read)) // (len(read) // size)).all()
        for read, size in zip(reads, sizes, strict=True)
    )


def _factors(graph: Graph, node: Node, before: Sequence[int], after: Sequence[int]) -> tuple[float, float]:
    """Return the scales of height and width as the node says them, which positions are computed with."""
    place = 1 if node.op_type == "Upsample" or graph.opset < 11 else 2
    if graph.opset < 9:
        scales = np.array(attribute(node, "scales", ()), np.float32)
    else:
        value = node.inputs[place] if place < len(node.inputs) else None
        constant = graph.constant(value)
        scales = np.zeros(0, np.float32) if constant is None else constant
    if scales.size == 4:
        return float(scales[2]), float(scales[3])
    return after[0] / before[0], after[1] / before[1]


def _places(mode: str, before: int, after: int, factor: float) -> NDArray[np.float64]:
    x = np.arange(after, dtype=np.float64)
    if mode == "asymmetric":
        return x / factor
    if mode == "align_corners":
        return x * (before - 1) / max(after - 1, 1)
    if mode == "half_pixel_symmetric":
        shift = (1 - after / (factor * before)) * before / 2
        return shift + (x + 0.5) / factor - 0.5
    if mode == "pytorch_half_pixel" and after == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / factor - 0.5
    raise ValueError(mode)
