"""The step `embed-postprocess`: the model gives the answer, with the thresholds that the recipe gives an application.

A detector gives boxes, scores and classes after class-wise non-maximum suppression, with the points of poses and faces
or masks; a classifier its best classes; segmentation the class of each pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.nodes import Nodes
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.embedded import (
    BOXES,
    CLASS_MAP,
    CLASSES,
    FRAME,
    FRAME_OFFSET,
    FRAME_SCALE,
    MASKS,
    POINTS,
    SCORES,
    Embedded,
)
from edgeopt.recipes.heads import end_to_end, head_of, yolov8
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS, split_prototypes
from edgeopt.recipes.recipe import Centres, Recipe, Scores
from edgeopt.steps import Step
from edgeopt.steps._beside_boxes import masks, points, to_frame
from edgeopt.steps._class_map import ARGMAX, class_map
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._embedding import prepared, put_after, why_not_embedded
from edgeopt.tasks.classification import LARGEST
from edgeopt.tasks.instances.decoders import NEEDS_NO_SUPPRESSION as WHOLE_INSTANCES
from edgeopt.tasks.keypoints.decoders import DECODERS as POSES
from edgeopt.tasks.keypoints.decoders import OF_ROWS

EMBEDDED = {
    "yolov8_pose": yolov8.write,
    "end_to_end_pose": end_to_end.write,
    "yolov8_segment": yolov8.write,
    "end_to_end_segment": end_to_end.write,
}
"""Decoders of poses and masks whose rows begin as a detector's."""
_AS_THEY_ARE = WHOLE_INSTANCES | (POSES.keys() - OF_ROWS)
"""Decoders of masks and poses that need no suppression."""
_THINGS = (
    TensorSpec(BOXES, "float32", ("found", 4)),
    TensorSpec(SCORES, "float32", ("found",)),
    TensorSpec(CLASSES, "int64", ("found",)),
)
"""Outputs of what finds things."""
_LEAST_EXPONENT = -80.0
"""As in `tasks/classification.py`: below it a share is nothing."""


def embed_postprocess(model: Model, recipe: Recipe) -> Model:
    """Return the model with the recipe's postprocessing in it: its outputs are the answer.

    Args:
        model: It is not changed. Where `embed_preprocess` made it, boxes are in the frame's pixels, and clipped to it;
            else they are in pixels of the model's input.
        recipe: Bound to the model; `[postprocess]` gives the thresholds.

    Raises:
        UnsupportedError: If the recipe's answer is the outputs themselves, its decoder is not known here, or onnx
            cannot bring the model into opset 13.
    """
    if reason := _why_not_written(recipe):
        raise UnsupportedError(reason, remedy="leave the step embed-postprocess out")
    is_fed_frames = FRAME in {spec.name for spec in model.inputs}
    model = prepared(model)
    nodes = Nodes("postprocess", model.opset)
    raw = [output for output in model.outputs if output.name not in (FRAME_SCALE, FRAME_OFFSET)]
    if recipe.postprocess.decoder in CLASSIFIERS:
        _classify(nodes, recipe, raw[0])
        made = [TensorSpec(CLASSES, "int64", (None,)), TensorSpec(SCORES, "float32", (None,))]
        return put_after(model, nodes, made, keep=False)
    if recipe.postprocess.decoder == ARGMAX:
        nodes.call(CLASS_MAP, class_map(nodes, recipe, raw[0], in_frame=is_fed_frames))
        return put_after(model, nodes, [TensorSpec(CLASS_MAP, "uint16", ("map_height", "map_width"))], keep=False)
    if recipe.postprocess.decoder in POINT_MAPS:
        return put_after(model, nodes, _one_pose(nodes, recipe, raw, in_frame=is_fed_frames), keep=False)
    found = _finite(nodes, _decode(nodes, recipe, raw), with_more=recipe.task != "instances")
    best = _best(nodes, recipe, found)
    boxes = nodes("Gather", found.boxes, best, axis=0)
    boxes, outputs = _in_frame(nodes, boxes) if is_fed_frames else boxes, [*_THINGS]
    if found.more:
        rows = nodes("Gather", found.more, best, axis=0)
        if pair := split_prototypes(raw) if recipe.task == "instances" else None:
            nodes.call(MASKS, masks(nodes, recipe, rows, boxes, pair[1], in_frame=is_fed_frames))
            outputs.append(TensorSpec(MASKS, "bool", ("found", "mask_height", "mask_width")))
        else:
            nodes.call(POINTS, points(nodes, recipe, rows, in_frame=is_fed_frames))
            outputs.append(TensorSpec(POINTS, "float32", ("found", None, 3 if recipe.task == "keypoints" else 2)))
    nodes.call(BOXES, boxes)
    nodes.call(SCORES, nodes("Gather", found.scores, best))
    nodes.call(CLASSES, nodes("Gather", found.classes, best))
    return put_after(model, nodes, outputs, keep=False)


