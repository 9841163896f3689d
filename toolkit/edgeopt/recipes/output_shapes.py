"""Whether a model's outputs have the shapes that a recipe's decoder reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.columns import why_no_rows
from edgeopt.recipes.recipe import Boxes, Postprocess, Recipe
from edgeopt.recipes.suppressed_outputs import Shape, may_be, why_no_detections, why_no_scored_boxes

STRIDES = (8, 16, 32)
"""Used where a detector's recipe writes none."""
DFL_BINS = {"yolov8_dfl": 16, "nanodet": 8}
"""How many bins a side of a box has, where a recipe writes none."""
ROUNDS_UP = ("nanodet", "ssd_offsets", "ssd_offsets_yx")
"""Decoders of grids whose last row and column need not be whole: an input of any size fits."""
CLASSIFIERS = ("logits", "probabilities")
"""Decoders of the task classification."""
SPREADING = ("Softmax", "LogSoftmax")
"""Ops after which the numbers of a row share one whole: no box is among them."""
_WITH_WHOLE_NUMBERS = ("columns", "detections", "detections_yx", "scored_boxes", "poses", "instances")
"""Decoders of graphs that end in suppression, whose classes may be whole numbers."""
_USUAL_STRIDES = (STRIDES, (8, 16, 32, 64), (4, 8, 16, 32))
_HasShape = TypeVar("_HasShape", TensorSpec, NDArray[np.float32])
LANDMARKS = 10
"""Numbers of five points."""
_QUERIES = 300
"""Of Ultralytics' RT-DETR."""
_MOST_ANCHORS = 9
"""Anchors of one cell."""


