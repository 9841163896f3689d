"""The decoders of `tasks/detection/decoders_whole.py` as ONNX ops: boxes that the graph suppressed itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.columns import Column
from edgeopt.recipes.suppressed_outputs import boxes_and_classes, boxes_first
from edgeopt.steps._decoded_rows import SIDES, Found, Rows, usually_relative
from edgeopt.steps._embedding import ints
from edgeopt.tasks.detection.head_parts import MOST_CLASSES

_CORNERS = (Column.LEFT, Column.TOP, Column.RIGHT, Column.BOTTOM)


def columns(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, numbers = rows.nodes, rows.numbers
    places = {column: i for i, column in enumerate(numbers.columns)}
    matrix = nodes("Reshape", outputs[0].name, ints(-1, len(numbers.columns)))

    def column(name: Column) -> str:
        return nodes("Reshape", nodes.columns(matrix, places[name], places[name] + 1), ints(-1))

    scores = column(Column.SCORE)
    if Column.CLASS in places:
        label = column(Column.CLASS)
        fits = nodes("Greater", scores, np.array(rows.threshold, np.float32))
        fits = nodes("And", fits, nodes("Less", label, np.array(MOST_CLASSES, np.float32)))
        classes = nodes("Sub", nodes.cast(nodes("Round", label), "int64"), ints(int(numbers.background)))
        fits = nodes("And", fits, nodes("Greater", label, np.array(int(numbers.background) - 0.5, np.float32)))
    else:
        fits = nodes("Greater", scores, np.array(rows.threshold, np.float32))
        classes = nodes("Mul", nodes("Shape", scores), ints(0))
        classes = nodes("Expand", classes, nodes("Shape", scores))
    if Column.BATCH in places:
        first = nodes("Less", nodes("Abs", column(Column.BATCH)), np.array(0.5, np.float32))
        fits = nodes("And", fits, first)
    kept = nodes.positions(fits)
    is_centred = Column.LEFT not in places
    names = (Column.X, Column.Y, Column.WIDTH, Column.HEIGHT) if is_centred else _CORNERS
    sides = nodes("Gather", nodes("Gather", matrix, kept, axis=0), ints(*(places[one] for one in names)), axis=1)
    boxes = rows.centred(sides) if is_centred else rows.to_pixels(sides)
    return Found(boxes, nodes("Gather", scores, kept), nodes("Gather", classes, kept), 0)


def detections(rows: Rows, outputs: Sequence[TensorSpec], *, order: Sequence[int] = (0, 1, 2, 3)) -> Found:
    """Decode boxes, classes and scores in outputs of their own, up to a count where there is one."""
    nodes = rows.nodes
    boxes, *flat = boxes_first(outputs)
    matrix, count = nodes("Reshape", boxes.name, ints(-1, SIDES)), ""
    if len(flat) > 2 and (counts := [one for one in flat if one.shape[-1] == 1]):
        flat.remove(counts[0])
        count = nodes("Reshape", nodes.cast(counts[0].name, "int64"), ints(1))
        count = nodes("Max", count, ints(0))
    labels, scores = sorted(flat[:2], key=lambda one: "float" in one.dtype)
    vectors = [nodes("Reshape", one.name, ints(-1)) for one in (labels, scores)]
    if count:
        matrix, *vectors = [nodes("Slice", one, ints(0), count, ints(0)) for one in (matrix, *vectors)]
    sides = nodes("Gather", matrix, ints(*order), axis=1) if order != (0, 1, 2, 3) else matrix
    return _of_known_classes(rows, sides, vectors[1], vectors[0])


def detections_yx(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    return detections(usually_relative(rows), outputs, order=(1, 0, 3, 2))


def scored_boxes(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, (boxes, labels) = rows.nodes, boxes_and_classes(outputs)
    matrix = nodes("Reshape", boxes.name, ints(-1, SIDES + 1))
    scores = nodes("Reshape", nodes.columns(matrix, SIDES, SIDES + 1), ints(-1))
    return _of_known_classes(rows, nodes.columns(matrix, 0, SIDES), scores, nodes("Reshape", labels.name, ints(-1)))


def _of_known_classes(rows: Rows, sides: str, scores: str, labels: str) -> Found:
    """Return the boxes, (n, 4), whose scores, (n,), are above the threshold and whose classes are none below 0."""
    nodes = rows.nodes
    classes = nodes("Sub", nodes.cast(nodes("Round", labels), "int64"), ints(int(rows.numbers.background)))
    fits = nodes(
        "And", nodes("Greater", scores, np.array(rows.threshold, np.float32)), nodes("Greater", classes, ints(-1))
    )
    kept = nodes.positions(fits)
    boxes = rows.to_pixels(nodes("Gather", sides, kept, axis=0))
    return Found(boxes, nodes("Gather", scores, kept), nodes("Gather", classes, kept), 0)
