"""Rows (n, k) behind any batch of 1, whose columns the recipe names, or the output's name or width; no suppression.

Rows of another picture than the first, or without a class, are none: so some exporters fill up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Exported, Head
from edgeopt.recipes.heads._candidates import MOST_CLASSES, Array, Candidates, Size, corners, to_pixels
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows
from edgeopt.recipes.heads._shapes import Shape, may_be
from edgeopt.recipes.heads._values import Usual, Values
from edgeopt.recipes.outputs.columns import BY_WIDTH, Column, columns_in_name
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_CORNERS = (Column.LEFT, Column.TOP, Column.RIGHT, Column.BOTTOM)
_CENTRED = (Column.X, Column.Y, Column.WIDTH, Column.HEIGHT)


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del size
    columns = numbers.columns
    wanted = f"rows of {len(columns)} columns ({', '.join(columns)})" if columns else "rows whose columns are known"
    if len(shapes) != 1 or not columns or not 2 <= len(shapes[0]) <= 4:  # up to OpenVINO's 1 x 1 x n x 7
        return wanted
    *before, _, width = shapes[0]
    return "" if all(may_be(side, 1) for side in before) and may_be(width, len(columns)) else wanted


def _complete(numbers: Postprocess, outputs: Sequence[TensorSpec]) -> Postprocess:
    """Return the numbers with the columns as the output's name or width tells; what the recipe says stays."""
    if numbers.columns or not outputs or not outputs[0].shape:
        return numbers
    width = outputs[0].shape[-1]
    columns = columns_in_name(outputs[0].name)
    if not columns or (isinstance(width, int) and width != len(columns)):
        columns = BY_WIDTH.get(width, ()) if isinstance(width, int) else ()
    return replace(numbers, columns=columns)


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    places = {column: i for i, column in enumerate(numbers.columns)}
    rows = outputs[0].reshape(-1, len(numbers.columns)).astype(np.float32)
    kept = rows[:, places[Column.SCORE]] > threshold
    if Column.BATCH in places:
        kept &= np.abs(rows[:, places[Column.BATCH]]) < 0.5
    if Column.CLASS in places:
        kept &= (rows[:, places[Column.CLASS]] > -0.5) & (rows[:, places[Column.CLASS]] < MOST_CLASSES)
    array = rows[kept]
    boxes = array[:, [places[column] for column in (_CORNERS if Column.LEFT in places else _CENTRED)]]
    if Column.LEFT not in places:
        boxes = corners(boxes[:, :2], boxes[:, 2:])
    classes = np.zeros(len(array), np.int64)
    if Column.CLASS in places:
        classes = np.rint(array[:, places[Column.CLASS]]).astype(np.int64) - int(numbers.background)
    known = classes >= 0
    boxes = to_pixels(np.ascontiguousarray(boxes), numbers, size)
    return boxes[known], array[known, places[Column.SCORE]], classes[known]


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes, numbers = rows.nodes, rows.numbers
    places = {column: i for i, column in enumerate(numbers.columns)}
    matrix = nodes("Reshape", outputs[0].name, ints(-1, len(numbers.columns)))

    def column(name: Column) -> str:
        return nodes("Reshape", nodes.columns(matrix, places[name], places[name] + 1), ints(-1))

    scores = column(Column.SCORE)
    if Column.CLASS in places:
        label = column(Column.CLASS)
        fits = rows.above(scores, raw=False)
        fits = nodes("And", fits, nodes("Less", label, np.array(MOST_CLASSES, np.float32)))
        classes = nodes("Sub", nodes.cast(nodes("Round", label), "int64"), ints(int(numbers.background)))
        fits = nodes("And", fits, nodes("Greater", label, np.array(int(numbers.background) - 0.5, np.float32)))
    else:
        fits = rows.above(scores, raw=False)
        classes = nodes("Mul", nodes("Shape", scores), ints(0))
        classes = nodes("Expand", classes, nodes("Shape", scores))
    if Column.BATCH in places:
        in_first = nodes("Less", nodes("Abs", column(Column.BATCH)), np.array(0.5, np.float32))
        fits = nodes("And", fits, in_first)
    kept = nodes.positions(fits)
    is_centred = Column.LEFT not in places
    order = ints(*(places[name] for name in (_CENTRED if is_centred else _CORNERS)))
    sides = nodes("Gather", nodes("Gather", matrix, kept, axis=0), order, axis=1)
    boxes = rows.centred(sides) if is_centred else rows.to_pixels(sides)
    return FoundBoxes(boxes, nodes("Gather", scores, kept), nodes("Gather", classes, kept), 0)


def _gather(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    del size
    rows = np.concatenate([outputs[0].reshape(-1, len(numbers.columns)) for outputs in frames])[None]
    sides = [i for i, column in enumerate(numbers.columns) if column in (*_CORNERS, *_CENTRED)]
    return rows[..., sides], rows[..., numbers.columns.index(Column.SCORE)], None


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    usual=Usual(Boxes.PIXELS, Scores.PROBABILITIES, _gather),
    is_suppressed=True,
    has_whole_numbers=True,
    needs_match=True,
    exported=Exported.SUPPRESSED,
    complete=_complete,
)
