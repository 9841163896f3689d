"""Raw outputs to poses, one function a decoder.

Every decoder returns candidates above the score threshold, in pixels of the model's input; the points of each,
(n, points, 3), hold x, y and how sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.heads._candidates import MOST_CLASSES, Array, corners, least, probabilities, scores_of, to_pixels
from edgeopt.recipes.recipe import Boxes, Centres, Postprocess, Scores
from edgeopt.recipes.scoring.keypoints import Keypoints
from edgeopt.tasks.keypoints.poses import Poses, with_boxes


@dataclass(frozen=True, slots=True)
class Reading:
    """The settings that decoders read by."""

    numbers: Postprocess
    keypoints: Keypoints
    size: tuple[int, int]
    """Height and width of the input."""
    threshold: float
    """Threshold of scores."""


Decoder = Callable[[Sequence[Array], Reading], Poses]
"""Outputs in the model's order."""


def yolov8_pose(outputs: Sequence[Array], reading: Reading) -> Poses:
    """Decode (1, 4 + classes + points * values, n): centre and size, class scores, points. YOLOv8-pose, YOLO11-pose.

    Source: Ultralytics, `Pose.forward` and `kpts_decode`.
    """
    rows, numbers, first = outputs[0][0], reading.numbers, -reading.keypoints.numbers
    best = rows[4:first].max(axis=0)
    kept = np.flatnonzero(best > least(numbers, reading.threshold))
    array = to_pixels(rows[:4, kept].T, numbers, reading.size)
    classes = rows[4:first, kept].argmax(axis=0).astype(np.int64)
    boxes = corners(array[:, :2], array[:, 2:4])
    return Poses(_points(rows[first:, kept].T, reading), boxes, scores_of(best[kept], numbers), classes)


def end_to_end_pose(outputs: Sequence[Array], reading: Reading) -> Poses:
    """Decode (1, n, 6 + points * values): corners, score, class, points; nothing is left to suppress. YOLO26-pose.

    Source: Ultralytics, `Pose26.postprocess`.
    """
    rows, numbers = outputs[0][0], reading.numbers
    is_class = (rows[:, 5] > -0.5) & (rows[:, 5] < MOST_CLASSES)
    rows = rows[(rows[:, 4] > least(numbers, reading.threshold)) & is_class]
    boxes = np.ascontiguousarray(to_pixels(rows[:, :4], numbers, reading.size))
    classes = rows[:, 5].round().astype(np.int64)
    return Poses(_points(rows[:, 6:], reading), boxes, scores_of(rows[:, 4], numbers), classes)


def _points(flat: Array, reading: Reading) -> Array:
    """Return (n, points, 3) of rows of points; those without a third number are sure."""
    points = flat.reshape(len(flat), reading.keypoints.points, reading.keypoints.values or 3)
    places = points[..., :2]
    if reading.numbers.boxes is Boxes.RELATIVE:
        places = places * np.array([reading.size[1], reading.size[0]], np.float32)
    sure = points[..., 2:3] if points.shape[2] > 2 else np.ones_like(points[..., :1])
    return np.concatenate([places, sure], axis=2).astype(np.float32)


def heatmaps(outputs: Sequence[Array], reading: Reading) -> Poses:
    """Decode (1, points, h, w), a map a point, to the one pose of the picture. SimpleBaseline, HRNet, ViTPose.

    The highest place of a map, moved a quarter of a cell to the higher neighbour; a cell's place is its corner unless
    `centres` says middle. How sure a point is is its height. The pose is as sure as the mean of its points.

    Source: Xiao et al. 2018, SimpleBaseline, `get_final_preds` and `transform_preds`.
    """
    maps = outputs[0][0].astype(np.float32)
    count, rows, columns = maps.shape
    flat = maps.reshape(count, -1)
    best = np.where(np.isfinite(flat).all(axis=1), flat.argmax(axis=1), 0)
    y, x = np.divmod(best, columns)
    every = np.arange(count)
    places = np.stack([x, y], axis=1).astype(np.float32)
    inside = (x > 0) & (x < columns - 1) & (y > 0) & (y < rows - 1)
    value, low = every[inside], (y[inside], x[inside])
    slope = np.stack(
        [
            maps[value, low[0], low[1] + 1] - maps[value, low[0], low[1] - 1],
            maps[value, low[0] + 1, low[1]] - maps[value, low[0] - 1, low[1]],
        ],
        axis=1,
    )
    places[inside] += np.sign(slope) * np.float32(0.25)
    if reading.numbers.centres is Centres.MIDDLE:
        places += np.float32(0.5)
    places *= np.array([reading.size[1] / columns, reading.size[0] / rows], np.float32)
    return _one_pose(places, flat[every, best], reading)


