"""What the decoders as ONNX ops share: what they return, and the numbers that they read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgeopt.recipes.recipe import Boxes, Postprocess, Scores
from edgeopt.steps._embedding import Nodes, floats
from edgeopt.tasks.detection.head_parts import logit

SIDES = 4
"""Numbers of a box."""


@dataclass(frozen=True, slots=True)
class Found:
    """Names of tensors: the boxes above the score threshold, not yet suppressed."""

    boxes: str
    """(n, 4) float32: left, top, right, bottom in pixels of the model's input."""
    scores: str
    """(n,) float32."""
    classes: str
    """(n,) int64."""
    count: int
    """Of classes there are."""
    more: str = ""
    """(n, numbers) float32: what the rows hold behind a box and its classes; of landmarks x and y in pixels of the
    model's input. Empty: nothing."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the decoders share: nodes, the recipe's numbers, the input's size, the threshold."""

    nodes: Nodes
    numbers: Postprocess
    size: tuple[int, int]
    threshold: float
    more: int = 0
    """How many numbers a row holds behind a box and its classes."""

    def scores_of(self, values: str) -> str:
        return self.nodes("Sigmoid", values) if self.numbers.scores is Scores.LOGITS else values

    def above(self, values: str, *, raw: bool) -> str:
        """Return where a vector of scores is above the threshold; raw ones are compared before their sigmoid."""
        least = logit(self.threshold) if raw and self.numbers.scores is Scores.LOGITS else self.threshold
        return self.nodes("Greater", values, np.array(least, np.float32))

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


def usually_relative(rows: Rows) -> Rows:
    """Return the rows of a decoder whose exporter writes boxes relative to the input."""
    if rows.numbers.boxes is not Boxes.USUAL:
        return rows
    return replace(rows, numbers=replace(rows.numbers, boxes=Boxes.RELATIVE))
