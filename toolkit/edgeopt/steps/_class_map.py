"""Segmentation as ONNX ops: the class of each pixel, as `tasks/segmentation.py` finds it."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.nodes import Nodes, Operand
from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.embedded import FRAME
from edgeopt.recipes.inputs.preprocess import Layout, Resize
from edgeopt.recipes.recipe import Recipe, Scores
from edgeopt.steps._frame_place import place_of

ARGMAX = "argmax"
"""The decoder: scores of classes, of which the largest wins."""
_NOTHING = 2**16 - 1
"""As in `tasks/segmentation.py`: everywhere where an output holds NaN."""


def class_map(nodes: Nodes, recipe: Recipe, output: TensorSpec, *, in_frame: bool) -> str:
    """Return (height, width) uint16 of the frame, or of the model's input.

    Scores are scaled before the largest wins, which takes a float for each class and pixel.

    Args:
        nodes: Written to.
        recipe: Bound to the model.
        output: Its scores.
        in_frame: Whether the model is fed frames.
    """
    scores = nodes.cast(output.name, "float32")
    if recipe.input.layout is Layout.NHWC:
        scores = nodes("Transpose", scores, perm=[0, 3, 1, 2])
    none = nodes("ReduceSum", nodes("Sub", scores, scores), keepdims=0)  # NaN where a score is NaN or infinite
    scaled = _in_frame(nodes, recipe, scores) if in_frame else _resized(nodes, scores, ints(*recipe.input.size))
    channels = output.shape[3 if recipe.input.layout is Layout.NHWC else 1]
    if channels == 1:
        least = np.array(0.5 if recipe.postprocess.scores is Scores.PROBABILITIES else 0.0, np.float32)
        best = nodes.cast(nodes("Greater", scaled, least), "int64")
    else:
        best = nodes("ArgMax", scaled, axis=1, keepdims=1)
    is_finite = nodes("Equal", none, np.array(0, np.float32))
    best = nodes("Where", is_finite, best, np.array(_NOTHING, np.int64))
    return nodes.cast(nodes("Squeeze", best, ints(0, 1)), "uint16")


def _in_frame(nodes: Nodes, recipe: Recipe, scores: str) -> str:
    """Scale to the frame, without the border that a letterbox adds."""
    if recipe.preprocess.resize is Resize.LETTERBOX:
        place = place_of(nodes, recipe)
        whole = _resized(nodes, scores, ints(*recipe.input.size))
        end = nodes("Add", place.offset, place.size)
        scores = nodes("Slice", whole, place.offset, end, ints(2, 3))
    return _resized(nodes, scores, nodes("Slice", nodes("Shape", FRAME), ints(0), ints(2)))


def _resized(nodes: Nodes, scores: str, size: Operand) -> str:
    sizes = nodes("Concat", nodes("Slice", nodes("Shape", scores), ints(0), ints(2)), size, axis=0)
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return nodes("Resize", scores, "", "", sizes, **how)