def count_cells(size: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many cells the grids of an input of height and width have."""
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def why_unfit(recipe: Recipe, outputs: Sequence[TensorSpec]) -> str:
    """Return why a recipe's decoder cannot read these outputs; empty where it can, or where its shapes are unknown.

    Args:
        recipe: With its input size, where it is known.
        outputs: Of the model, in its order.
    """
    decoder = recipe.postprocess.decoder
    if decoder in CLASSIFIERS and not outputs[0].is_unranked:
        wanted = _classes(outputs[0], recipe.postprocess)
        return f"decoder {decoder!r} reads {wanted}; the model has {outputs[0]}" if wanted else ""
    shapes = [one.shape for one in outputs]
    if any(one.is_unranked for one in outputs) or (decoder not in _READERS and decoder not in _POINT_READERS):
        return ""  # of an unknown rank the first run tells
    if odd := [one for one in outputs if "float" not in one.dtype and decoder not in _WITH_WHOLE_NUMBERS]:
        return f"output {odd[0]} holds no floats"
    if len(shapes) == 1 and len(shapes[0]) == 3 and outputs[0].op in SPREADING:
        return f"decoder {decoder!r} reads boxes; {outputs[0]} ends in {outputs[0].op}, which leaves none"
    if decoder in _POINT_READERS:
        wanted = _POINT_READERS[decoder](shapes, recipe)
    else:
        wanted = _READERS[decoder](shapes, recipe.postprocess, recipe.input.size)
    return f"decoder {decoder!r} reads {wanted}; the model has {', '.join(map(str, outputs))}" if wanted else ""


def knows_shapes(recipe: Recipe) -> bool:
    """Return whether `why_unfit` knows the shapes that the recipe's decoder reads."""
    return recipe.postprocess.decoder in (*CLASSIFIERS, *_READERS, *_POINT_READERS)


def require_fit(recipe: Recipe, outputs: Sequence[TensorSpec]) -> None:
    """Raise unless the recipe's decoder can read these outputs.

    Raises:
        UnsupportedError: If it cannot.
    """
    if why := why_unfit(recipe, outputs):
        raise UnsupportedError(
            f"recipe {recipe.name!r} does not fit this model: {why}",
            remedy="pass another --recipe, or correct decoder, strides and anchors under [postprocess] in your own",
        )


def count_classes(recipe: Recipe, outputs: Sequence[TensorSpec]) -> int:
    """Return how many classes a classifier's output tells apart; 0 for other recipes, or where its shape is free."""
    shape = outputs[0].shape[1:] if len(outputs[0].shape) > 1 else outputs[0].shape
    is_known = not outputs[0].is_unranked and all(isinstance(size, int) for size in shape)
    if recipe.postprocess.decoder not in CLASSIFIERS or not is_known:
        return 0
    return max([size for size in shape if isinstance(size, int)], default=0) - int(recipe.postprocess.background)


def _at_least(size: int | str | None, least: int) -> bool:
    return not isinstance(size, int) or size >= least


def _classes(output: TensorSpec, numbers: Postprocess) -> str:
    """Return the shape that a classifier needs; empty where the output has it. All readers below do the same."""
    shape = output.shape if len(output.shape) == 1 else output.shape[1:]
    batch = output.shape[0] if len(output.shape) > 1 else 1
    several = [size for size in shape if size != 1]
    least = 2 + int(numbers.background)
    if output.dtype in ("object", "string", "bool") or not may_be(batch, 1) or len(several) > 1:
        return "one score a class"
    return "" if several and _at_least(several[0], least) else f"{least} classes or more"


def _are_rows(shapes: Sequence[Shape]) -> bool:
    return len(shapes[0]) == 3 and may_be(shapes[0][0], 1)


def _are_cells(count: int | str | None, numbers: Postprocess, size: Sequence[int], most_anchors: int = 1) -> bool:
    """Return whether a grid has `count` boxes: that of the recipe's strides, or a usual one where allowed."""
    if not size or not isinstance(count, int):
        return True
    sets = [numbers.strides or STRIDES]
    if numbers.boxes is not Boxes.CELLS and numbers.decoder != "yolox":
        sets += _USUAL_STRIDES
    counts = [count_cells(size, strides) for strides in sets]
    return any(count in range(cells, most_anchors * cells + 1, cells) for cells in counts if cells)


def _yolox(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not _are_rows(shapes) or not _at_least(shapes[0][2], 6):
        return "1 x boxes x (5 + classes)"
    return "" if _are_cells(shapes[0][1], numbers, size) else _told_cells(numbers, size)


def _yolov8(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not _are_rows(shapes) or not _at_least(shapes[0][1], 5):
        return "1 x (4 + classes) x boxes"
    return "" if _are_cells(shapes[0][2], numbers, size) else _told_cells(numbers, size)


def _yolov5(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not _are_rows(shapes) or not _at_least(shapes[0][2], 6):
        return "1 x boxes x (5 + classes)"
    count, strides = shapes[0][1], numbers.strides or STRIDES
    if numbers.boxes is not Boxes.CELLS:
        return "" if _are_cells(count, numbers, size, _MOST_ANCHORS) else _told_cells(numbers, size)
    if not numbers.anchors:
        return "anchors, which the recipe does not give for boxes relative to a cell"
    pairs = zip(strides, numbers.anchors, strict=True)
    cells = sum(len(flat) // 2 * count_cells(size, [stride]) for stride, flat in pairs) if size else count
    return "" if may_be(count, cells) else f"{cells} boxes, an anchor of a cell each"


def _told_cells(numbers: Postprocess, size: Sequence[int]) -> str:
    strides = numbers.strides or STRIDES
    told = ", ".join(map(str, strides))
    return f"one box for each of {count_cells(size, strides)} cells (strides {told}, input {size[0]}x{size[1]})"


def _yolov5_heads(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not numbers.anchors or len(shapes) != len(numbers.strides):
        return f"one output a stride, with anchors: {len(numbers.strides)} strides, {len(numbers.anchors)} of anchors"
    free = list(shapes)
    for stride, flat in zip(numbers.strides, numbers.anchors, strict=True):
        found = next((one for one in free if _is_head(one, stride, len(flat) // 2, size)), None)
        if found is None:
            return f"1 x {len(flat) // 2} x height/{stride} x width/{stride} x (5 + classes)"
        free.remove(found)
    return "the same classes in each" if len({_values(one) for one in shapes} - {None}) > 1 else ""


def _is_head(shape: Shape, stride: int, anchors: int, size: Sequence[int]) -> bool:
    if len(shape) not in (4, 5) or not may_be(shape[0], 1):
        return False
    plane = shape[2:4]
    if size and not all(may_be(found, side // stride) for found, side in zip(plane, size, strict=True)):
        return False
    if not all(_at_least(side, 1) for side in plane):
        return False
    if len(shape) == 5:
        return may_be(shape[1], anchors) and _at_least(shape[4], 6)
    return not isinstance(shape[1], int) or (shape[1] % anchors == 0 and shape[1] // anchors >= 6)


def _values(head: Shape) -> int | str | None:
    return head[-1] if len(head) == 5 else head[1]


def _end_to_end(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    return "" if _are_rows(shapes) and may_be(shapes[0][2], 6) else "1 x boxes x 6"


def _ssd_corners(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del size
    wanted = "scores 1 x boxes x classes and corners 1 x boxes x 4"
    if len(shapes) < 2 or not _are_rows(shapes[:1]) or not _are_rows(shapes[1:2]):
        return wanted
    scores, corners = sorted(shapes[:2], key=lambda one: one[2] == 4)
    fits = may_be(corners[2], 4) and may_be(scores[1], corners[1]) and _at_least(scores[2], 1 + int(numbers.background))
    return "" if fits else wanted


def _yolov8_dfl(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    sides = 4 * (numbers.bins or DFL_BINS["yolov8_dfl"])
    strides = sorted(numbers.strides or STRIDES)
    wanted = f"{sides} numbers of a box and its classes for each cell (1 x {sides} + classes x cells), or both a stride"
    if not all(may_be(one[0], 1) for one in shapes if one) or len({len(one) for one in shapes}) != 1:
        return wanted
    if len(shapes[0]) == 3:
        fits = len(shapes) == 1 and _at_least(shapes[0][1], sides + 1)
        fits = fits or (len(shapes) == 2 and any(may_be(one[1], sides) for one in shapes))
        return "" if fits and all(_are_cells(one[2], numbers, size) for one in shapes) else wanted
    if len(shapes[0]) != 4 or len(shapes) % len(strides):
        return wanted
    for stride in strides:
        mine = [one for one in shapes if not size or one[2:] == (size[0] // stride, size[1] // stride)]
        channels = [one[1] for one in mine]
        is_whole = len(mine) == 1 and _at_least(channels[0], sides + 1)
        if size and not is_whole and (len(mine) not in (2, 3) or sides not in channels):
            return wanted
    return ""


def _detr(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    wanted = "scores 1 x queries x classes, no object among them, and boxes 1 x queries x 4"
    return wanted if len(shapes) != 2 or _ssd_corners(shapes, replace(numbers, background=True), size) else ""


def _rtdetr(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    wanted = "scores 1 x queries x classes and boxes 1 x queries x 4, or 1 x 300 x (4 + classes)"
    if len(shapes) == 1:
        return "" if _are_rows(shapes) and shapes[0][1] == _QUERIES and _at_least(shapes[0][2], 5) else wanted
    return wanted if len(shapes) != 2 or _ssd_corners(shapes, replace(numbers, background=False), size) else ""


def without_landmarks(outputs: Sequence[_HasShape]) -> list[_HasShape]:
    """Return two of three outputs: five points of a face, (1, n, 10), are left out."""
    points = landmarks_of(outputs)
    return [one for one in outputs if one is not points]


def landmarks_of(outputs: Sequence[_HasShape]) -> _HasShape | None:
    """Return the last of three outputs that holds five points of a face, (1, n, 10); None where none does."""
    found = [one for one in outputs if one.shape[-1:] == (LANDMARKS,)]
    return found[-1] if len(outputs) == 3 and found else None


def _ssd_offsets(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not numbers.anchors:
        return "anchors, which the recipe does not give"
    pairs = zip(numbers.strides or STRIDES, numbers.anchors, strict=True)
    count = (
        sum(len(flat) // 2 * (-(-size[0] // stride)) * (-(-size[1] // stride)) for stride, flat in pairs)
        if size
        else ""
    )
    wanted = f"scores 1 x {count or 'anchors'} x classes and offsets 1 x {count or 'anchors'} x 4"
    told = without_landmarks([TensorSpec("", "", one) for one in shapes])
    if len(told) != 2 or _ssd_corners([one.shape for one in told], numbers, size):
        return wanted
    return "" if all(may_be(one.shape[1], count or None) for one in told) else wanted


def _nanodet(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    sides, strides = 4 * (numbers.bins or DFL_BINS["nanodet"]), numbers.strides or STRIDES
    cells = sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides) if size else None
    fits = len(shapes) == 1 and _are_rows(shapes) and may_be(shapes[0][1], cells) and _at_least(shapes[0][2], sides + 1)
    told = f"1 x {cells or 'cells'} x (classes + {sides}), or for each stride 1 x n x classes and 1 x n x {sides}"
    return "" if fits or _are_apart(shapes, sides, strides, size) else told


def _are_apart(shapes: Sequence[Shape], sides: int, strides: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether each stride has classes and sides in outputs of their own."""
    if len(shapes) != 2 * len(strides) or any(len(one) != 3 or one[0] != 1 for one in shapes) or not size:
        return False
    cells = sorted(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)
    scored = [one for one in shapes if one[2] != sides] or list(shapes[: len(strides)])  # 32 classes: they come first
    placed = [one for one in shapes if one not in scored] or list(shapes[len(strides) :])
    found = [sorted(one[1] for one in ones if isinstance(one[1], int)) for ones in (scored, placed)]
    return found == [cells, cells] and len({one[2] for one in scored}) == 1


def _dbnet(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers
    wanted = "one map, 1 x 1 x height x width"
    if len(shapes) != 1 or len(shapes[0]) != 4 or not all(may_be(one, 1) for one in shapes[0][:2]):
        return wanted
    sides = zip(shapes[0][2:], size, strict=False)
    return "" if all(not isinstance(mine, int) or side % mine == 0 for mine, side in sides) else wanted


def split_prototypes(outputs: Sequence[_HasShape]) -> tuple[_HasShape, _HasShape] | None:
    """Return rows of boxes and the prototypes of masks, whatever their order; None where they are not two such."""
    rows, planes = ([one for one in outputs if len(one.shape) == rank] for rank in (3, 4))
    return (rows[0], planes[0]) if len(outputs) == 2 and rows and planes else None


def _yolov8_segment(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    pair = _rows_and_planes(shapes)
    if pair is None or not _exceeds(*pair, 4):
        return "1 x (4 + classes + coefficients) x boxes and 1 x coefficients x height x width"
    return "" if _are_cells(pair[0][2], numbers, size) else _told_cells(numbers, size)


def _end_to_end_segment(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    pair, wanted = _rows_and_planes(shapes), "1 x boxes x (6 + coefficients) and 1 x coefficients x height x width"
    if pair is None:
        return wanted
    width, count = pair[0][2], pair[1][1]
    return "" if not isinstance(count, int) or may_be(width, 6 + count) else wanted


def _rows_and_planes(shapes: Sequence[Shape]) -> tuple[Shape, Shape] | None:
    pair = split_prototypes([TensorSpec("", "", one) for one in shapes])
    return (pair[0].shape, pair[1].shape) if pair and all(may_be(one.shape[0], 1) for one in pair) else None


def _exceeds(rows: Shape, planes: Shape, by: int) -> bool:
    """Return whether rows have more channels than there are planes, by more than so many; free ones do."""
    return not isinstance(rows[1], int) or not isinstance(planes[1], int) or rows[1] > planes[1] + by


def _instances(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    boxes = [one for one in shapes if len(one) == 2 and may_be(one[1], 4)]
    masks = [one for one in shapes if len(one) == 3 or (len(one) == 4 and may_be(one[1], 1))]
    fits = len(shapes) == 4 and len(boxes) == 1 and len(masks) == 1 and sum(len(one) == 1 for one in shapes) == 2
    return "" if fits else "boxes n x 4, classes n, scores n and masks n x 1 x height x width"


_READERS: dict[str, Callable[[Sequence[Shape], Postprocess, Sequence[int]], str]] = {
    "yolox": _yolox,
    "yolov8": _yolov8,
    "yolov8_dfl": _yolov8_dfl,
    "nanodet": _nanodet,
    "yolov5": _yolov5,
    "yolov5_heads": _yolov5_heads,
    "end_to_end": _end_to_end,
    "columns": lambda shapes, numbers, _: why_no_rows(shapes, numbers.columns),
    "ssd_corners": _ssd_corners,
    "ssd_offsets": _ssd_offsets,
    "ssd_offsets_yx": _ssd_offsets,
    "detections": why_no_detections,
    "detections_yx": why_no_detections,
    "scored_boxes": why_no_scored_boxes,
    "dbnet": _dbnet,
    "dbnet_upright": _dbnet,
    "detr": _detr,
    "rtdetr": _rtdetr,
    "rtdetr_rows": _end_to_end,
    "yolov8_segment": _yolov8_segment,
    "end_to_end_segment": _end_to_end_segment,
    "instances": _instances,
}


def _yolov8_pose(shapes: Sequence[Shape], recipe: Recipe) -> str:
    numbers = recipe.keypoints.numbers
    if len(shapes) != 1 or not _are_rows(shapes) or not _at_least(shapes[0][1], 5 + numbers):
        return f"1 x (4 + classes + {numbers}) x boxes"
    size = recipe.input.size
    return "" if _are_cells(shapes[0][2], recipe.postprocess, size) else _told_cells(recipe.postprocess, size)


def _end_to_end_pose(shapes: Sequence[Shape], recipe: Recipe) -> str:
    width = 6 + recipe.keypoints.numbers
    fits = len(shapes) == 1 and _are_rows(shapes) and may_be(shapes[0][2], width)
    return "" if fits else f"1 x poses x {width}"


def _heatmaps(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count = recipe.keypoints.count or None
    fits = len(shapes[0]) == 4 and may_be(shapes[0][0], 1) and may_be(shapes[0][1], count)
    return "" if fits else f"a map a point, 1 x {count or 'points'} x height x width"


def _simcc(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count, places = recipe.keypoints.count or None, min(recipe.input.size, default=1)
    fits = len(shapes) == 2 and all(
        len(one) == 3
        and may_be(one[0], 1)
        and may_be(one[1], count)
        and may_be(one[1], shapes[0][1])
        and _at_least(one[2], places)
        for one in shapes
    )
    return "" if fits else f"rows of columns and of lines, each 1 x {count or 'points'} x places"


def _poses(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count = recipe.keypoints.count or None
    wide = [one for one in shapes if len(one) == 2 and may_be(one[1], 4)]
    boxes = [one for one in wide if one[1] == 4] or wide  # scores of points may be of a free width
    points = [one for one in shapes if len(one) == 3 and may_be(one[1], count) and may_be(one[2], 3)]
    rows = [one for one in shapes if len(one) == 1]
    fits = len(boxes) == 1 and len(points) == 1 and len(rows) == 2
    return "" if fits else f"boxes n x 4, classes n, scores n and keypoints n x {count or 'points'} x 3"


_POINT_READERS: dict[str, Callable[[Sequence[Shape], Recipe], str]] = {
    "yolov8_pose": _yolov8_pose,
    "end_to_end_pose": _end_to_end_pose,
    "heatmaps": _heatmaps,
    "simcc": _simcc,
    "poses": _poses,
}
