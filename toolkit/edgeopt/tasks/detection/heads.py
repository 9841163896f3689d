"""Which numbers of a detector's raw outputs are scores and which are boxes, one function a decoder.

Each returns the heads of a model, in the words of `edgeopt.tasks._heads`; a place of a head is what may give a box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.output_shapes import DFL_BINS, without_landmarks
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores
from edgeopt.tasks._heads import Columns, Head, Scale
from edgeopt.tasks.detection import decoders_anchors, decoders_dfl

_A_PIXEL = 0.1
"""What a difference of a pixel counts; one of a cell, 8 to 32 pixels, 1."""
_BOX = 4

Size = tuple[int, int]
Describe = Callable[[Postprocess, Sequence[TensorSpec], Size], tuple[Head, ...]]
"""(numbers, outputs in the model's order, (height, width) of the input) -> heads; none where shapes do not say"""


def _unit(numbers: Postprocess, size: Size, usual: Boxes) -> float:
    boxes = usual if numbers.boxes is Boxes.USUAL else numbers.boxes
    if boxes is Boxes.RELATIVE:
        return _A_PIXEL * math.sqrt(size[0] * size[1])
    return _A_PIXEL if boxes is Boxes.PIXELS else 1.0


def _scale(*, is_logit: bool, excludes: bool = False) -> Scale:
    if excludes:
        return Scale.SOFTMAX if is_logit else Scale.SHARES
    return Scale.SIGMOID if is_logit else Scale.EACH


def _rows(usual: Boxes) -> Describe:
    """Return what describes (1, n, 5 + classes): a box, objectness, classes."""

    def describe(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
        name, scale = outputs[0].name, _scale(is_logit=numbers.scores is Scores.LOGITS)
        boxes, sure, classes = Columns(name, 2, 0, _BOX), Columns(name, 2, _BOX, _BOX + 1), Columns(name, 2, _BOX + 1)
        return (Head(classes, scale, objectness=sure, boxes=boxes, unit=_unit(numbers, size, usual)),)

    return describe


def _yolov8(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    name, scale = outputs[0].name, _scale(is_logit=numbers.scores is Scores.LOGITS)
    unit = _unit(numbers, size, Boxes.PIXELS)
    return (Head(Columns(name, 1, _BOX), scale, boxes=Columns(name, 1, 0, _BOX), unit=unit),)


def _yolov5_heads(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    scale = _scale(is_logit=numbers.scores is not Scores.PROBABILITIES)
    anchors = {len(flat) // 2 for flat in numbers.anchors}
    if len(anchors) != 1 or any(len(one.shape) not in (4, 5) for one in outputs):
        return ()
    unit, heads = _unit(numbers, size, Boxes.CELLS), list[Head]()
    for one in outputs:
        axis, blocks = (4, 1) if len(one.shape) == 5 else (1, anchors.copy().pop())
        boxes, sure, classes = (
            Columns(one.name, axis, first, end, blocks)
            for first, end in ((0, _BOX), (_BOX, _BOX + 1), (_BOX + 1, None))
        )
        heads.append(Head(classes, scale, objectness=sure, boxes=boxes, unit=unit))
    return tuple(heads)


def _yolov8_dfl(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    del size
    bins, scale = numbers.bins or DFL_BINS["yolov8_dfl"], _scale(is_logit=decoders_dfl.is_logits(numbers))
    planes = list[tuple[int, int]]()
    for one in outputs:
        sides = [side for side in one.shape[1:] if isinstance(side, int)]
        if len(sides) != len(one.shape) - 1 or not sides:
            return ()
        planes.append((sides[0], math.prod(sides[1:])))
    heads = list[Head]()
    for i, j in decoders_dfl.pairs_of(planes, _BOX * bins):
        first = _BOX * bins if i == j else 0
        boxes = Columns(outputs[i].name, 1, 0, _BOX * bins)
        heads.append(Head(Columns(outputs[j].name, 1, first), scale, boxes=boxes, bins=bins))
    return tuple(heads)


def _nanodet(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    del size
    bins, name = numbers.bins or DFL_BINS["nanodet"], outputs[0].name
    scale, sides = _scale(is_logit=decoders_dfl.is_logits(numbers)), _BOX * bins
    if len(outputs) > 1:
        sizes = [tuple(side for side in one.shape[1:] if isinstance(side, int)) for one in outputs]
        pairs = decoders_dfl.nanodet_pairs(sizes, sides) if all(len(one) == 2 for one in sizes) else []
        return tuple(
            Head(Columns(outputs[i].name, 2), scale, boxes=Columns(outputs[j].name, 2), bins=bins) for i, j in pairs
        )
    return (Head(Columns(name, 2, 0, -sides), scale, boxes=Columns(name, 2, -sides), bins=bins),)


def _scores_and_boxes(outputs: Sequence[TensorSpec]) -> tuple[Columns, Columns]:
    """Return the columns of two outputs in either order; see `scores_first`."""
    is_swapped = outputs[0].shape[-1] == _BOX != outputs[1].shape[-1]
    first, second = reversed(outputs[:2]) if is_swapped else outputs[:2]
    return Columns(first.name, 2), Columns(second.name, 2)


def _ssd_corners(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    scores, boxes = _scores_and_boxes(outputs)
    scale = _scale(is_logit=numbers.scores is Scores.LOGITS, excludes=numbers.background)
    background = 0 if numbers.background else None
    return (Head(scores, scale, background, boxes=boxes, unit=_unit(numbers, size, Boxes.RELATIVE)),)


def _ssd_offsets(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    del size
    scores, boxes = _scores_and_boxes(without_landmarks(outputs))
    is_logit = decoders_anchors.is_logits(numbers)
    scale = _scale(is_logit=is_logit, excludes=decoders_anchors.has_softmax(numbers))
    return (Head(scores, scale, 0 if numbers.background else None, boxes=boxes),)


def _detr(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    scores, boxes = _scores_and_boxes(outputs)
    scale = _scale(is_logit=numbers.scores is not Scores.PROBABILITIES, excludes=True)
    return (Head(scores, scale, -1, boxes=boxes, unit=_unit(numbers, size, Boxes.RELATIVE)),)


def _rtdetr(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    usual, name = Scores.PROBABILITIES if len(outputs) == 1 else Scores.LOGITS, outputs[0].name
    both = (Columns(name, 2, _BOX), Columns(name, 2, 0, _BOX)) if len(outputs) == 1 else _scores_and_boxes(outputs)
    scale = _scale(is_logit=(usual if numbers.scores is Scores.USUAL else numbers.scores) is Scores.LOGITS)
    return (Head(both[0], scale, boxes=both[1], unit=_unit(numbers, size, Boxes.RELATIVE)),)


def _dbnet(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    del size
    return (Head(Columns(outputs[0].name, 1), _scale(is_logit=numbers.scores is Scores.LOGITS)),)


def _dbnet_upright(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    del size
    return (Head(Columns(outputs[0].name, 1), _scale(is_logit=numbers.scores is not Scores.PROBABILITIES)),)


HEADS: dict[str, Describe] = {
    "yolox": _rows(Boxes.CELLS),
    "yolov5": _rows(Boxes.PIXELS),
    "yolov5_heads": _yolov5_heads,
    "yolov8": _yolov8,
    "yolov8_dfl": _yolov8_dfl,
    "nanodet": _nanodet,
    "ssd_corners": _ssd_corners,
    "ssd_offsets": _ssd_offsets,
    "ssd_offsets_yx": _ssd_offsets,
    "detr": _detr,
    "rtdetr": _rtdetr,
    "dbnet": _dbnet,
    "dbnet_upright": _dbnet_upright,
}
"""By decoder."""
WITHOUT = frozenset({"columns", "end_to_end", "rtdetr_rows", "detections", "detections_yx", "scored_boxes"})
"""Decoders of graphs that choose boxes themselves: the order of their rows says nothing, so that all outputs are
learned alike."""


def heads_of(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[Head, ...]:
    """Return what a student learns of a detector's outputs; none where their shapes or their decoder do not say.

    Args:
        numbers: Of the recipe.
        outputs: Of the model, in its order.
        size: Height and width of the input.
    """
    if numbers.decoder not in HEADS or any(output.is_unranked for output in outputs):
        return ()
    return HEADS[numbers.decoder](numbers, outputs, size)
