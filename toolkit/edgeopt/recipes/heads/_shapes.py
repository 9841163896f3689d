"""Helpers of heads for shapes of outputs: cells of grids, rows, scores beside boxes, points of faces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import Boxes, Postprocess

Shape = tuple[int | str | None, ...]
"""None or a name is a free dimension, which fits any size."""
STRIDES = (8, 16, 32)
"""Used where a detector's recipe writes none."""
LANDMARKS = 10
"""Numbers of five points."""
ONE_EACH = "1 x boxes x (5 + classes)"
_USUAL_STRIDES = (STRIDES, (8, 16, 32, 64), (4, 8, 16, 32))
_HasShape = TypeVar("_HasShape", TensorSpec, NDArray[np.float32])


def count_cells(size: Sequence[int], strides: Sequence[int], *, rounds_up: bool = False) -> int:
    """Return how many cells the grids of an input of height and width have; whole ones unless it rounds up."""
    return sum(-(-size[0] // s) * -(-size[1] // s) if rounds_up else (size[0] // s) * (size[1] // s) for s in strides)


def may_be(size: int | str | None, wanted: int | str | None) -> bool:
    """Return whether a size is the wanted one; a free one may be."""
    return size == wanted or not isinstance(size, int) or not isinstance(wanted, int)


def at_least(size: int | str | None, least: int) -> bool:
    """Return whether a size is so large; a free one may be."""
    return not isinstance(size, int) or size >= least


def are_rows(shapes: Sequence[Shape], least: int = 0, axis: int = 2) -> bool:
    """Return whether the first output is (1, n, m), and so large along an axis."""
    return len(shapes[0]) == 3 and may_be(shapes[0][0], 1) and at_least(shapes[0][axis], least)


def why_other_cells(
    count: int | str | None,
    numbers: Postprocess,
    size: Sequence[int],
    *,
    most_anchors: int = 1,
    has_usual_strides: bool = True,
) -> str:
    """Return how many boxes a grid has; empty where it has `count`.

    Args:
        count: Of boxes.
        numbers: With strides; where boxes do not count in cells the usual ones are tried too.
        size: Height and width of the input, where they are known.
        most_anchors: Boxes a cell may have.
        has_usual_strides: False: the recipe's strides alone.
    """
    strides = numbers.strides or STRIDES
    if not size or not isinstance(count, int):
        return ""
    others = _USUAL_STRIDES if has_usual_strides and numbers.boxes is not Boxes.CELLS else ()
    counts = [count_cells(size, each) for each in (strides, *others)]
    if any(count in range(cells, most_anchors * cells + 1, cells) for cells in counts if cells):
        return ""
    text = ", ".join(map(str, strides))
    return f"one box for each of {count_cells(size, strides)} cells (strides {text}, input {size[0]}x{size[1]})"


def why_no_scores_and_corners(shapes: Sequence[Shape], *, background: bool) -> str:
    """Return the shapes of scores and boxes side by side; empty where the first two outputs have them."""
    wanted = "scores 1 x boxes x classes and corners 1 x boxes x 4"
    if len(shapes) < 2 or not are_rows(shapes[:1]) or not are_rows(shapes[1:2]):
        return wanted
    scores, corners = sorted(shapes[:2], key=lambda shape: shape[2] == 4)
    fits = may_be(corners[2], 4) and may_be(scores[1], corners[1]) and at_least(scores[2], 1 + int(background))
    return "" if fits else wanted


def classes_beside_boxes(shapes: Sequence[Shape]) -> int | None:
    """Return the width of scores beside boxes, in either order; None where there are not two outputs."""
    width = next((shape[-1] for shape in shapes if shape[-1] != 4), 4)
    return width if len(shapes) == 2 and isinstance(width, int) else None


def classes_of_rows(shapes: Sequence[Shape]) -> int | None:
    """Return how many classes rows have behind a box and its objectness."""
    width = shapes[0][-1]
    return width - 5 if isinstance(width, int) and len(shapes[0]) != 4 else None


def without_landmarks(outputs: Sequence[_HasShape]) -> list[_HasShape]:
    """Return two of three outputs: five points of a face, (1, n, 10), are left out."""
    points = landmarks_of(outputs)
    return [output for output in outputs if output is not points]


def landmarks_of(outputs: Sequence[_HasShape]) -> _HasShape | None:
    """Return the last of three outputs that holds five points of a face, (1, n, 10); None where none does."""
    points = [output for output in outputs if output.shape[-1:] == (LANDMARKS,)]
    return points[-1] if len(outputs) == 3 and points else None
