"""Offsets that move and stretch anchors (priors) which the graph does not hold, beside scores: SSD, RetinaFace.

With an anchor of centre p and size s: centre p + 0.1 t s, size s exp(0.2 t), points p + 0.1 t s.

Source: SSD (arXiv 1512.02325).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    best_class,
    corners,
    probabilities,
    scores_first,
    softmax,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed, scores_and_boxes
from edgeopt.recipes.heads._shapes import (
    STRIDES,
    Shape,
    count_cells,
    landmarks_of,
    may_be,
    why_no_scores_and_corners,
    without_landmarks,
)
from edgeopt.recipes.outputs.learned import LearnedHead, columns_of, scale_of
from edgeopt.recipes.recipe import Centres, Postprocess, Scores

_VARIANCES = (0.1, 0.2)
"""Factors of an offset of a centre and of an offset of a size; TensorFlow divides by 10 and 5."""


@lru_cache(maxsize=8)
def priors(size: Size, strides: tuple[int, ...], anchors: tuple[tuple[float, ...], ...], centres: Centres) -> Array:
    """Return (n, 4) centre and size of the anchors in pixels: stride by stride, row by row, all anchors of a cell.

    Args:
        size: Height and width of the input.
        strides: As in the recipe; a last row or column that is not whole counts.
        anchors: Width and height in pixels, alternating, for each stride.
        centres: Where the middle of a cell lies.
    """
    parts = []
    for stride, flat in zip(strides, anchors, strict=True):
        rows, columns = -(-size[0] // stride), -(-size[1] // stride)
        step = (size[0] / rows, size[1] / columns) if centres is Centres.EVEN else (stride, stride)
        shift = 0.0 if centres is Centres.CORNER else 0.5
        x, y = np.meshgrid((np.arange(columns) + shift) * step[1], (np.arange(rows) + shift) * step[0])
        if centres is Centres.CLIPPED:
            x, y = np.minimum(x, size[1]), np.minimum(y, size[0])
        sides = np.asarray(flat).reshape(-1, 2)
        places = np.repeat(np.stack([x.ravel(), y.ravel()], axis=1), len(sides), axis=0)
        parts.append(np.concatenate([places, np.tile(sides, (rows * columns, 1))], axis=1))
    return np.concatenate(parts).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The conventions of one framework."""

    order: tuple[int, int, int, int]
    """Where x, y, width and height stand."""
    usual_scores: Scores
    usual_centres: Centres
    classes_exclude: bool
    """Whether logits of classes exclude one another where there is a background."""
    has_landmarks: bool
    """Whether a third output, (1, n, 10), may hold five points of a face."""

    def head(self) -> Head:
        """Return the head of this framework."""
        points = self.points if self.has_landmarks else None
        return Head(self.why_unfit, self.decode, self.write, self.learned, points=points, rounds_up=True)

    def why_unfit(self, shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
        if not numbers.anchors:
            return "anchors, which the recipe does not give"
        pairs = zip(numbers.strides or STRIDES, numbers.anchors, strict=True)
        count = sum(len(flat) // 2 * count_cells(size, [s], rounds_up=True) for s, flat in pairs) if size else 0
        wanted = f"scores 1 x {count or 'anchors'} x classes and offsets 1 x {count or 'anchors'} x 4"
        parts = [output.shape for output in without_landmarks([TensorSpec("", "", shape) for shape in shapes])]
        if len(parts) != 2 or why_no_scores_and_corners(parts, background=numbers.background):
            return wanted
        return "" if all(may_be(shape[1], count or None) for shape in parts) else wanted

    def decode(self, outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
        kept, value, classes = self._kept(outputs, numbers, threshold)
        _, offsets = scores_first(without_landmarks(outputs))
        places, moves = self._anchors(numbers, size)[kept], offsets[kept][:, self.order]
        centre, stretch = numbers.variances or _VARIANCES
        middles = places[:, :2] + centre * moves[:, :2] * places[:, 2:]
        return corners(middles, places[:, 2:] * np.exp(stretch * moves[:, 2:])).astype(np.float32), value, classes

    def points(self, outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Array | None:
        """Return (n, 5, 2) points of the boxes that are decoded, in their order; None where no output holds them."""
        landmarks = landmarks_of(outputs)
        if landmarks is None:
            return None
        kept, _, _ = self._kept(outputs, numbers, threshold)
        places, (centre, _) = self._anchors(numbers, size)[kept, None], numbers.variances or _VARIANCES
        moved = landmarks[0][kept].reshape(-1, 5, 2)
        return np.asarray(places[..., :2] + centre * moved * places[..., 2:], np.float32)

    def _kept(
        self, outputs: Sequence[Array], numbers: Postprocess, threshold: float
    ) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
        """Return rows, scores and classes above the threshold."""
        raw, _ = scores_first(without_landmarks(outputs))
        if self._is_logit(numbers):
            raw = softmax(raw) if self._excludes(numbers) else probabilities(raw)
        return best_class(raw[:, int(numbers.background) :], threshold)

    def _is_logit(self, numbers: Postprocess) -> bool:
        return (self.usual_scores if numbers.scores is Scores.USUAL else numbers.scores) is Scores.LOGITS

    def _excludes(self, numbers: Postprocess) -> bool:
        return numbers.background and self.classes_exclude

    def _anchors(self, numbers: Postprocess, size: Size) -> Array:
        centres = self.usual_centres if numbers.centres is Centres.USUAL else numbers.centres
        return priors(size, numbers.strides or STRIDES, numbers.anchors, centres)

    def write(self, rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
        nodes, numbers = rows.nodes, rows.numbers
        scored, placed = scores_and_boxes(without_landmarks(outputs))
        values, width = rows.matrix(scored), fixed(scored, 2)
        if self._is_logit(numbers):
            values = nodes("Softmax", values, axis=1) if self._excludes(numbers) else nodes("Sigmoid", values)
        best, label, kept = rows.best_class(nodes.columns(values, int(numbers.background), width), raw=False)
        moves = nodes("Gather", rows.matrix(placed), kept, axis=0)
        if self.order != (0, 1, 2, 3):
            moves = nodes("Gather", moves, ints(*self.order), axis=1)
        anchors, (centre, stretch) = self._anchors(numbers, rows.size), numbers.variances or _VARIANCES
        middle, side = (nodes("Gather", part, kept, axis=0) for part in (anchors[:, :2], anchors[:, 2:]))
        moved = nodes("Mul", nodes("Mul", nodes.columns(moves, 0, 2), floats(centre)), side)
        sizes = nodes("Mul", side, nodes("Exp", nodes("Mul", nodes.columns(moves, 2, 4), floats(stretch))))
        boxes, scores = rows.corners(nodes("Add", middle, moved), sizes), nodes("Gather", best, kept)
        count, points = width - int(numbers.background), landmarks_of(outputs) if self.has_landmarks else None
        if points is None:
            return FoundBoxes(boxes, scores, nodes("Gather", label, kept), count)
        moved = nodes("Mul", nodes("Gather", rows.matrix(points), kept, axis=0), floats(centre))
        pairs = ints(1, fixed(points, 2) // 2)
        landmarks = nodes("Add", nodes("Tile", middle, pairs), nodes("Mul", moved, nodes("Tile", side, pairs)))
        return FoundBoxes(boxes, scores, nodes("Gather", label, kept), count, landmarks)

    def learned(self, numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
        del size
        scores, boxes = columns_of(without_landmarks(outputs))
        scale = scale_of(is_logit=self._is_logit(numbers), excludes=self._excludes(numbers))
        return (LearnedHead(scores, scale, 0 if numbers.background else None, boxes=boxes),)
