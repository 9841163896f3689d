"""YOLOv10, 26: (1, n, 6), left, top, right, bottom in pixels, score, class; nothing is left to suppress."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Exported, Head, first
from edgeopt.recipes.heads._candidates import MOST_CLASSES, Array, Candidates, Size, least, scores_of, to_pixels
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows
from edgeopt.recipes.heads._shapes import Shape, are_rows, may_be
from edgeopt.recipes.heads._values import Usual, Values
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    return "" if are_rows(shapes) and may_be(shapes[0][2], 6) else "1 x boxes x 6"


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    rows = outputs[0][0]
    is_class = (rows[:, 5] > -0.5) & (rows[:, 5] < MOST_CLASSES)  # rows beyond the last box may hold -1
    kept = rows[(rows[:, 4] > least(numbers, threshold)) & is_class]
    boxes = to_pixels(kept[:, :4], numbers, size)
    return np.ascontiguousarray(boxes), scores_of(kept[:, 4], numbers), kept[:, 5].round().astype(np.int64)


def write(rows: HeadRows, outputs: Sequence[TensorSpec], *, is_centred: bool = False) -> FoundBoxes:
    """Write the head; rows of poses and masks hold more numbers behind, and others centre and size."""
    nodes = rows.nodes
    matrix = rows.matrix(outputs[0])
    score, label = (nodes("Squeeze", nodes.columns(matrix, i, i + 1), ints(1)) for i in (4, 5))
    is_class = nodes(
        "And",
        nodes("Greater", label, np.array(-0.5, np.float32)),
        nodes("Less", label, np.array(MOST_CLASSES, np.float32)),
    )
    kept = nodes.positions(nodes("And", rows.above(score, raw=True), is_class))
    found = nodes("Gather", matrix, kept, axis=0)
    sides, more = nodes.columns(found, 0, 4), nodes.columns(found, 6, 6 + rows.more)
    boxes = rows.centred(sides) if is_centred else rows.to_pixels(sides)
    classes = nodes.cast(nodes("Round", nodes("Gather", label, kept)), "int64")
    return FoundBoxes(boxes, rows.scores_of(nodes("Gather", score, kept)), classes, 0, more if rows.more else "")


def _gather(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    del numbers, size
    rows = np.stack([outputs[0][0] for outputs in frames])
    return rows[..., :4], rows[..., 4], None


HEAD = Head(
    _why_unfit,
    _decode,
    write,
    usual=Usual(Boxes.PIXELS, Scores.PROBABILITIES, _gather),
    is_suppressed=True,
    exported=Exported.SUPPRESSED,
    read=first,
)