def simcc(outputs: Sequence[Array], reading: Reading) -> Poses:
    """Decode columns (1, points, w * k) and lines (1, points, h * k): the highest of each. RTMPose.

    Source: MMPose, `get_simcc_maximum`: a point is as sure as the lesser of its two heights.
    """
    wide, high = (output[0].astype(np.float32) for output in outputs)
    ends = [value.max(axis=1) for value in (wide, high)]
    scale = [reading.size[1] / wide.shape[1], reading.size[0] / high.shape[1]]
    places = np.stack([value.argmax(axis=1) * s for value, s in zip((wide, high), scale, strict=True)], axis=1)
    return _one_pose(places.astype(np.float32), np.minimum(*ends), reading)


def _one_pose(places: Array, heights: Array, reading: Reading) -> Poses:
    """Return the pose of a picture that shows one thing, or none where it is not sure enough."""
    is_logit = reading.numbers.scores is Scores.LOGITS
    sure = probabilities(heights) if is_logit else np.clip(heights, 0, 1)
    score = sure.mean(keepdims=True) if len(sure) else np.zeros(1, np.float32)
    pose = with_boxes(np.concatenate([places, sure[:, None]], axis=1)[None].astype(np.float32), score)
    return pose if score[0] > reading.threshold or reading.threshold < 0 else with_boxes(pose.points[:0], score[:0])


def poses(outputs: Sequence[Array], reading: Reading) -> Poses:
    """Decode boxes (n, 4), classes (n,), scores (n,) and points (n, points, 3) in pixels. Keypoint R-CNN.

    Whole numbers are the classes; where class 0 is `background` the first class is 1. The third number of a point
    says whether it is there.

    Source: torchvision, `RoIHeads.forward` and `keypoints_to_heatmap`.
    """
    numbers = reading.numbers
    boxes = next(output for output in outputs if output.ndim == 2 and output.shape[1] == 4)
    points = next(output for output in outputs if output.ndim == 3)
    flat: list[NDArray[Any]] = [output for output in outputs if output.ndim == 1]
    labels, scores = sorted(flat, key=lambda array: array.dtype.kind == "f")
    classes = np.rint(labels).astype(np.int64) - int(numbers.background)
    kept = np.flatnonzero((scores > reading.threshold) & (classes >= 0))
    result = to_pixels(boxes[kept].astype(np.float32), numbers, reading.size)
    return Poses(points[kept].astype(np.float32), result, scores[kept].astype(np.float32), classes[kept])


DECODERS: dict[str, Decoder] = {one.__name__: one for one in (yolov8_pose, end_to_end_pose, heatmaps, simcc, poses)}
"""Decoders by the name that a recipe writes in `decoder`."""

OF_ROWS = frozenset({"yolov8_pose"})
"""Decoders whose poses are to be suppressed."""
OF_MAPS = frozenset({"heatmaps", "simcc"})
"""Decoders of pictures that show one thing: each number of the outputs speaks of a place."""


def class_count(decoder: str, shapes: Sequence[Sequence[object]], keypoints: Keypoints) -> int | None:
    """Return how many classes outputs of these shapes can tell apart; None where the shape does not say."""
    width = shapes[0][1] if len(shapes[0]) > 1 else None
    return width - 4 - keypoints.numbers if decoder == "yolov8_pose" and isinstance(width, int) else None
