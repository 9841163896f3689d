"""Raw outputs to boxes and what their masks are made of, one function a decoder.

As the decoders of detection, but the mask of a candidate is computed where it is asked for: after suppression, inside
its box, in the frame's pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.heads import yolov8
from edgeopt.recipes.heads._candidates import MOST_CLASSES, Array, Candidates, least, scores_of, to_pixels
from edgeopt.recipes.outputs.output_shapes import split_prototypes
from edgeopt.recipes.recipe import Postprocess
from edgeopt.recipes.scoring.run_lengths import Runs
from edgeopt.tasks.instances.masks import Canvas, sampled


class Masks(Protocol):
    """The source of the masks of candidates."""

    def runs(self, row: int, box: Array, canvas: Canvas) -> Runs:
        """Return the mask of the candidate of this row, whose box in the frame is given."""
        ...


@dataclass(frozen=True, slots=True)
class Prototypes:
    """Planes, and how much of each a candidate is."""

    coefficients: Array
    """(n, planes)"""
    planes: Array
    """(planes, height, width): the whole input."""

    def runs(self, row: int, box: Array, canvas: Canvas) -> Runs:
        """Return where the sum is above zero, inside the box.

        Source: Ultralytics, `process_mask_native`.
        """
        columns, rows = canvas.covered(box)
        if not len(columns) or not len(rows) or not np.isfinite(self.coefficients[row]).all():
            return canvas.runs(np.zeros((0, 0), bool), columns, rows)
        x, y = canvas.places(columns, rows)
        high, wide = self.planes.shape[1:]
        x, y = x * (wide / canvas.size[1]), y * (high / canvas.size[0])
        left, right = _needed(x, wide)
        top, bottom = _needed(y, high)
        part = np.tensordot(self.coefficients[row], self.planes[:, top:bottom, left:right], 1)
        return canvas.runs(sampled(part, x - left, y - top) > 0, columns, rows)

    def logits(self, rows: NDArray[np.intp], places: NDArray[np.intp]) -> Array:
        """Return (rows, places) the sums of some candidates at some cells."""
        flat = self.planes.reshape(len(self.planes), -1)
        return self.coefficients[rows] @ flat[:, places]


@dataclass(frozen=True, slots=True)
class Painted:
    """A mask for each candidate, of the whole input or of its box, probabilities."""

    planes: Array
    """(n, height, width)"""

    def runs(self, row: int, box: Array, canvas: Canvas) -> Runs:
        """Return where it is above one half. A plane of another size than the input is that of its box."""
        plane = self.planes[row].astype(np.float32)
        high, wide = plane.shape
        if (high, wide) == canvas.size:
            columns, rows = np.arange(canvas.frame[1]), np.arange(canvas.frame[0])
            return canvas.runs(sampled(plane, *canvas.places(columns, rows)) > 0.5, columns, rows)
        columns, rows = canvas.covered(box)
        if not len(columns) or not len(rows):
            return canvas.runs(np.zeros((0, 0), bool), columns, rows)
        x, y = (columns + 0.5 - box[0]) / (box[2] - box[0]) * wide, (rows + 0.5 - box[1]) / (box[3] - box[1]) * high
        return canvas.runs(sampled(plane, x, y) > 0.5, columns, rows)


def _needed(places: NDArray[Any], most: int) -> tuple[int, int]:
    """Return the cells between which these places lie."""
    low, high = np.clip(np.array([places[0], places[-1]]) - 0.5, 0, most - 1)
    return int(np.floor(low)), min(int(np.floor(high)) + 2, most)


Decoder = Callable[[Sequence[Array], Postprocess, tuple[int, int], float], tuple[Candidates, Masks]]
"""(outputs in the model's order, numbers, (height, width) of the input, score threshold)"""


def yolov8_segment(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> tuple[Candidates, Masks]:
    """Decode (1, 4 + classes + planes, n) and prototypes (1, planes, h, w). YOLOv8-seg, YOLO11-seg.

    Source: Ultralytics, `Segment.forward`.
    """
    pair = split_prototypes(outputs)
    assert pair is not None
    rows, planes = pair[0], pair[1][0]
    split = rows.shape[1] - len(planes)
    best = rows[0, 4:split].max(axis=0)
    kept = np.flatnonzero(best > least(numbers, threshold))
    boxes = yolov8.HEAD.decode([rows[:, :split]], numbers, size, threshold)
    return boxes, Prototypes(rows[0, split:, kept], planes)


def end_to_end_segment(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> tuple[Candidates, Masks]:
    """Decode (1, n, 6 + planes), corners, score and class first, and prototypes; nothing is to suppress. YOLO26-seg.

    Source: Ultralytics, `Segment26.forward` and `Segment.postprocess`.
    """
    pair = split_prototypes(outputs)
    assert pair is not None
    rows, planes = pair[0][0], pair[1][0]
    is_class = (rows[:, 5] > -0.5) & (rows[:, 5] < MOST_CLASSES)
    rows = rows[(rows[:, 4] > least(numbers, threshold)) & is_class]
    boxes = np.ascontiguousarray(to_pixels(rows[:, :4], numbers, size))
    classes = rows[:, 5].round().astype(np.int64)
    return (boxes, scores_of(rows[:, 4], numbers), classes), Prototypes(rows[:, 6:], planes)


def instances(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> tuple[Candidates, Masks]:
    """Decode boxes (n, 4), classes (n,), scores (n,) and masks (n, 1, h, w), as Mask R-CNN gives them.

    Masks are probabilities, of the whole input or, at any other size, of the box. Whole numbers are the classes; where
    class 0 is `background` the first class is 1.

    Source: torchvision, `paste_masks_in_image`; maskrcnn-benchmark, `Masker`.
    """
    boxes = next(output for output in outputs if output.ndim == 2 and output.shape[1] == 4)
    masks = next(output for output in outputs if output.ndim > 2)
    flat: list[NDArray[Any]] = [output for output in outputs if output.ndim == 1]
    labels, scores = sorted(flat, key=lambda array: array.dtype.kind == "f")
    classes = np.rint(labels).astype(np.int64) - int(numbers.background)
    kept = np.flatnonzero((scores > threshold) & (classes >= 0))
    result = to_pixels(boxes[kept].astype(np.float32), numbers, size)
    planes = masks.reshape(len(masks), *masks.shape[-2:])[kept]
    return (result, scores[kept].astype(np.float32), classes[kept]), Painted(planes)


DECODERS: dict[str, Decoder] = {one.__name__: one for one in (yolov8_segment, end_to_end_segment, instances)}
"""Decoders by the name that a recipe writes in `decoder`."""

NEEDS_NO_SUPPRESSION = frozenset({"end_to_end_segment", "instances"})


def class_count(decoder: str, shapes: Sequence[Sequence[Any]]) -> int | None:
    """Return how many classes outputs of these shapes can tell apart; None where the shape does not say."""
    if decoder != "yolov8_segment":
        return None
    rows, planes = sorted(shapes, key=len)
    return rows[1] - 4 - planes[1] if isinstance(rows[1], int) and isinstance(planes[1], int) else None