def _writer_of(decoder: str) -> Callable[[HeadRows, Sequence[TensorSpec]], FoundBoxes] | None:
    """Return what writes a decoder; None where nothing does."""
    head = head_of(decoder)
    return head.write if head else EMBEDDED.get(decoder)


def _decode(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    """Write the recipe's decoder, which `_writer_of` knows, for the model's outputs, in its order.

    Raises:
        UnsupportedError: If an output's size that it needs is free.
    """
    numbers, head = recipe.postprocess, head_of(recipe.postprocess.decoder)
    write = _writer_of(numbers.decoder)
    assert write is not None
    ordered = head.order(outputs) if head else outputs
    plain, more = [replace(output, name=nodes.cast(output.name, "float32")) for output in ordered], 0
    if recipe.task == "keypoints":
        more = recipe.keypoints.numbers
    elif pair := split_prototypes(plain) if recipe.task == "instances" else None:
        plain, more = [pair[0]], fixed(pair[1], 1)
    return write(
        HeadRows(nodes, numbers, (recipe.input.size[0], recipe.input.size[1]), numbers.score_threshold, more), plain
    )


def _one_pose(nodes: Nodes, recipe: Recipe, raw: Sequence[TensorSpec], *, in_frame: bool) -> list[TensorSpec]:
    """Write the pose of a picture that shows one thing, of maps, and return what is made."""
    found = pose(nodes, recipe, raw, in_frame=in_frame)
    boxes = _in_frame(nodes, found.boxes) if in_frame else found.boxes
    for name, tensor in ((BOXES, boxes), (SCORES, found.scores), (CLASSES, found.classes), (POINTS, found.more)):
        nodes.call(name, tensor)
    return [*_THINGS, TensorSpec(POINTS, "float32", ("found", None, 3))]


def _why_not_written(recipe: Recipe) -> str:
    """Return why a recipe's answer cannot be embedded; empty where it can."""
    decoder = recipe.postprocess.decoder
    if not recipe.decodes:
        return f"[postprocess] decoder = {decoder!r}: the outputs are the answer already"
    is_known = decoder in (*CLASSIFIERS, *POINT_MAPS, ARGMAX) or _writer_of(decoder) is not None
    return "" if is_known else f"[postprocess] decoder = {decoder!r} is not embedded"


def _finite(nodes: Nodes, found: FoundBoxes, *, with_more: bool) -> FoundBoxes:
    """Leave out boxes that are NaN or infinite: what is subtracted from itself is zero only where it is finite.

    Args:
        nodes: Written to.
        found: Ahead of suppression.
        with_more: Whether what lies behind a box must be finite too: points, not what masks are made of.
    """
    numbers = nodes("Concat", found.boxes, nodes("Unsqueeze", found.scores, ints(1)), axis=1)
    if found.more and with_more:
        numbers = nodes("Concat", numbers, found.more, axis=1)
    none = nodes("ReduceSum", nodes("Sub", numbers, numbers), ints(1), keepdims=0)
    kept = nodes.positions(nodes("Equal", none, np.array(0, np.float32)))
    scores, classes = nodes("Gather", found.scores, kept), nodes("Gather", found.classes, kept)
    more = nodes("Gather", found.more, kept, axis=0) if found.more else ""
    return FoundBoxes(nodes("Gather", found.boxes, kept, axis=0), scores, classes, found.count, more)


def _best(nodes: Nodes, recipe: Recipe, found: FoundBoxes) -> str:
    """Return the positions that stay, best first; of equal scores the first row, as `tasks/detection` has it."""
    numbers, scores, kept = recipe.postprocess, found.scores, ""
    head = head_of(numbers.decoder)
    if not (head.is_suppressed if head else numbers.decoder in _AS_THEY_ARE):
        kept = _suppressed(nodes, recipe, found)
        scores = nodes("Gather", scores, kept)
    most = nodes("Min", nodes("Shape", scores), ints(numbers.max_detections))
    best = nodes.several("TopK", scores, most, count=2, axis=0)[1]
    return nodes("Gather", kept, best) if kept else best


def _suppressed(nodes: Nodes, recipe: Recipe, found: FoundBoxes) -> str:
    """Return the positions that class-wise suppression keeps, in the order of the rows."""
    numbers = recipe.postprocess
    labels = np.arange(found.count, dtype=np.int64).reshape(-1, 1)
    mine = nodes("Equal", labels, nodes("Unsqueeze", found.classes, ints(0)))
    scores = nodes("Where", mine, nodes("Unsqueeze", found.scores, ints(0)), np.array(0, np.float32))
    boxes = nodes("Unsqueeze", found.boxes, ints(0))
    limits = ints(numbers.max_detections), floats(numbers.iou_threshold), floats(0.0)
    chosen = nodes("NonMaxSuppression", boxes, nodes("Unsqueeze", scores, ints(0)), *limits)
    rows = nodes("Squeeze", nodes.columns(chosen, 2, 3), ints(1))
    return nodes.several("TopK", rows, nodes("Shape", rows), count=2, axis=0, largest=0)[0]


def _in_frame(nodes: Nodes, boxes: str) -> str:
    """Lead boxes of the input back into the frame, and clip them to it."""
    twice = ints(0, 1, 0, 1)
    offset, scale = (nodes("Gather", name, twice) for name in (FRAME_OFFSET, FRAME_SCALE))
    limit = nodes.cast(nodes("Gather", nodes("Shape", FRAME), ints(1, 0, 1, 0)), "float32")
    moved = nodes("Div", nodes("Sub", boxes, offset), scale)
    return nodes("Min", nodes("Max", moved, floats(0.0)), limit)


def _classify(nodes: Nodes, recipe: Recipe, output: TensorSpec) -> None:
    """Write the best classes; none where the output holds NaN."""
    first, top = int(recipe.postprocess.background), recipe.postprocess.top
    values = nodes("Reshape", nodes.cast(output.name, "float32"), ints(-1))
    values = nodes("Slice", values, ints(first), ints(np.iinfo(np.int64).max), ints(0))
    damaged = nodes("ReduceMax", nodes.cast(nodes("IsNaN", values), "float32"), keepdims=1)
    count = nodes("Min", nodes("Shape", values), ints(top))
    count = nodes("Where", nodes("Greater", damaged, floats(0.5)), ints(0), count)
    values = nodes("Clip", values, np.array(-LARGEST, np.float32), np.array(LARGEST, np.float32))
    if recipe.postprocess.decoder == "logits":
        below = nodes("Sub", values, nodes("ReduceMax", values, keepdims=1))
        shares = nodes("Exp", nodes("Max", below, floats(_LEAST_EXPONENT)))
        scores, indices = nodes.several("TopK", values, count, count=2, axis=0)
        scores = nodes("Div", nodes("Gather", shares, indices), nodes("ReduceSum", shares, keepdims=1))
    else:
        scores, indices = nodes.several("TopK", values, count, count=2, axis=0)
    nodes.call(SCORES, scores)
    nodes.call(CLASSES, indices)


def _make(model: Model, context: Context, _: Setting) -> Sequence[Outcome]:
    return [Outcome(embed_postprocess(model, context.recipe), {"postprocess": 1})]


STEP = Step(
    _make,
    does="the model gives the answer: boxes with scores, classes, points and masks, the best classes, or a map of them",
    order=71,
    why_not=why_not_embedded,
    why_not_of=_why_not_written,
    in_line=False,
    embeds=Embedded.POSTPROCESS,
    is_default=False,
    tried_on=frozenset({"onnxruntime", "browser"}),
)


# Maps of points as ONNX ops: the one pose of a picture, as `tasks/keypoints/decoders.py` reads it.


@dataclass(frozen=True, slots=True)
class _Read:
    """Names of tensors."""

    places: str
    """(points, 2) float32: x and y in pixels of the model's input."""
    heights: str
    """(points,) float32: of the maps at these places."""
    decisive: str
    """Float32 of any shape: where it holds NaN there is no pose."""


def pose(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec], *, in_frame: bool) -> FoundBoxes:
    """Return the pose, or none where it is not sure enough or its heights are NaN.

    Args:
        nodes: Written to.
        recipe: Bound to the model; its decoder is one of `POINT_MAPS`.
        outputs: Of the model, in its order.
        in_frame: Whether the points, which are `more`, (n, points, 3), are led into the frame; the box never is.

    Raises:
        UnsupportedError: If a size of the maps is free.
    """
    read = POINT_MAPS[recipe.postprocess.decoder](nodes, recipe, outputs)
    is_logit = recipe.postprocess.scores is Scores.LOGITS
    least, most = (np.array(limit, np.float32) for limit in (0, 1))
    sure = nodes("Sigmoid", read.heights) if is_logit else nodes("Clip", read.heights, least, most)
    score = nodes("ReduceMean", sure, keepdims=1)
    damaged = nodes("ReduceMax", nodes.cast(nodes("IsNaN", read.decisive), "float32"), keepdims=0)
    is_sure = nodes("Greater", score, floats(recipe.postprocess.score_threshold))
    kept = nodes.positions(nodes("And", is_sure, nodes("Less", damaged, floats(0.5))))
    box = nodes("Concat", nodes.smallest(read.places, 0), nodes.largest(read.places, 0), axis=0)
    places = to_frame(nodes, read.places) if in_frame else read.places
    points = nodes("Concat", places, nodes("Unsqueeze", sure, ints(1)), axis=1)
    boxes, whole = (nodes("Gather", nodes("Unsqueeze", name, ints(0)), kept, axis=0) for name in (box, points))
    return FoundBoxes(boxes, nodes("Gather", score, kept), nodes("Mul", kept, ints(0)), 1, whole)


