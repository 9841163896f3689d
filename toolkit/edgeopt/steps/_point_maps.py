"""Maps of points as ONNX ops: the one pose of a picture, as `tasks/keypoints/decoders.py` reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.graph.nodes import Nodes
from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.heads._rows import FoundBoxes, fixed
from edgeopt.recipes.recipe import Centres, Recipe, Scores
from edgeopt.steps._beside_boxes import to_frame


@dataclass(frozen=True, slots=True)
class _Read:
    """Names of tensors."""

    places: str
    """(points, 2) float32: x and y in pixels of the model's input."""
    heights: str
    """(points,) float32: of the maps at these places."""
    decisive: str
    """Float32 of any shape: where it holds NaN there is no pose."""


def pose(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec], *, in_frame: bool) -> FoundBoxes:
    """Return the pose, or none where it is not sure enough or its heights are NaN.

    Args:
        nodes: Written to.
        recipe: Bound to the model; its decoder is one of `POINT_MAPS`.
        outputs: Of the model, in its order.
        in_frame: Whether the points, which are `more`, (n, points, 3), are led into the frame; the box never is.

    Raises:
        UnsupportedError: If a size of the maps is free.
    """
    read = POINT_MAPS[recipe.postprocess.decoder](nodes, recipe, outputs)
    is_logit = recipe.postprocess.scores is Scores.LOGITS
    least, most = (np.array(limit, np.float32) for limit in (0, 1))
    sure = nodes("Sigmoid", read.heights) if is_logit else nodes("Clip", read.heights, least, most)
    score = nodes("ReduceMean", sure, keepdims=1)
    damaged = nodes("ReduceMax", nodes.cast(nodes("IsNaN", read.decisive), "float32"), keepdims=0)
    is_sure = nodes("Greater", score, floats(recipe.postprocess.score_threshold))
    kept = nodes.positions(nodes("And", is_sure, nodes("Less", damaged, floats(0.5))))
    box = nodes("Concat", nodes.smallest(read.places, 0), nodes.largest(read.places, 0), axis=0)
    places = to_frame(nodes, read.places) if in_frame else read.places
    points = nodes("Concat", places, nodes("Unsqueeze", sure, ints(1)), axis=1)
    boxes, whole = (nodes("Gather", nodes("Unsqueeze", name, ints(0)), kept, axis=0) for name in (box, points))
    return FoundBoxes(boxes, nodes("Gather", score, kept), nodes("Mul", kept, ints(0)), 1, whole)


def _heatmaps(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> _Read:
    """Read a map a point: its highest place, moved a quarter of a cell to the higher neighbour.

    A map that holds NaN or infinity is read at its first place.
    """
    count, rows, columns = (fixed(outputs[0], i) for i in (1, 2, 3))
    flat = nodes("Reshape", nodes.cast(outputs[0].name, "float32"), ints(count, rows * columns))
    none = nodes("ReduceSum", nodes("Sub", flat, flat), ints(1), keepdims=1)  # NaN where a number is NaN or infinite
    best = nodes("Where", nodes("Equal", none, floats(0.0)), nodes("ArgMax", flat, axis=1, keepdims=1), ints(0))
    cell = nodes("Concat", nodes("Mod", best, ints(columns)), nodes("Div", best, ints(columns)), axis=1)
    apart = nodes("And", nodes("Greater", cell, ints(0)), nodes("Less", cell, ints(columns - 1, rows - 1)))
    inside = nodes("And", nodes.columns(apart, 0, 1), nodes.columns(apart, 1, 2))
    steps = ints(1, columns)
    after = nodes("GatherElements", flat, nodes("Min", nodes("Add", best, steps), ints(rows * columns - 1)), axis=1)
    before = nodes("GatherElements", flat, nodes("Max", nodes("Sub", best, steps), ints(0)), axis=1)
    quarter = nodes("Mul", nodes("Sign", nodes("Sub", after, before)), floats(0.25))
    places = nodes("Add", nodes.cast(cell, "float32"), nodes("Where", inside, quarter, floats(0.0)))
    if recipe.postprocess.centres is Centres.MIDDLE:
        places = nodes("Add", places, floats(0.5))
    high, wide = recipe.input.size
    heights = nodes("Squeeze", nodes("GatherElements", flat, best, axis=1), ints(1))
    return _Read(nodes("Mul", places, floats(wide / columns, high / rows)), heights, heights)


def _simcc(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> _Read:
    """Read columns and lines: the highest place of each; a point is as sure as the lesser of its two heights."""
    flat = [nodes("Squeeze", nodes.cast(spec.name, "float32"), ints(0)) for spec in outputs]
    places, heights = [], []
    for name, output, side in zip(flat, outputs, reversed(recipe.input.size), strict=True):
        count = fixed(output, 2)
        pixels = (np.arange(count) * (side / count)).astype(np.float32).reshape(-1, 1)
        places.append(nodes("Gather", pixels, nodes("ArgMax", name, axis=1, keepdims=0), axis=0))
        heights.append(nodes.largest(name, 1))
    return _Read(nodes("Concat", *places, axis=1), nodes("Min", *heights), nodes("Concat", *flat, axis=1))


POINT_MAPS: dict[str, Callable[[Nodes, Recipe, Sequence[TensorSpec]], _Read]] = {
    "heatmaps": _heatmaps,
    "simcc": _simcc,
}
