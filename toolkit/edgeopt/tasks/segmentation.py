"""Segmentation: a class for each pixel. Frame to tensor, scores to the frame's size, mean overlap of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import class_colour, scaled, write_text
from edgeopt.recipes.embedded import CLASS_MAP, FRAME, Embedded, picture_feed
from edgeopt.recipes.inputs.preprocess import Geometry, Layout, Resize, letterbox_place
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.masks import UNLABELLED, MaskLabels, require_size
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.recipe import Recipe, Scores
from edgeopt.recipes.scoring.class_areas import ClassAreas, areas_of, mean_overlap
from edgeopt.recipes.scoring.run_lengths import run_lengths
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import share_as_json
from edgeopt.tasks._losses import divergence

_ARGMAX, _CLASS_MAP = "argmax", "class_map"
_DECODERS = (_ARGMAX, _CLASS_MAP)
_NOTHING = 2**16 - 1
"""Class of every pixel where an output holds NaN; no model has so many."""
_MOST_CLASSES = 4096
_LOSS_PIXELS = 4096
"""Loss pixels of a picture, always the same, evenly spread: neighbours say the same."""
_LEGEND = 8


@dataclass(frozen=True, slots=True)
class Segments:
    """The class of each pixel of a frame."""

    classes: NDArray[np.uint16]
    """(height, width): class index, from 0; 65535 everywhere if the output held NaN."""


class Segmentation(FrameTask):
    """One segmentation model: its pictures, its map of classes, its score."""

    draws: ClassVar[Sequence[str]] = ("picture",)

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors; of several outputs the first is read.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's output, or the frame is not seen whole.
        """
        self._decoder = recipe.postprocess.decoder
        if self._decoder not in _DECODERS:
            raise NotFoundError("decoder of task segmentation", self._decoder, _DECODERS)
        if recipe.preprocess.resize is Resize.CENTRE_CROP:
            raise UnsupportedError(
                f"recipe {recipe.name!r} cuts frames, so that pixels outside the cut get no class",
                remedy='write resize = "stretch" or "letterbox" under [preprocess]',
            )
        if is_read := Embedded.POSTPROCESS in recipe.embedded:
            self._decoder = _CLASS_MAP
        self._recipe, self._size = recipe, (recipe.input.size[0], recipe.input.size[1])
        self._name = recipe.input.tensor or inputs[0].name
        self._output = CLASS_MAP if is_read else outputs[0].name
        self._shape = outputs[0].shape
        self._is_last = recipe.input.layout is Layout.NHWC
        self._is_probability = recipe.postprocess.scores is Scores.PROBABILITIES
        self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)
        self._is_fed_frames = Embedded.PREPROCESS in recipe.embedded
        has_border = recipe.preprocess.resize is Resize.LETTERBOX and not (is_read and self._is_fed_frames)
        self._anchor = recipe.preprocess.anchor if has_border else None
        self._first = int(recipe.postprocess.background)
        self._classes = self._count_classes(outputs[0])

    def _count_classes(self, output: TensorSpec) -> int:
        """Return how many classes a pixel may have; 0: nothing says.

        Raises:
            UnsupportedError: If the output is no map of this decoder, or the recipe names another number of classes.
        """
        shape, names = output.shape, len(self._recipe.class_names)
        if self._decoder == _CLASS_MAP:
            if len([one for one in shape if one != 1]) not in (2, 3) or len(shape) > 4:
                self._refuse(output, "1 x height x width classes")
            return names
        if len(shape) != 4 or (shape[0] != 1 and isinstance(shape[0], int)):
            self._refuse(output, "1 x classes x height x width scores")
        if "float" not in output.dtype:
            self._refuse(output, 'floats; whole numbers are decoder = "class_map"')
        count = shape[3 if self._is_last else 1]
        if not isinstance(count, int):
            return names
        count = 2 if count == 1 else count
        if count > _MOST_CLASSES:
            self._refuse(output, f"at most {_MOST_CLASSES} classes")
        if names and names != count:
            raise UnsupportedError(
                f"the model has {count} classes, recipe {self._recipe.name!r} names {names}",
                remedy="write a recipe.toml with your class names (labels = ...) and pass it with --recipe",
            )
        return count

    def _refuse(self, output: TensorSpec, wanted: str) -> None:
        raise UnsupportedError(
            f"recipe {self._recipe.name!r} does not fit this model: decoder {self._decoder!r} reads {wanted}; "
            f"the model has {output}",
            remedy=f"correct decoder under [postprocess] ({' or '.join(_DECODERS)}) or layout under [input]",
        )

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """The classes of each pixel; none of a map of classes, whose whole numbers teach nothing."""
        if self._decoder == _CLASS_MAP:
            return ()
        axis = 3 if self._is_last else 1
        if self._shape[axis] == 1:
            scale = Scale.EACH if self._is_probability else Scale.SIGMOID
        else:
            scale = Scale.SHARES if self._is_probability else Scale.SOFTMAX
        return (LearnedHead(Columns(self._output, axis), scale),)

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry]:
        """Return the input tensor, and where the frame lies in it; arrays stay unchanged and are the whole frame."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(frame[FRAME].shape if self._is_fed_frames else self._size)
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Segments:
        """Return the class of each pixel of the frame.

        Scores are scaled to the frame (bilinear, corners not aligned, as `interpolate` of torch does by default), then
        the largest wins; a map of classes takes the nearest.
        """
        array = np.asarray(outputs[self._output])
        if self._decoder == _CLASS_MAP:
            return Segments(self._nearest(array, geometry))
        planes = self._planes(array)
        size = (geometry.height, geometry.width)
        if not np.isfinite(planes).all():
            return Segments(np.full(size, _NOTHING, np.uint16))
        if len(planes) == 1:
            least = 0.5 if self._is_probability else 0.0
            return Segments((self._in_frame(planes[0], geometry, cv2.INTER_LINEAR) > least).astype(np.uint16))
        best = self._in_frame(planes[0], geometry, cv2.INTER_LINEAR)
        classes = np.zeros(size, np.uint16)
        for i, plane in enumerate(planes[1:], start=1):  # one plane at a time: 150 classes of a large frame are 1 GB
            score = self._in_frame(plane, geometry, cv2.INTER_LINEAR)
            wins = score > best
            classes[wins] = i
            np.maximum(best, score, out=best)
        return Segments(classes)

    def _planes(self, scores: NDArray[Any]) -> NDArray[np.float32]:
        """Return (classes, height, width)."""
        first = scores[0].transpose(2, 0, 1) if self._is_last else scores[0]
        return np.ascontiguousarray(first, np.float32)

    def _nearest(self, array: NDArray[Any], geometry: Geometry) -> NDArray[np.uint16]:
        size = (geometry.height, geometry.width)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return np.full(size, _NOTHING, np.uint16)
        plane = np.clip(np.rint(array.reshape(_plane_shape(array.shape))), 0, _NOTHING).astype(np.uint16)
        return np.asarray(self._in_frame(plane, geometry, cv2.INTER_NEAREST_EXACT), np.uint16)

    def _in_frame(self, plane: NDArray[Any], geometry: Geometry, how: int) -> NDArray[Any]:
        """Return one map in the frame's size, without the border that a letterbox adds."""
        size = (geometry.height, geometry.width)
        if self._anchor is not None and size != self._size:
            (left, top, columns, rows), _ = letterbox_place(self._size, size, self._anchor)
            plane = _resized(plane, self._size, how)[top : top + rows, left : left + columns]
        return _resized(plane, size, how)

    def count(self, answer: Segments) -> int:
        """Return the number of classes in the map, without the background; 0 where the output held NaN."""
        return len(self._shares(answer))

    def _shares(self, answer: Segments) -> list[tuple[int, float]]:
        """Return class and share of the frame, largest first."""
        index, pixels = np.unique(answer.classes, return_counts=True)
        order = np.argsort(-pixels, kind="stable")
        pairs = zip(index[order].tolist(), (pixels[order] / answer.classes.size).tolist(), strict=True)
        return [(i, share) for i, share in pairs if self._first <= i < _NOTHING]

    def as_text(self, answer: Segments) -> str:
        """Return classes with their share of the frame, largest first."""
        return ", ".join(f"{self._recipe.class_name(i)} {share:.1%}" for i, share in self._shares(answer)) or "nothing"

    def as_json(self, answer: Segments) -> dict[str, Any]:
        """Return `segments`, largest first, each with `class`, `index`, `share` and `rle`.

        `rle` is COCO's: `size` (height, width) and `counts`, runs of zeros and ones in turn, column by column.
        """
        return {
            "segments": [
                {
                    "class": self._recipe.class_name(i),
                    "index": i,
                    "share": share_as_json(share),
                    "rle": run_lengths(answer.classes == i),
                }
                for i, share in self._shares(answer)
            ]
        }

    def draw(self, frame: Frame, answer: Segments, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its classes in colours, and the names of the largest."""
        drawn, shares = scaled(frame, height), self._shares(answer)
        small = _resized(answer.classes, drawn.shape[:2], cv2.INTER_NEAREST)
        colours = np.array([class_colour(i) for i, _ in shares], np.uint8).reshape(-1, 3)
        for (i, _), colour in zip(shares, colours, strict=True):
            there = small == i
            drawn[there] = drawn[there] // 2 + colour // 2
        for row, (i, share) in enumerate(shares[:_LEGEND]):
            write_text(drawn, f"{self._recipe.class_name(i)} {share:.0%}", (4, 18 + 18 * row), class_colour(i))
        return drawn

    def score(self, answers: Sequence[Segments], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are not masks, of another size, or not of this model's classes.
        """
        return accuracy_of(self._areas(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Segments], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times."""
        return resampled_accuracy(self._areas(answers, labels), self._recipe, counts)

    def _areas(self, answers: Sequence[Segments], labels: Labels) -> ClassAreas:
        if not isinstance(labels, MaskLabels):
            raise InvalidFileError(f"{labels.source} holds no masks", remedy="pass a folder of masks (.png)")
        rows, known = list[NDArray[np.int64]](), self._classes or UNLABELLED
        for i, answer in enumerate(answers):
            mask = labels.read(i)
            require_size(labels, i, mask, answer.classes.shape)
            if beyond := [c for c in np.unique(mask).tolist() if c >= known and c != UNLABELLED]:
                raise InvalidFileError(
                    f"{labels.source / labels.masks[i]} has class {beyond[0]}, beyond the model's {known} classes",
                    remedy=f"count classes from 0 to {known - 1}, as the model's output does; 255 is not scored",
                )
            rows.append(areas_of(answer.classes, mask, known, UNLABELLED))
        return ClassAreas(*np.stack(rows, axis=1))

    def agreement(self, answers: Sequence[Segments], reference: Sequence[Segments]) -> float:
        """Return the mean overlap of classes with the reference's, 1 when they are the same.

        An answer of another size, which is of another picture, is stretched to the reference's.
        """
        known = self._classes or UNLABELLED
        pairs = zip(answers, reference, strict=True)
        maps = [(_resized(a.classes, b.classes.shape, cv2.INTER_NEAREST), b.classes) for a, b in pairs]
        rows = [areas_of(*both, known, _NOTHING) for both in maps]
        if not rows:
            return 1.0
        areas = ClassAreas(*np.stack(rows, axis=1))
        return float(mean_overlap(areas, np.ones((1, len(rows)), np.int64))[0]) if areas.true.any() else 1.0

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the mean divergence of the pixels' probabilities, in nats; of a map of classes what differs."""
        if not reference:
            return 0.0
        if self._decoder == _CLASS_MAP:
            pairs = zip(outputs, reference, strict=True)
            return float(np.mean([np.mean(a[self._output] != b[self._output]) for a, b in pairs]))
        rows = [np.concatenate([self._probabilities(arrays) for arrays in many]) for many in (outputs, reference)]
        return divergence(rows[0], rows[1])

    def _probabilities(self, outputs: Tensors) -> NDArray[np.float64]:
        """Return (pixels, classes) of some pixels."""
        planes = self._planes(np.asarray(outputs[self._output]))
        flat = planes.reshape(len(planes), -1)
        kept = np.linspace(0, flat.shape[1] - 1, min(_LOSS_PIXELS, flat.shape[1])).astype(np.int64)
        values = flat[:, kept].T.astype(np.float64)
        if self._is_probability:
            return np.concatenate([1 - values, values], axis=1) if len(planes) == 1 else values
        if len(planes) == 1:
            values = np.concatenate([np.zeros_like(values), values], axis=1)
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def sureness(self, answers: Sequence[Segments]) -> NDArray[np.float64]:
        """Return 1 for each: a map of classes shows no sureness."""
        return np.ones(len(answers))

    def rightness(self, answers: Sequence[Segments], labels: Labels) -> None:
        """Return None: classes are scored over all pictures together."""


def _plane_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width of (1, h, w), (1, 1, h, w) or (1, h, w, 1)."""
    inner = list(shape[1:]) if len(shape) > 2 else list(shape)
    if len(inner) == 3:
        inner = inner[1:] if inner[0] == 1 else inner[:2]
    return inner[0], inner[1]


def _resized(plane: NDArray[Any], size: Sequence[int], how: int) -> NDArray[Any]:
    if tuple(plane.shape) == tuple(size):
        return np.array(plane)
    return np.asarray(cv2.resize(plane, (size[1], size[0]), interpolation=how))


TASK = Segmentation
