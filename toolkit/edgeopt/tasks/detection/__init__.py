"""Detection: boxes with classes. Frame to tensor, raw heads to boxes by decoder and NMS, AP by pycocotools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import SHOWN_ABOVE, class_colour, draw_box, draw_point, scaled
from edgeopt.recipes.embedded import BOXES, CLASSES, POINTS, SCORES
from edgeopt.recipes.heads import find_head
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.outputs.learned import LearnedHead
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import MatchTable
from edgeopt.tasks._coco import category_ids, image_ids, matched_tables
from edgeopt.tasks._json_numbers import pixels_as_json, point_as_json, score_as_json
from edgeopt.tasks._losses import worst_error
from edgeopt.tasks._places import spread_over
from edgeopt.tasks._things import Things, outputs_of, require_boxes
from edgeopt.tasks.detection.boxes import Detections, lost_share, matched_boxes
from edgeopt.tasks.detection.suppression import keep_best


class Detection(Things):
    """One detector: its pictures, its boxes, their score."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's outputs, or their classes are not as many as the names.
        """
        self._head = find_head(recipe.postprocess.decoder)
        self._require_read(recipe, outputs, self._head.count_classes)
        super().__init__(recipe, inputs, self._head.order(outputs), evaluating)
        self._given = tuple(outputs_of(outputs))

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """The head's account of the outputs; nothing where it has no columns to learn, or a shape is unknown."""
        learned = self._head.learned
        if self._is_read or learned is None or any(output.is_unranked for output in self._given):
            return ()
        return learned(self._numbers, self._given, self._size)

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Detections:
        """Return the boxes in the frame's pixels, best first, without those that are NaN or infinite.

        Raises:
            UnsupportedError: If the outputs of this frame have shapes that the decoder cannot read.
        """
        if self._is_read:
            points = geometry.points_to_frame(outputs[POINTS]) if POINTS in outputs else None
            return Detections(geometry.to_frame(outputs[BOXES]), outputs[SCORES], outputs[CLASSES], points)
        geometry, ordered = self._geometry(outputs, geometry), self._ordered(outputs)
        with np.errstate(over="ignore", invalid="ignore"):
            boxes, scores, classes = self._head.decode(ordered, self._numbers, self._size, self._score)
            read_points = self._head.points
            points = read_points(ordered, self._numbers, self._size, self._score) if read_points else None
        finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
        if points is not None:
            finite &= np.isfinite(points).all(axis=(1, 2))
        if not finite.all():
            boxes, scores, classes = boxes[finite], scores[finite], classes[finite]
            points = None if points is None else points[finite]
        suppresses = not self._head.is_suppressed
        kept = keep_best(boxes, scores, classes, self._iou, self._most, suppresses=suppresses)
        shown = None if points is None else geometry.points_to_frame(points[kept])
        return Detections(geometry.to_frame(boxes[kept]), scores[kept], classes[kept], shown)

    def as_text(self, answer: Detections) -> str:
        """Return classes with score and place, and points where the model gives them."""
        rows = zip(answer.boxes, answer.scores, answer.classes.tolist(), self._told_points(answer), strict=True)
        result = [
            f"{self._recipe.class_name(label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)}"
            + (f" ({', '.join(f'{name} {x:.0f}, {y:.0f}' for name, x, y in points)})" if points else "")
            for box, score, label, points in rows
        ]
        return "; ".join(result) or "nothing"

    def as_json(self, answer: Detections) -> dict[str, Any]:
        """Return `detections`, best first, each with `box` (left, top, right, bottom in pixels), `score`, `class`.

        Where the model gives points also `points`, each with `name`, `x` and `y`.
        """
        answers = answer.boxes.tolist(), answer.scores.tolist(), answer.classes.tolist(), self._told_points(answer)
        return {
            "detections": [
                {
                    "box": pixels_as_json(box),
                    "score": score_as_json(score),
                    "class": self._recipe.class_name(label),
                    **_as_points(points),
                }
                for box, score, label, points in zip(*answers, strict=True)
            ]
        }

    def _told_points(self, answer: Detections) -> list[list[tuple[str, float, float]]]:
        """Return the points of each box, by name; none where the model gives none."""
        if answer.points is None:
            return [[] for _ in range(len(answer))]
        names = [self._recipe.keypoints.name(i) for i in range(answer.points.shape[1])]
        return [[(name, x, y) for name, (x, y) in zip(names, value, strict=True)] for value in answer.points.tolist()]

    def draw(self, frame: Frame, answer: Detections, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its boxes, those above `SHOWN_ABOVE`, and their points."""
        drawn, scale = scaled(frame, height), height / frame.shape[0]
        for box, score, label in zip(answer.boxes, answer.scores, answer.classes.tolist(), strict=True):
            if score >= SHOWN_ABOVE:
                text = f"{self._recipe.class_name(label)} {score:.2f}"
                draw_box(drawn, (box * scale).tolist(), text, class_colour(label))
        if answer.points is not None:
            for points in answer.points[answer.scores >= SHOWN_ABOVE]:
                for i, point in enumerate(points):
                    draw_point(drawn, (point * scale).tolist(), class_colour(i + 1))
        return drawn

    def match(self, answers: Sequence[Detections], labels: Labels) -> list[MatchTable]:
        """Return the boxes matched with the true ones, by category; no table where nothing was found."""
        known = require_boxes(labels, "boxes")
        category, ids = category_ids(known, self._recipe.class_names), image_ids(known)
        results = [
            {"image_id": identifier, "category_id": category[int(label)], "bbox": _corner_and_size(box), "score": score}
            for identifier, answer in zip(ids, answers, strict=True)
            for box, score, label in zip(answer.boxes, answer.scores.tolist(), answer.classes, strict=True)
            if int(label) in category
        ]
        return matched_tables(known.coco, results, ids, "bbox", category.values())

    def _matched(self, detections: Detections, reference: Detections) -> tuple[float, float]:
        return matched_boxes(detections, reference)

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return what is lost of the boxes before suppression, each weighted by its squared score."""
        if self._is_read:
            return worst_error(outputs, reference)
        if not all(np.isfinite(output[name]).all() for output in outputs for name in self._outputs):
            return math.inf
        lost = [lost_share(self._all_boxes(a), self._all_boxes(b)) for a, b in zip(outputs, reference, strict=True)]
        whole = math.fsum(number for _, number in lost)
        return math.fsum(number for number, _ in lost) / whole if whole > 0 else worst_error(outputs, reference)

    def places(self, outputs: Tensors) -> NDArray[np.float64]:
        """Return the map of squared scores, each spread over its box, as `loss` counts them; see `tasks._places`."""
        if self._is_read:
            return spread_over(outputs[BOXES], np.square(outputs[SCORES].astype(np.float64)), self._size)
        boxes = self._all_boxes(outputs)
        return spread_over(boxes.boxes, np.square(boxes.scores.astype(np.float64)), self._size)

    def _all_boxes(self, outputs: Tensors) -> Detections:
        """Return the box of each place of the heads, whatever its score, in pixels of the input."""
        with np.errstate(over="ignore", invalid="ignore"):
            raw = [outputs[name] for name in self._outputs]
            return Detections(*self._head.decode(raw, self._numbers, self._size, -1.0))


def _as_points(points: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    if not points:
        return {}
    return {"points": [{"name": name, **point_as_json(x, y)} for name, x, y in points]}


def _corner_and_size(box: Any) -> list[float]:
    left, top, right, bottom = (float(value) for value in box)
    return [left, top, right - left, bottom - top]


TASK = Detection