def _heatmaps(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> _Read:
    """Read a map a point: its highest place, moved a quarter of a cell to the higher neighbour.

    A map that holds NaN or infinity is read at its first place.
    """
    count, rows, columns = (fixed(outputs[0], i) for i in (1, 2, 3))
    flat = nodes("Reshape", nodes.cast(outputs[0].name, "float32"), ints(count, rows * columns))
    none = nodes("ReduceSum", nodes("Sub", flat, flat), ints(1), keepdims=1)  # NaN where a number is NaN or infinite
    best = nodes("Where", nodes("Equal", none, floats(0.0)), nodes("ArgMax", flat, axis=1, keepdims=1), ints(0))
    cell = nodes("Concat", nodes("Mod", best, ints(columns)), nodes("Div", best, ints(columns)), axis=1)
    apart = nodes("And", nodes("Greater", cell, ints(0)), nodes("Less", cell, ints(columns - 1, rows - 1)))
    inside = nodes("And", nodes.columns(apart, 0, 1), nodes.columns(apart, 1, 2))
    steps = ints(1, columns)
    after = nodes("GatherElements", flat, nodes("Min", nodes("Add", best, steps), ints(rows * columns - 1)), axis=1)
    before = nodes("GatherElements", flat, nodes("Max", nodes("Sub", best, steps), ints(0)), axis=1)
    quarter = nodes("Mul", nodes("Sign", nodes("Sub", after, before)), floats(0.25))
    places = nodes("Add", nodes.cast(cell, "float32"), nodes("Where", inside, quarter, floats(0.0)))
    if recipe.postprocess.centres is Centres.MIDDLE:
        places = nodes("Add", places, floats(0.5))
    high, wide = recipe.input.size
    heights = nodes("Squeeze", nodes("GatherElements", flat, best, axis=1), ints(1))
    return _Read(nodes("Mul", places, floats(wide / columns, high / rows)), heights, heights)


def _simcc(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> _Read:
    """Read columns and lines: the highest place of each; a point is as sure as the lesser of its two heights."""
    flat = [nodes("Squeeze", nodes.cast(spec.name, "float32"), ints(0)) for spec in outputs]
    places, heights = [], []
    for name, output, side in zip(flat, outputs, reversed(recipe.input.size), strict=True):
        count = fixed(output, 2)
        pixels = (np.arange(count) * (side / count)).astype(np.float32).reshape(-1, 1)
        places.append(nodes("Gather", pixels, nodes("ArgMax", name, axis=1, keepdims=0), axis=0))
        heights.append(nodes.largest(name, 1))
    return _Read(nodes("Concat", *places, axis=1), nodes("Min", *heights), nodes("Concat", *flat, axis=1))


POINT_MAPS: dict[str, Callable[[Nodes, Recipe, Sequence[TensorSpec]], _Read]] = {
    "heatmaps": _heatmaps,
    "simcc": _simcc,
}
