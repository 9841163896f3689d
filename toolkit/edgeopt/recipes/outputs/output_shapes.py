"""Whether a model's outputs have the shapes that a recipe's decoder reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.heads._shapes import Shape, are_rows, at_least, may_be, why_other_cells
from edgeopt.recipes.recipe import Postprocess, Recipe

CLASSIFIERS = ("logits", "probabilities")
"""Decoders of the task classification."""
SPREADING = ("Softmax", "LogSoftmax")
"""Ops after which the numbers of a row share one whole: no box is among them."""
_WITH_WHOLE_NUMBERS = ("poses", "instances")
"""Decoders of graphs that end in suppression, whose classes may be whole numbers; those of detectors say so."""
_HasShape = TypeVar("_HasShape", TensorSpec, NDArray[np.float32])


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
    shapes, head = [output.shape for output in outputs], head_of(decoder)
    if any(output.is_unranked for output in outputs) or not knows_shapes(recipe):
        return ""  # of an unknown rank the first run tells
    has_whole_numbers = head.has_whole_numbers if head else decoder in _WITH_WHOLE_NUMBERS
    if odd := [output for output in outputs if "float" not in output.dtype and not has_whole_numbers]:
        return f"output {odd[0]} holds no floats"
    if len(shapes) == 1 and len(shapes[0]) == 3 and outputs[0].op in SPREADING:
        return f"decoder {decoder!r} reads boxes; {outputs[0]} ends in {outputs[0].op}, which leaves none"
    if head:
        wanted = head.why_unfit(shapes, recipe.postprocess, recipe.input.size)
    else:
        wanted = _READERS[decoder](shapes, recipe)
    return f"decoder {decoder!r} reads {wanted}; the model has {', '.join(map(str, outputs))}" if wanted else ""


def knows_shapes(recipe: Recipe) -> bool:
    """Return whether `why_unfit` knows the shapes that the recipe's decoder reads."""
    decoder = recipe.postprocess.decoder
    return decoder in (*CLASSIFIERS, *_READERS) or head_of(decoder) is not None


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


def _classes(output: TensorSpec, numbers: Postprocess) -> str:
    """Return the shape that a classifier needs; empty where the output has it. All readers below do the same."""
    shape = output.shape if len(output.shape) == 1 else output.shape[1:]
    batch = output.shape[0] if len(output.shape) > 1 else 1
    several = [size for size in shape if size != 1]
    least = 2 + int(numbers.background)
    if output.dtype in ("object", "string", "bool") or not may_be(batch, 1) or len(several) > 1:
        return "one score a class"
    return "" if several and at_least(several[0], least) else f"{least} classes or more"


def split_prototypes(outputs: Sequence[_HasShape]) -> tuple[_HasShape, _HasShape] | None:
    """Return rows of boxes and the prototypes of masks, whatever their order; None where they are not two such."""
    rows, planes = ([output for output in outputs if len(output.shape) == rank] for rank in (3, 4))
    return (rows[0], planes[0]) if len(outputs) == 2 and rows and planes else None


def _yolov8_segment(shapes: Sequence[Shape], recipe: Recipe) -> str:
    pair = _rows_and_planes(shapes)
    if pair is None or not _exceeds(*pair, 4):
        return "1 x (4 + classes + coefficients) x boxes and 1 x coefficients x height x width"
    return why_other_cells(pair[0][2], recipe.postprocess, recipe.input.size)


def _end_to_end_segment(shapes: Sequence[Shape], recipe: Recipe) -> str:
    del recipe
    pair, wanted = _rows_and_planes(shapes), "1 x boxes x (6 + coefficients) and 1 x coefficients x height x width"
    if pair is None:
        return wanted
    width, count = pair[0][2], pair[1][1]
    return "" if not isinstance(count, int) or may_be(width, 6 + count) else wanted


def _rows_and_planes(shapes: Sequence[Shape]) -> tuple[Shape, Shape] | None:
    pair = split_prototypes([TensorSpec("", "", shape) for shape in shapes])
    return (pair[0].shape, pair[1].shape) if pair and all(may_be(spec.shape[0], 1) for spec in pair) else None


def _exceeds(rows: Shape, planes: Shape, by: int) -> bool:
    """Return whether rows have more channels than there are planes, by more than so many; free ones do."""
    return not isinstance(rows[1], int) or not isinstance(planes[1], int) or rows[1] > planes[1] + by


def _instances(shapes: Sequence[Shape], recipe: Recipe) -> str:
    del recipe
    boxes = [shape for shape in shapes if len(shape) == 2 and may_be(shape[1], 4)]
    masks = [shape for shape in shapes if len(shape) == 3 or (len(shape) == 4 and may_be(shape[1], 1))]
    fits = len(shapes) == 4 and len(boxes) == 1 and len(masks) == 1 and sum(len(shape) == 1 for shape in shapes) == 2
    return "" if fits else "boxes n x 4, classes n, scores n and masks n x 1 x height x width"


def _yolov8_pose(shapes: Sequence[Shape], recipe: Recipe) -> str:
    numbers = recipe.keypoints.numbers
    if len(shapes) != 1 or not are_rows(shapes, 5 + numbers, axis=1):
        return f"1 x (4 + classes + {numbers}) x boxes"
    return why_other_cells(shapes[0][2], recipe.postprocess, recipe.input.size)


def _end_to_end_pose(shapes: Sequence[Shape], recipe: Recipe) -> str:
    width = 6 + recipe.keypoints.numbers
    fits = len(shapes) == 1 and are_rows(shapes) and may_be(shapes[0][2], width)
    return "" if fits else f"1 x poses x {width}"


def _heatmaps(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count = recipe.keypoints.count or None
    fits = len(shapes[0]) == 4 and may_be(shapes[0][0], 1) and may_be(shapes[0][1], count)
    return "" if fits else f"a map a point, 1 x {count or 'points'} x height x width"


def _simcc(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count, places = recipe.keypoints.count or None, min(recipe.input.size, default=1)
    fits = len(shapes) == 2 and all(
        len(shape) == 3
        and may_be(shape[0], 1)
        and may_be(shape[1], count)
        and may_be(shape[1], shapes[0][1])
        and at_least(shape[2], places)
        for shape in shapes
    )
    return "" if fits else f"rows of columns and of lines, each 1 x {count or 'points'} x places"


def _poses(shapes: Sequence[Shape], recipe: Recipe) -> str:
    count = recipe.keypoints.count or None
    wide = [shape for shape in shapes if len(shape) == 2 and may_be(shape[1], 4)]
    boxes = [pair for pair in wide if pair[1] == 4] or wide  # scores of points may be of a free width
    points = [shape for shape in shapes if len(shape) == 3 and may_be(shape[1], count) and may_be(shape[2], 3)]
    rows = [shape for shape in shapes if len(shape) == 1]
    fits = len(boxes) == 1 and len(points) == 1 and len(rows) == 2
    return "" if fits else f"boxes n x 4, classes n, scores n and keypoints n x {count or 'points'} x 3"


_READERS: dict[str, Callable[[Sequence[Shape], Recipe], str]] = {
    "yolov8_segment": _yolov8_segment,
    "end_to_end_segment": _end_to_end_segment,
    "instances": _instances,
    "yolov8_pose": _yolov8_pose,
    "end_to_end_pose": _end_to_end_pose,
    "heatmaps": _heatmaps,
    "simcc": _simcc,
    "poses": _poses,
}
"""Readers of decoders of masks and poses."""
