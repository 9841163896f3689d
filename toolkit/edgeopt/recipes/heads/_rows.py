"""Helpers of heads in ONNX ops: the numbers that they read, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.heads._candidates import logit, usually_relative
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

if TYPE_CHECKING:  # a device that decodes answers has no onnx
    from edgeopt.graph.nodes import Nodes

SIDES = 4
"""Numbers of a box."""


@dataclass(frozen=True, slots=True)
class FoundBoxes:
    """Names of tensors: the boxes above the score threshold, not yet suppressed."""

    boxes: str
    """(n, 4) float32: left, top, right, bottom in pixels of the model's input."""
    scores: str
    """(n,) float32."""
    classes: str
    """(n,) int64."""
    count: int
    """Number of classes."""
    more: str = ""
    """(n, numbers) float32: what the rows hold behind a box and its classes; of landmarks x and y in pixels of the
    model's input. Empty: nothing."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Where a head is written, and the recipe's numbers, the input's size, the threshold."""

    nodes: Nodes
    numbers: Postprocess
    size: tuple[int, int]
    threshold: float
    more: int = 0
    """How many numbers a row holds behind a box and its classes."""

    def with_scores(self, scores: Scores) -> HeadRows:
        """Return the rows with scores of another kind."""
        return replace(self, numbers=replace(self.numbers, scores=scores))

    def usually_relative(self) -> HeadRows:
        """Return the rows of a head whose exporter writes boxes relative to the input."""
        return replace(self, numbers=usually_relative(self.numbers))

    def matrix(self, output: TensorSpec) -> str:
        return self.nodes("Squeeze", output.name, ints(0))

    def scores_of(self, values: str) -> str:
        return self.nodes("Sigmoid", values) if self.numbers.scores is Scores.LOGITS else values

    def above(self, values: str, *, raw: bool) -> str:
        """Return where a vector of scores is above the threshold; raw ones are compared before their sigmoid."""
        least = logit(self.threshold) if raw and self.numbers.scores is Scores.LOGITS else self.threshold
        return self.nodes("Greater", values, np.array(least, np.float32))

    def best_class(self, scores: str, *, raw: bool) -> tuple[str, str, str]:
        """Return the best score and class of each row, (n, classes), and which rows are above the threshold."""
        best, label = self.nodes.largest(scores, 1), self.nodes("ArgMax", scores, axis=1, keepdims=0)
        return best, label, self.nodes.positions(self.above(best, raw=raw))

    def objectness_first(self, matrix: str, width: int) -> tuple[str, str, str, str]:
        """Return positions, raw rows, scores and classes where objectness * class is above the threshold."""
        nodes = self.nodes
        objectness = nodes("Squeeze", nodes.columns(matrix, 4, 5), ints(1))
        likely = nodes.positions(self.above(objectness, raw=True))
        rows = nodes("Gather", matrix, likely, axis=0)
        both = self.scores_of(nodes.columns(rows, 4, width))
        products = nodes("Mul", nodes.columns(both, 1, width - 4), nodes.columns(both, 0, 1))
        best, label, kept = self.best_class(products, raw=False)
        return (
            nodes("Gather", likely, kept),
            nodes("Gather", rows, kept, axis=0),
            nodes("Gather", best, kept),
            nodes("Gather", label, kept),
        )

    def corners(self, centres: str, sizes: str) -> str:
        half = self.nodes("Mul", sizes, floats(0.5))
        ends = self.nodes("Sub", centres, half), self.nodes("Add", centres, half)
        return self.nodes("Concat", *ends, axis=1)

    def to_pixels(self, boxes: str) -> str:
        if self.numbers.boxes is not Boxes.RELATIVE:
            return boxes
        return self.nodes("Mul", boxes, floats(self.size[1], self.size[0], self.size[1], self.size[0]))

    def centred(self, boxes: str) -> str:
        """Return corners of (n, 4) centre and size, in the recipe's unit."""
        pixels = self.to_pixels(boxes)
        return self.corners(self.nodes.columns(pixels, 0, 2), self.nodes.columns(pixels, 2, 4))

    def around(self, middles: NDArray[np.float32], distances: str, strides: NDArray[np.float32], kept: str) -> str:
        """Return corners of distances to left, top, right and bottom of the middles, in cells of the rows kept."""
        nodes, middle = self.nodes, self.nodes("Gather", middles, kept, axis=0)
        ends = (
            nodes("Sub", middle, nodes.columns(distances, 0, 2)),
            nodes("Add", middle, nodes.columns(distances, 2, 4)),
        )
        return nodes("Mul", nodes("Concat", *ends, axis=1), nodes("Gather", strides, kept, axis=0))

    def distances(self, raw: str, bins: int) -> str:
        """Return (n, 4) distances of (n, 4 * bins), as `distances` in NumPy."""
        if bins == 1:
            return raw
        shares = self.nodes("Softmax", self.nodes("Reshape", raw, ints(-1, bins)), axis=1)
        mean = self.nodes("MatMul", shares, np.arange(bins, dtype=np.float32).reshape(-1, 1))
        return self.nodes("Reshape", mean, ints(-1, SIDES))

    def of_known_classes(self, sides: str, scores: str, labels: str) -> FoundBoxes:
        """Return the boxes, (n, 4), whose scores, (n,), are above the threshold and whose classes are none below 0."""
        nodes = self.nodes
        classes = nodes("Sub", nodes.cast(nodes("Round", labels), "int64"), ints(int(self.numbers.background)))
        fits = nodes("And", self.above(scores, raw=False), nodes("Greater", classes, ints(-1)))
        kept = nodes.positions(fits)
        boxes = self.to_pixels(nodes("Gather", sides, kept, axis=0))
        return FoundBoxes(boxes, nodes("Gather", scores, kept), nodes("Gather", classes, kept), 0)


def fixed(output: TensorSpec, axis: int) -> int:
    """Return the size of a dimension.

    Raises:
        UnsupportedError: If it is free.
    """
    size = output.shape[axis] if len(output.shape) > axis else None
    if isinstance(size, int):
        return size
    raise UnsupportedError(
        f"dimension {axis} of output {output} is free", remedy="fix it with --shape, or leave embed-postprocess out"
    )


def scores_and_boxes(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, TensorSpec]:
    """Return scores (1, n, classes) and boxes (1, n, 4) of two outputs in either order."""
    is_swapped = fixed(outputs[0], 2) == SIDES != fixed(outputs[1], 2)
    return (outputs[1], outputs[0]) if is_swapped else (outputs[0], outputs[1])
