"""Keypoints: poses, each of a few named points. Raw heads or maps to points, AP by their similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import SHOWN_ABOVE, class_colour, draw_box, draw_point, scaled
from edgeopt.recipes.embedded import BOXES, CLASSES, POINTS, SCORES
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels._poses import poses_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import MatchTable
from edgeopt.tasks._coco import category_ids, image_ids, matched_tables
from edgeopt.tasks._json_numbers import pixels_as_json, point_as_json, score_as_json
from edgeopt.tasks._losses import worst_error
from edgeopt.tasks._things import Things, require_boxes
from edgeopt.tasks.detection.suppression import keep_best
from edgeopt.tasks.keypoints.decoders import DECODERS, OF_MAPS, OF_ROWS, Reading, class_count
from edgeopt.tasks.keypoints.poses import Poses, lost_share, matched_poses


class KeypointTask(Things):
    """One model of poses: its pictures, its points, their score."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's outputs, or their classes are not as many as the names.
        """
        decoder = recipe.postprocess.decoder
        if decoder not in DECODERS:
            raise NotFoundError("decoder of task keypoints", decoder, DECODERS)
        self._require_read(recipe, outputs, lambda shapes: class_count(decoder, shapes, recipe.keypoints))
        super().__init__(recipe, inputs, outputs, evaluating)
        self._decode, self._suppresses, self._points = DECODERS[decoder], decoder in OF_ROWS, recipe.keypoints

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Poses:
        """Return the poses in the frame's pixels, best first, without those that are NaN or infinite.

        Raises:
            UnsupportedError: If the outputs of this frame have shapes that the decoder cannot read.
        """
        if self._is_read:
            points, boxes = geometry.points_to_frame(outputs[POINTS]), geometry.to_frame(outputs[BOXES])
            return Poses(points, boxes, outputs[SCORES], outputs[CLASSES])
        poses = self._finite(self._decoded(self._ordered(outputs), self._score))
        seen = poses.boxes, poses.scores, poses.classes
        kept = keep_best(*seen, self._iou, self._most, suppresses=self._suppresses)
        geometry = self._geometry(outputs, geometry)
        points = geometry.points_to_frame(poses.points[kept])
        return Poses(points, geometry.to_frame(poses.boxes[kept]), poses.scores[kept], poses.classes[kept])

    def _decoded(self, ordered: Sequence[NDArray[Any]], threshold: float) -> Poses:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._decode(ordered, Reading(self._numbers, self._points, self._size, threshold))

    @staticmethod
    def _finite(poses: Poses) -> Poses:
        finite = np.isfinite(poses.points).all(axis=(1, 2)) & np.isfinite(poses.boxes).all(axis=1)
        finite &= np.isfinite(poses.scores)
        if finite.all():
            return poses
        return Poses(poses.points[finite], poses.boxes[finite], poses.scores[finite], poses.classes[finite])

    def as_text(self, answer: Poses) -> str:
        """Return classes with score, place, and how many points are sure."""
        rows = zip(answer.boxes, answer.scores, answer.classes.tolist(), answer.points, strict=True)
        least = self._points.point_threshold
        result = [
            f"{self._recipe.class_name(label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)} "
            f"({int((points[:, 2] >= least).sum())} of {len(points)} points)"
            for box, score, label, points in rows
        ]
        return "; ".join(result) or "nothing"

    def as_json(self, answer: Poses) -> dict[str, Any]:
        """Return `poses`, best first, each with `box`, `score`, `class`, `keypoints`.

        A keypoint has `name`, `x` and `y` in pixels of the frame, and `score`; also those that are not sure.
        """
        rows = zip(
            answer.boxes.tolist(),
            answer.scores.tolist(),
            answer.classes.tolist(),
            answer.points.tolist(),
            strict=True,
        )
        return {
            "poses": [
                {
                    "box": pixels_as_json(box),
                    "score": score_as_json(score),
                    "class": self._recipe.class_name(label),
                    "keypoints": [
                        {"name": self._points.name(i), **point_as_json(x, y), "score": score_as_json(sure)}
                        for i, (x, y, sure) in enumerate(points)
                    ],
                }
                for box, score, label, points in rows
            ]
        }

    def draw(self, frame: Frame, answer: Poses, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its poses above `SHOWN_ABOVE`, sure points joined."""
        drawn, scale = scaled(frame, height), height / frame.shape[0]
        width = max(1, round(height / 300))
        for box, score, label, points in zip(
            answer.boxes, answer.scores, answer.classes.tolist(), answer.points, strict=True
        ):
            if score < SHOWN_ABOVE:
                continue
            colour = class_colour(label)
            draw_box(drawn, (box * scale).tolist(), f"{self._recipe.class_name(label)} {score:.2f}", colour)
            limit = 4.0 * max(drawn.shape)
            places = np.rint(np.clip(points[:, :2] * scale, -limit, limit)).astype(int).tolist()
            sure = points[:, 2] >= self._points.point_threshold
            for a, b in self._points.joined(len(points)):
                if sure[a] and sure[b]:
                    cv2.line(drawn, places[a], places[b], colour, width, cv2.LINE_AA)
            for i in np.flatnonzero(sure).tolist():
                draw_point(drawn, places[i], class_colour(i + 1))
        return drawn

    def match(self, answers: Sequence[Poses], labels: Labels) -> list[MatchTable]:
        """Return the poses matched with the true ones, by category; no table where nothing was found."""
        known = require_boxes(labels, "keypoints")
        category, ids = category_ids(known, self._recipe.class_names), image_ids(known)
        count = next((answer.points.shape[1] for answer in answers if len(answer)), None)
        if count is None:
            return []
        truth = poses_of(known, count)
        results = [
            {
                "image_id": image,
                "category_id": category[label],
                "keypoints": points[:, :3].astype(float).reshape(-1).tolist(),
                "score": score,
            }
            for image, answer in zip(ids, answers, strict=True)
            for points, score, label in zip(answer.points, answer.scores.tolist(), answer.classes.tolist(), strict=True)
            if label in category
        ]
        return matched_tables(truth, results, ids, "keypoints", category.values(), sigmas=self._points.spreads(count))

    def _matched(self, poses: Poses, reference: Poses) -> tuple[float, float]:
        return matched_poses(poses, reference, self._points.spreads(reference.points.shape[1]))

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return what is lost of the poses before suppression, each by its squared score; of maps the noise."""
        if self._is_read or self._recipe.postprocess.decoder in OF_MAPS:
            return worst_error(outputs, reference)
        if not all(np.isfinite(output[name]).all() for output in outputs for name in self._outputs):
            return math.inf
        lost = [self._lost(a, b) for a, b in zip(outputs, reference, strict=True)]
        whole = math.fsum(number for _, number in lost)
        return math.fsum(number for number, _ in lost) / whole if whole > 0 else worst_error(outputs, reference)

    def _lost(self, arrays: Tensors, reference: Tensors) -> tuple[float, float]:
        a, b = (self._decoded([other[name] for name in self._outputs], -1.0) for other in (arrays, reference))
        return lost_share(a, b, self._points.spreads(b.points.shape[1]))


TASK = KeypointTask
