"""The step `embed-postprocess`: the model gives the answer, with the thresholds that the recipe gives an application.

A detector gives boxes, scores and classes after class-wise non-maximum suppression; a classifier its best classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.embedded import BOXES, CLASSES, FRAME, FRAME_OFFSET, FRAME_SCALE, SCORES, Embedded
from edgeopt.recipes.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._decoding import Found, decode
from edgeopt.steps._embedding import Nodes, floats, ints, prepared, put_after, why_not_embedded
from edgeopt.tasks.classification import LARGEST
from edgeopt.tasks.detection.decoders import NEEDS_NO_SUPPRESSION

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
    if not recipe.decodes:
        raise UnsupportedError(
            f"[postprocess] decoder = {recipe.postprocess.decoder!r}: the outputs are the answer already",
            remedy="leave the step embed-postprocess out",
        )
    is_fed_frames = FRAME in {one.name for one in model.inputs}
    model = prepared(model)
    nodes = Nodes("postprocess", model.opset)
    raw = [one for one in model.outputs if one.name not in (FRAME_SCALE, FRAME_OFFSET)]
    if recipe.postprocess.decoder in CLASSIFIERS:
        _classify(nodes, recipe, raw[0])
        made = [TensorSpec(CLASSES, "int64", (None,)), TensorSpec(SCORES, "float32", (None,))]
        return put_after(model, nodes, made, keep=False)
    found = _finite(nodes, decode(nodes, recipe, raw))
    best = _best(nodes, recipe, found)
    boxes = nodes("Gather", found.boxes, best, axis=0)
    nodes.call(BOXES, _in_frame(nodes, boxes) if is_fed_frames else boxes)
    nodes.call(SCORES, nodes("Gather", found.scores, best))
    nodes.call(CLASSES, nodes("Gather", found.classes, best))
    outputs = TensorSpec(BOXES, "float32", ("found", 4)), TensorSpec(SCORES, "float32", ("found",))
    return put_after(model, nodes, [*outputs, TensorSpec(CLASSES, "int64", ("found",))], keep=False)


def _finite(nodes: Nodes, found: Found) -> Found:
    """Leave out boxes that are NaN or infinite: what is subtracted from itself is zero only where it is finite."""
    numbers = nodes("Concat", found.boxes, nodes("Unsqueeze", found.scores, ints(1)), axis=1)
    none = nodes("ReduceSum", nodes("Sub", numbers, numbers), ints(1), keepdims=0)
    kept = nodes.positions(nodes("Equal", none, np.array(0, np.float32)))
    scores, classes = nodes("Gather", found.scores, kept), nodes("Gather", found.classes, kept)
    return Found(nodes("Gather", found.boxes, kept, axis=0), scores, classes, found.count)


def _best(nodes: Nodes, recipe: Recipe, found: Found) -> str:
    """Return the positions that stay, best first; of equal scores the first row, as `tasks/detection` has it."""
    numbers, scores, kept = recipe.postprocess, found.scores, ""
    if numbers.decoder not in NEEDS_NO_SUPPRESSION:
        kept = _suppressed(nodes, recipe, found)
        scores = nodes("Gather", scores, kept)
    most = nodes("Min", nodes("Shape", scores), ints(numbers.max_detections))
    best = nodes.several("TopK", scores, most, count=2, axis=0)[1]
    return nodes("Gather", kept, best) if kept else best


def _suppressed(nodes: Nodes, recipe: Recipe, found: Found) -> str:
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
    offset, scale = (nodes("Gather", one, twice) for one in (FRAME_OFFSET, FRAME_SCALE))
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
    does="the model gives the answer: boxes with scores and classes, or the best classes",
    order=71,
    why_not=why_not_embedded,
    in_line=False,
    embeds=Embedded.POSTPROCESS,
    is_default=False,
)
