"""NanoDet, PicoDet: (1, n, classes + 4 * bins), class probabilities, then distributions of the sides; 8 bins.

Sides are measured from the corner of a cell; `centres = "middle"` from its middle, as before NanoDet-Plus. A last row
or column of a grid that is not whole counts. Boxes are cut at the input's edges, before suppression. Older exports have
both apart for each stride, (1, n, classes) and (1, n, 4 * bins).

Source: NanoDet, `NanoDetPlusHead._forward_onnx`, `get_bboxes` and `get_single_level_center_priors`; apart:
`NanoDetHead.forward_single` of version 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    around,
    best_class,
    distances,
    grid,
    least,
    scores_of,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import STRIDES, Shape, are_rows, count_cells, may_be
from edgeopt.recipes.outputs.learned import BOX, Columns, LearnedHead, scale_of
from edgeopt.recipes.recipe import Centres, Postprocess, Scores

_BINS = 8


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    sides, strides = 4 * (numbers.bins or _BINS), numbers.strides or STRIDES
    cells = count_cells(size, strides, rounds_up=True) if size else None
    fits = len(shapes) == 1 and are_rows(shapes, sides + 1) and may_be(shapes[0][1], cells)
    text = f"1 x {cells or 'cells'} x (classes + {sides}), or for each stride 1 x n x classes and 1 x n x {sides}"
    return "" if fits or _are_apart(shapes, sides, strides, size) else text


def _are_apart(shapes: Sequence[Shape], sides: int, strides: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether each stride has classes and sides in outputs of their own."""
    if len(shapes) != 2 * len(strides) or any(len(shape) != 3 or shape[0] != 1 for shape in shapes) or not size:
        return False
    cells = sorted(count_cells(size, [stride], rounds_up=True) for stride in strides)
    scored = [shape for shape in shapes if shape[2] != sides]
    scored = scored or list(shapes[: len(strides)])  # 32 classes: they come first
    placed = [shape for shape in shapes if shape not in scored] or list(shapes[len(strides) :])
    counts = [sorted(shape[1] for shape in each if isinstance(shape[1], int)) for each in (scored, placed)]
    return counts == [cells, cells] and len({shape[2] for shape in scored}) == 1


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    bins, rows = numbers.bins or _BINS, outputs[0][0]
    if len(outputs) > 1:
        pairs = pairs_of([output.shape[1:] for output in outputs], 4 * bins)
        rows = np.concatenate([np.concatenate([outputs[i][0], outputs[j][0]], axis=1) for i, j in pairs])
    kept, scores, classes = best_class(rows[:, : -4 * bins], least(numbers, threshold))
    cells, strides = grid(size, numbers.strides or STRIDES, rounds_up=True)
    boxes = around(cells[kept] + _shift_of(numbers), distances(rows[kept, -4 * bins :], bins), strides[kept])
    boxes = np.clip(boxes, 0, [size[1], size[0]] * 2)
    return boxes.astype(np.float32), scores_of(scores, numbers), classes


def pairs_of(shapes: Sequence[tuple[int, ...]], sides: int) -> list[tuple[int, int]]:
    """Return which outputs hold classes and which sides, finest stride first.

    Args:
        shapes: Cells and columns of each output; of as many columns, the exporter writes classes first.
        sides: Columns of the sides.
    """
    finest = sorted(range(len(shapes)), key=lambda i: (-shapes[i][0], shapes[i][1] == sides, i))
    return list(zip(finest[::2], finest[1::2], strict=True))


def _shift_of(numbers: Postprocess) -> np.float32:
    """Return how far inside its cell, in cells, sides are measured from."""
    return np.float32(0.5 if numbers.centres is Centres.MIDDLE else 0.0)


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes, bins = rows.nodes, rows.numbers.bins or _BINS
    if len(outputs) == 1:
        width, matrix = fixed(outputs[0], 2), rows.matrix(outputs[0])
    else:
        pairs = pairs_of([(fixed(output, 1), fixed(output, 2)) for output in outputs], 4 * bins)
        joined = [nodes("Concat", outputs[i].name, outputs[j].name, axis=2) for i, j in pairs]
        width = sum(fixed(outputs[i], 2) for i in pairs[0])
        matrix = nodes("Squeeze", nodes("Concat", *joined, axis=1), ints(0))
    count = width - 4 * bins
    best, label, kept = rows.best_class(nodes.columns(matrix, 0, count), raw=True)
    sides = nodes.columns(nodes("Gather", matrix, kept, axis=0), count, width)
    cells, strides = grid(rows.size, rows.numbers.strides or STRIDES, rounds_up=True)
    made = rows.around(cells + _shift_of(rows.numbers), rows.distances(sides, bins), strides, kept)
    made = nodes("Min", nodes("Max", made, floats(0.0)), floats(*reversed(rows.size), *reversed(rows.size)))
    return FoundBoxes(made, rows.scores_of(nodes("Gather", best, kept)), nodes("Gather", label, kept), count)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    del size
    bins, name = numbers.bins or _BINS, outputs[0].name
    scale, sides = scale_of(is_logit=numbers.scores is Scores.LOGITS), BOX * bins
    if len(outputs) == 1:
        return (LearnedHead(Columns(name, 2, 0, -sides), scale, boxes=Columns(name, 2, -sides), bins=bins),)
    sizes = [tuple(side for side in output.shape[1:] if isinstance(side, int)) for output in outputs]
    pairs = pairs_of(sizes, sides) if all(len(pair) == 2 for pair in sizes) else []
    return tuple(
        LearnedHead(Columns(outputs[i].name, 2), scale, boxes=Columns(outputs[j].name, 2), bins=bins) for i, j in pairs
    )


HEAD = Head(_why_unfit, _decode, _write, _learned, rounds_up=True)
