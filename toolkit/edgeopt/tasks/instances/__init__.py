"""Instance segmentation: boxes with classes and masks. Raw heads to masks in the frame, AP over their overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np

from edgeopt.errors import NotFoundError
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import SHOWN_ABOVE, class_colour, draw_box, scaled
from edgeopt.recipes.embedded import BOXES, CLASSES, MASKS, SCORES
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels._outlines import outlines_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import MatchTable
from edgeopt.recipes.scoring.run_lengths import as_coco
from edgeopt.tasks._coco import category_ids, image_ids, matched_tables
from edgeopt.tasks._json_numbers import pixels_as_json, score_as_json
from edgeopt.tasks._losses import worst_error
from edgeopt.tasks._things import Things, require_boxes
from edgeopt.tasks.detection.boxes import Detections, lost_share
from edgeopt.tasks.detection.suppression import keep_best
from edgeopt.tasks.instances.decoders import DECODERS, NEEDS_NO_SUPPRESSION, Painted, Prototypes, class_count
from edgeopt.tasks.instances.masks import Canvas, Instances, matched_instances

_LOSS_BOXES, _LOSS_CELLS = 50, 256
"""How many candidates, the surest, and cells of prototypes, evenly spread, tell what is lost of masks."""


class InstanceTask(Things):
    """One model of instances: its pictures, its masks, their score."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's outputs, or their classes are not as many as the names.
        """
        decoder = recipe.postprocess.decoder
        if decoder not in DECODERS:
            raise NotFoundError("decoder of task instances", decoder, DECODERS)
        self._require_read(recipe, outputs, partial(class_count, decoder))
        super().__init__(recipe, inputs, outputs, evaluating)
        self._decode, self._suppresses = DECODERS[decoder], decoder not in NEEDS_NO_SUPPRESSION

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Instances:
        """Return boxes and masks in the frame's pixels, best first, without those that are NaN or infinite.

        Raises:
            UnsupportedError: If the outputs of this frame have shapes that the decoder cannot read.
        """
        if self._is_read:
            return self._as_read(outputs, geometry)
        geometry, ordered = self._geometry(outputs, geometry), self._ordered(outputs)
        with np.errstate(over="ignore", invalid="ignore"):
            (boxes, scores, classes), masks = self._decode(ordered, self._numbers, self._size, self._score)
        finite = np.flatnonzero(np.isfinite(boxes).all(axis=1) & np.isfinite(scores))
        seen = boxes[finite], scores[finite], classes[finite]
        kept = keep_best(*seen, self._iou, self._most, suppresses=self._suppresses)
        rows, canvas = finite[kept], Canvas(geometry, self._size)
        array = geometry.to_frame(boxes[rows])
        with np.errstate(over="ignore", invalid="ignore"):
            runs = tuple(masks.runs(row, box, canvas) for row, box in zip(rows.tolist(), array, strict=True))
        return Instances(array, scores[rows], classes[rows], runs, canvas.frame)

    def _as_read(self, outputs: Tensors, geometry: Geometry) -> Instances:
        """Return what the model gives: masks of the frame, or, where it is fed tensors, of the input."""
        planes, boxes = outputs[MASKS], geometry.to_frame(outputs[BOXES])
        canvas = Canvas(geometry, (planes.shape[1], planes.shape[2]))
        if self._is_fed_frames:
            columns, rows = np.arange(canvas.frame[1]), np.arange(canvas.frame[0])
            runs = tuple(canvas.runs(plane, columns, rows) for plane in planes)
        else:
            masks = Painted(planes)
            runs = tuple(masks.runs(i, box, canvas) for i, box in enumerate(boxes))
        return Instances(boxes, outputs[SCORES], outputs[CLASSES], runs, canvas.frame)

    def as_text(self, answer: Instances) -> str:
        """Return classes with score, place and how much of the frame they cover."""
        whole = answer.size[0] * answer.size[1]
        rows = zip(answer.boxes, answer.scores, answer.classes.tolist(), answer.runs, strict=True)
        result = [
            f"{self._recipe.class_name(label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)} "
            f"({runs[1::2].sum() / whole:.1%} of the frame)"
            for box, score, label, runs in rows
        ]
        return "; ".join(result) or "nothing"

    def as_json(self, answer: Instances) -> dict[str, Any]:
        """Return `instances`, best first, each with `box`, `score`, `class` and `rle`.

        `rle` is COCO's: `size` (height, width) and `counts`, runs of zeros and ones in turn, column by column.
        """
        rows = zip(answer.boxes.tolist(), answer.scores.tolist(), answer.classes.tolist(), answer.runs, strict=True)
        return {
            "instances": [
                {
                    "box": pixels_as_json(box),
                    "score": score_as_json(score),
                    "class": self._recipe.class_name(label),
                    "rle": as_coco(runs, answer.size),
                }
                for box, score, label, runs in rows
            ]
        }

    def draw(self, frame: Frame, answer: Instances, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its instances above `SHOWN_ABOVE`, each mask in a colour."""
        drawn, scale = scaled(frame, height), height / frame.shape[0]
        shown = np.flatnonzero(answer.scores >= SHOWN_ABOVE).tolist()
        for i in reversed(shown):  # the best lies on top
            size = (drawn.shape[1], drawn.shape[0])
            there = cv2.resize(answer.mask(i).astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
            drawn[there] = drawn[there] // 2 + np.array(class_colour(i), np.uint8) // 2
        for i in reversed(shown):
            text = f"{self._recipe.class_name(int(answer.classes[i]))} {answer.scores[i]:.2f}"
            draw_box(drawn, (answer.boxes[i] * scale).tolist(), text, class_colour(i))
        return drawn

    def match(self, answers: Sequence[Instances], labels: Labels) -> list[MatchTable]:
        """Return the outlines matched with the true ones, by category; no table where nothing was found."""
        known = require_boxes(labels, "outlines")
        category, ids = category_ids(known, self._recipe.class_names), image_ids(known)
        truth = outlines_of(known, {identifier: answer.size for identifier, answer in zip(ids, answers, strict=True)})
        results = [
            {"image_id": identifier, "category_id": category[label], "segmentation": mask, "score": score}
            for identifier, answer in zip(ids, answers, strict=True)
            for mask, score, label in zip(answer.coco(), answer.scores.tolist(), answer.classes.tolist(), strict=True)
            if label in category
        ]
        return matched_tables(truth, results, ids, "segm", category.values())

    def _matched(self, instances: Instances, reference: Instances) -> tuple[float, float]:
        return matched_instances(instances, reference)

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return what is lost of boxes before suppression and of masks, half each, by their squared scores."""
        if self._is_read:
            return worst_error(outputs, reference)
        if not all(np.isfinite(output[name]).all() for output in outputs for name in self._outputs):
            return math.inf
        lost = np.array([self._lost(a, b) for a, b in zip(outputs, reference, strict=True)]).reshape(-1, 4).sum(axis=0)
        parts = [lost[i] / lost[i + 1] for i in (0, 2) if lost[i + 1] > 0]
        return float(np.mean(parts)) if parts else 0.0

    def _lost(self, arrays: Tensors, reference: Tensors) -> tuple[float, float, float, float]:
        """Return what is lost of boxes and what there is, and the same of masks."""
        (a, mine), (b, theirs) = (
            self._decode([other[name] for name in self._outputs], self._numbers, self._size, -1.0)
            for other in (arrays, reference)
        )
        boxes = lost_share(Detections(*a), Detections(*b))
        if not isinstance(mine, Prototypes) or not isinstance(theirs, Prototypes) or len(a[1]) != len(b[1]):
            whole = Geometry.of_input(self._size)
            matched, total = matched_instances(self.postprocess(arrays, whole), self.postprocess(reference, whole))
            return (*boxes, total - matched, total)
        surest = np.argsort(-b[1], kind="stable")[:_LOSS_BOXES]
        cells = int(np.prod(theirs.planes.shape[1:]))
        places = np.linspace(0, cells - 1, min(cells, _LOSS_CELLS)).astype(np.intp)
        wanted, array = (prototypes.logits(surest, places).astype(np.float64) for prototypes in (theirs, mine))
        weights = np.square(b[1][surest].astype(np.float64))[:, None]
        wrong, there = (float((weights * np.square(other)).sum()) for other in (array - wanted, wanted))
        return (*boxes, wrong, there)


TASK = InstanceTask
