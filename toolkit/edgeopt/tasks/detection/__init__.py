"""Detection: boxes with classes. Frame to tensor, raw heads to boxes by decoder and NMS, AP by pycocotools."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawing import HEIGHT, SHOWN_ABOVE, class_colour, draw_box, scaled
from edgeopt.recipes.embedded import BOXES, CLASSES, FRAME, FRAME_OFFSET, FRAME_SCALE, SCORES, Embedded, picture_feed
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.recipes.match_tables import MatchTable, match_tables
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.output_shapes import require_fit
from edgeopt.recipes.preprocess import Geometry
from edgeopt.recipes.recipe import Recipe
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._losses import relative_error
from edgeopt.tasks.detection.boxes import Detections, lost_share, matched_share
from edgeopt.tasks.detection.decoders import DECODERS, NEEDS_NO_SUPPRESSION, class_count
from edgeopt.tasks.detection.suppression import suppress


class Detection(FrameTask):
    """One detector: its pictures, its boxes, their score."""

    is_drawable: ClassVar[bool] = True
    reveals_misreading: ClassVar[bool] = True
    time_follows_content: ClassVar[bool] = True
    gives_boxes: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's outputs, or their classes are not as many as the names.
        """
        numbers, thresholds = recipe.postprocess, recipe.evaluation if evaluating else recipe.postprocess
        if numbers.decoder not in DECODERS:
            raise NotFoundError("decoder", numbers.decoder, DECODERS)
        self._is_fed_frames = Embedded.PREPROCESS in recipe.embedded
        self._is_read = Embedded.POSTPROCESS in recipe.embedded
        outputs = [one for one in outputs if one.name not in (FRAME_SCALE, FRAME_OFFSET)]
        if not self._is_read:
            _require_readable(recipe, outputs)
        self._name, self._outputs = recipe.input.tensor or inputs[0].name, tuple(one.name for one in outputs)
        self._recipe, self._fitting = recipe, [one.shape for one in outputs]
        self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)
        self._size = (recipe.input.size[0], recipe.input.size[1])
        self._numbers, self._decode = numbers, DECODERS[numbers.decoder]
        self._suppresses = numbers.decoder not in NEEDS_NO_SUPPRESSION
        self._score, self._iou, self._most = (
            thresholds.score_threshold,
            thresholds.iou_threshold,
            thresholds.max_detections,
        )

    @property
    def holds_outputs(self) -> bool:
        """Whether the model itself gives the answer."""
        return self._is_read

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry]:
        """Return the input tensor, and where the frame lies in it; arrays stay unchanged and are the whole frame."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(frame[FRAME].shape if self._is_fed_frames else self._size)
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Detections:
        """Return the boxes in the frame's pixels, best first, without those that are NaN or infinite.

        Raises:
            UnsupportedError: If the outputs of this frame have shapes that the decoder cannot read.
        """
        if self._is_read:
            return Detections(geometry.to_frame(outputs[BOXES]), outputs[SCORES], outputs[CLASSES])
        if self._is_fed_frames:
            (scale_x, scale_y), (left, top) = outputs[FRAME_SCALE].tolist(), outputs[FRAME_OFFSET].tolist()
            geometry = Geometry(scale_x, scale_y, left, top, geometry.width, geometry.height)
        ordered = [outputs[name] for name in self._outputs]
        if (shapes := [one.shape for one in ordered]) != self._fitting:
            require_fit(self._recipe, [TensorSpec(name, str(one.dtype), one.shape) for name, one in outputs.items()])
            self._fitting = shapes
        with np.errstate(over="ignore", invalid="ignore"):
            boxes, scores, classes = self._decode(ordered, self._numbers, self._size, self._score)
        finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
        if not finite.all():
            boxes, scores, classes = boxes[finite], scores[finite], classes[finite]
        if self._suppresses:
            kept = suppress(boxes, scores, classes, self._iou, self._most)
        else:
            kept = np.argsort(-scores, kind="stable")[: self._most]
        return Detections(geometry.to_frame(boxes[kept]), scores[kept], classes[kept])

    def count(self, answer: Detections) -> int:
        """Return the number of boxes."""
        return len(answer)

    def as_text(self, answer: Detections) -> str:
        """Return classes with score and place."""
        rows = zip(answer.boxes, answer.scores, answer.classes.tolist(), strict=True)
        found = [
            f"{self._recipe.class_name(label)} {score:.2f} at {', '.join(f'{v:.0f}' for v in box)}"
            for box, score, label in rows
        ]
        return "; ".join(found) or "nothing"

    def as_json(self, answer: Detections) -> dict[str, Any]:
        """Return `detections`, best first, each with `box` (left, top, right, bottom in pixels), `score`, `class`."""
        rows = zip(answer.boxes.tolist(), answer.scores.tolist(), answer.classes.tolist(), strict=True)
        return {
            "detections": [
                {
                    "box": [round(v, 2) for v in box],
                    "score": round(score, 4),
                    "class": self._recipe.class_name(label),
                }
                for box, score, label in rows
            ]
        }

    def draw(self, frame: Frame, answer: Detections, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its boxes, those above `SHOWN_ABOVE`."""
        drawn, scale = scaled(frame, height), height / frame.shape[0]
        for box, score, label in zip(answer.boxes, answer.scores, answer.classes.tolist(), strict=True):
            if score >= SHOWN_ABOVE:
                text = f"{self._recipe.class_name(label)} {score:.2f}"
                draw_box(drawn, (box * scale).tolist(), text, class_colour(label))
        return drawn

    def score(self, answers: Sequence[Detections], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are not boxes, or their categories are not the recipe's classes.
        """
        return accuracy_of(self._tables(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Detections], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times; boxes are matched once."""
        return resampled_accuracy(self._tables(answers, labels), self._recipe, counts)

    def _tables(self, answers: Sequence[Detections], labels: Labels) -> list[MatchTable]:
        """Return the boxes matched with the truths, by category; no table where nothing was found."""
        if not isinstance(labels, BoxLabels):
            raise InvalidFileError(f"{labels.source} holds no boxes", remedy="pass a COCO JSON of boxes")
        results, ids = self._results(answers, labels)
        if not results:
            return []
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools reports by print
            return match_tables(_matched(labels.coco, results, ids), ids)

    def _results(self, answers: Sequence[Detections], labels: BoxLabels) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the boxes in pycocotools' words, and the id of each image."""
        category = self._categories(labels)
        ids = {str(image["file_name"]): int(image["id"]) for image in labels.coco["images"]}
        results = [
            {"image_id": ids[file], "category_id": category[int(label)], "bbox": _corner_and_size(box), "score": score}
            for file, found in zip(labels.files, answers, strict=True)
            for box, score, label in zip(found.boxes, found.scores.tolist(), found.classes, strict=True)
            if int(label) in category
        ]
        return results, [ids[file] for file in labels.files]

    def agreement(self, answers: Sequence[Detections], reference: Sequence[Detections]) -> float:
        """Return the score-weighted F1 of the boxes against the reference's: 1 when they are the same."""
        shares = [matched_share(a, b) for a, b in zip(answers, reference, strict=True)]
        return find_metric("agreement").score(np.array([shares]), len(shares)) if shares else 1.0

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return what is lost of the boxes before suppression, each weighted by its squared score."""
        if self._is_read:
            return relative_error(outputs, reference)
        if not all(np.isfinite(one[name]).all() for one in outputs for name in self._outputs):
            return math.inf
        lost = [lost_share(self._all_boxes(a), self._all_boxes(b)) for a, b in zip(outputs, reference, strict=True)]
        whole = math.fsum(one for _, one in lost)
        return math.fsum(one for one, _ in lost) / whole if whole > 0 else relative_error(outputs, reference)

    def _all_boxes(self, outputs: Tensors) -> Detections:
        """Return the box of each place of the heads, whatever its score, in pixels of the input."""
        with np.errstate(over="ignore", invalid="ignore"):
            return Detections(*self._decode([outputs[one] for one in self._outputs], self._numbers, self._size, -1.0))

    def sureness(self, answers: Sequence[Detections]) -> NDArray[np.float64]:
        """Return (answers,) best score times mean score of the boxes an app sees, less what the next answer repeats.

        A picture fed in the wrong way often gives one sure box and many that are not, or the same boxes as any other.
        """
        least = self._recipe.postprocess.score_threshold
        sure = []
        for one, following in zip(answers, [*answers[1:], *answers[:1]], strict=True):
            seen = np.clip(one.scores[one.scores > least], 0.0, 1.0)
            matched, total = matched_share(one, following)
            repeated = min(max(matched / total, 0.0), 1.0) if total > 0 else 0.0
            sure.append(float(seen.max() * seen.mean()) * (1 - repeated) if len(seen) else 0.0)
        return np.array(sure)

    def rightness(self, answers: Sequence[Detections], labels: Labels) -> None:
        """Return None: boxes are scored over all pictures together."""

    def _categories(self, labels: BoxLabels) -> dict[int, int]:
        """Return the category id of each class index: by name, or by order where no name is known."""
        by_name = {str(one["name"]).lower(): int(one["id"]) for one in labels.coco["categories"]}
        if not self._recipe.class_names:
            return dict(enumerate(sorted(by_name.values())))
        known = {i: by_name[name.lower()] for i, name in enumerate(self._recipe.class_names) if name.lower() in by_name}
        if known:
            return known
        raise InvalidFileError(
            f"{labels.source}: none of its categories ({', '.join(list(by_name)[:5])}, ...) is a class of the recipe",
            remedy="give both the same class names",
        )


def _require_readable(recipe: Recipe, outputs: Sequence[TensorSpec]) -> None:
    """Raise UnsupportedError unless the decoder reads the outputs, of as many classes as the recipe names."""
    require_fit(recipe, outputs)
    count = class_count(recipe.postprocess.decoder, [one.shape for one in outputs])
    if count is not None and recipe.class_names and count != len(recipe.class_names):
        raise UnsupportedError(
            f"the model has {count} classes, recipe {recipe.name!r} names {len(recipe.class_names)}",
            remedy="write a recipe.toml with your class names (labels = ...) and pass it with --recipe",
        )


def _corner_and_size(box: Any) -> list[float]:
    left, top, right, bottom = (float(value) for value in box)
    return [left, top, right - left, bottom - top]


def _matched(truth: Mapping[str, Any], results: list[dict[str, Any]], image_ids: list[int]) -> Any:
    """Return the COCOeval that has matched boxes with truths."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    known = COCO()
    known.dataset = {"info": {}, **truth}
    known.createIndex()
    evaluation = COCOeval(known, known.loadRes(results), "bbox")
    evaluation.params.imgIds = image_ids
    evaluation.evaluate()
    return evaluation


TASK = Detection
