"""Outputs of graphs that suppress boxes themselves: which is which, and whether they have the shapes of such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import Postprocess, Recipe

Shape = tuple[int | str | None, ...]
"""None or a name is a free dimension, which fits any size."""
_HasShape = TypeVar("_HasShape", TensorSpec, NDArray[np.float32])


def may_be(size: int | str | None, wanted: int | str | None) -> bool:
    """Return whether a size is the wanted one; a free one may be."""
    return size == wanted or not isinstance(size, int) or not isinstance(wanted, int)


def why_no_detections(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    """Return the shapes of boxes, classes and scores in outputs of their own; empty where the outputs have them."""
    del numbers, size
    wanted = "boxes n x 4, classes n and scores n, or all three behind a batch of 1"
    most = max((len(one) for one in shapes), default=0)
    boxes = [one for one in shapes if len(one) == most and one[-1:] == (4,)]
    if len(shapes) not in (3, 4) or most not in (2, 3) or len(boxes) != 1:
        return wanted
    rows = [one for one in shapes if len(one) == most - 1]
    if len(rows) == 3 and (counts := [one for one in rows if may_be(one[-1], 1)]):
        rows.remove(counts[0])  # how many rows there are
    fits = len(rows) == 2 and all(may_be(one[-1], boxes[0][-2]) for one in rows)
    return "" if fits and (most == 2 or may_be(boxes[0][0], 1)) else wanted


def boxes_first(outputs: Sequence[_HasShape]) -> list[_HasShape]:
    """Return boxes, (n, 4), and the outputs of a number a box, in the model's order; all with a batch or not."""
    most: int = max(len(one.shape) for one in outputs)
    boxes = [one for one in outputs if len(one.shape) == most and one.shape[-1] == 4][:1]
    return boxes + [one for one in outputs if len(one.shape) == most - 1]


def scores_last(recipe: Recipe, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs in their order; of a detector whose classes are no whole numbers what is called scores last.

    The decoders of such outputs take classes before scores, as TensorFlow writes them; TensorRT's plugin BatchedNMS
    has them the other way round.
    """
    if recipe.postprocess.decoder not in ("detections", "detections_yx"):
        return [*outputs]
    return sorted(outputs, key=lambda output: any(word in output.name.lower() for word in ("score", "conf", "prob")))


def boxes_and_classes(outputs: Sequence[_HasShape]) -> tuple[_HasShape, _HasShape]:
    """Return boxes with a score behind, (n, 5), and their classes, (n,), both with a batch or not."""
    boxes = next(one for one in outputs if len(one.shape) in (2, 3) and one.shape[-1] == 5)
    return boxes, next(one for one in outputs if len(one.shape) == len(boxes.shape) - 1)


def why_no_scored_boxes(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    """Return the shapes of boxes with a score behind and of their classes; empty where the outputs have them."""
    del numbers, size
    wanted = "boxes with a score n x 5 and classes n, both behind a batch of 1 or not"
    wide = [one for one in shapes if len(one) in (2, 3) and one[-1] == 5]
    if len(wide) != 1 or len(shapes) not in (2, 3):
        return wanted
    before, labels = wide[0][:-1], [one for one in shapes if len(one) == len(wide[0]) - 1]
    masks = [one for one in shapes if len(one) > len(before) and one is not wide[0]]
    fits = len(labels) == 1 and len(masks) == len(shapes) - 2 and may_be(labels[0][-1], before[-1])
    return "" if fits and (len(before) == 1 or may_be(before[0], 1)) else wanted
