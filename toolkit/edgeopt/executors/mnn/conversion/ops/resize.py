"""Pictures in another size: whole repetitions, rows and columns by their numbers, and what lies between pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors._conversion.resizing import is_repetition, nearest_places, positions_of
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute

_COORDINATES = ("half_pixel", "align_corners", "asymmetric")


def _resize(graph: MnnGraph, node: Node) -> None:
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    if len(before) != 4 or before[:2] != after[:2]:
        raise graph.refuse(node, "over other axes than height and width")
    try:
        positions = positions_of(graph.graph, node, before[2:], after[2:])
    except ValueError as error:
        raise graph.refuse(node, f"with coordinates of {error}") from error
    value, mode = node.inputs[0], attribute(node, "mode", "nearest")
    assert value is not None
    if mode == "nearest":
        graph.put(node, _nearest(graph, node, value, positions))
        return
    if mode != "linear" or attribute(node, "antialias", 0) or attribute(node, "exclude_outside", 0):
        raise graph.refuse(node, f"in mode {mode}" if mode != "linear" else "with antialias")
    for name in _COORDINATES:
        is_alike = all(
            np.allclose(np.clip(own, 0, size - 1), np.clip(_theirs(name, size, made), 0, size - 1), atol=1e-5)
            for own, size, made in zip(positions, before[2:], after[2:], strict=True)
        )
        if is_alike:
            graph.put(node, _by_size(graph, node, value, "linear", name))
            return
    raise graph.refuse(node, "with coordinates that are not those of its sizes")


def _theirs(coordinates: str, before: int, after: int) -> NDArray[np.float64]:
    """Return the places that MNN reads at."""
    x = np.arange(after, dtype=np.float64)
    if coordinates == "align_corners":
        return x * (before - 1) / max(after - 1, 1)
    return (x + 0.5) * before / after - 0.5 if coordinates == "half_pixel" else x * before / after


def _nearest(graph: MnnGraph, node: Node, value: Value, positions: list[NDArray[np.float64]]) -> Value:
    sizes = graph.shape(value)[2:]
    reads = nearest_places(graph.graph, node, positions, sizes)
    if is_repetition(reads, sizes):
        return _by_size(graph, node, value, "nearest", "asymmetric")
    for axis, read in enumerate(reads, 2):
        shape = [len(read) if i == axis else size for i, size in enumerate(graph.shape(value))]
        value = graph.add(node, "Gather", [value, read.astype(np.int64)], shape, axis=axis)
    return value


def _by_size(graph: MnnGraph, node: Node, value: Value, mode: str, coordinates: str) -> Value:
    before, shape = graph.shape(value), graph.shape(node.outputs[0])
    if before == shape:
        return value
    scales = np.array([made / size for made, size in zip(shape, before, strict=True)], np.float32)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    is_whole = all(made % size == 0 for made, size in zip(shape, before, strict=True))
    inputs = [value, None, scales] if is_whole else [value, None, None, np.array(shape, np.int64)]
    return graph.add(node, "Resize", inputs, shape, **attributes)


OPS = {"Resize": _resize, "Upsample": _resize}
