"""The step `embed-preprocess`: the model takes the frame as it comes, of any height and width.

Resize becomes ONNX ops, in front of whatever precision follows; colour, normalisation and layout are those of
`_normalising.py`. Sizes are computed in float64, as `recipes/inputs/preprocess.py` does. Pixels are interpolated in
float32, of those rows alone that the picture needs, and rounded as OpenCV rounds them: few differ, by one of 255
steps (docs/apps.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.nodes import Nodes, Operand
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.embedded import FRAME, FRAME_OFFSET, FRAME_SCALE, Embedded
from edgeopt.recipes.inputs.preprocess import Colour, Decode, Layout, Resize
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import FOUND
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._embedding import put_after, put_before, why_not_embedded
from edgeopt.steps._frame_place import Place, place_of
from edgeopt.steps._normalising import name_tensor, normalised, take_over, why_no_picture

_HALF = np.array(0.5, np.float64)
_STEPS = np.array(2048, np.float32)
"""OpenCV rounds the share of a row to so many."""


def embed_preprocess(model: Model, recipe: Recipe) -> Model:
    """Return the model with the recipe's preprocessing in it: its input is `FRAME` in place of the picture's tensor.

    A detector also gives `FRAME_SCALE` and `FRAME_OFFSET`, which lead its boxes back into the frame.

    Args:
        model: It is not changed; its other inputs stay.
        recipe: Bound to the model.

    Raises:
        UnsupportedError: If the recipe says nothing of a picture, or onnx cannot bring the model into opset 13.
    """
    if reason := _why_not_written(recipe):
        raise UnsupportedError(reason, remedy="leave the step embed-preprocess out")
    is_line = recipe.preprocess.resize is Resize.LINE
    model, taken, left = take_over(model, recipe, FRAME, has_border=is_line)
    nodes = Nodes("preprocess", model.opset)
    place = place_of(nodes, recipe)
    pixels = _fitted(nodes, recipe, _resized(nodes, place), place)
    tensor = normalised(nodes, recipe, pixels, left)
    name_tensor(nodes, recipe, _lengthened(nodes, recipe, tensor, place), taken)
    made = put_before(model, taken, nodes, [TensorSpec(FRAME, "uint8", ("frame_height", "frame_width", 3))])
    if recipe.task not in FOUND:
        return made
    after = Nodes("geometry", model.opset)
    after.call(FRAME_SCALE, after.cast(_x_first(after, place.scale), "float32"))
    sign = -1.0 if recipe.preprocess.resize is Resize.CENTRE_CROP else 1.0
    after.call(FRAME_OFFSET, after("Mul", after.cast(_x_first(after, place.offset), "float32"), floats(sign)))
    return put_after(
        made, after, [TensorSpec(name, "float32", (2,)) for name in (FRAME_SCALE, FRAME_OFFSET)], keep=True
    )


def _x_first(nodes: Nodes, pair: Operand) -> str:
    return nodes("Gather", pair, ints(1, 0))


def _lengthened(nodes: Nodes, recipe: Recipe, pixels: str, place: Place) -> str:
    """Fill a line with 0 up to the input's width; what fills the input stays as it is."""
    if recipe.preprocess.resize is not Resize.LINE:
        return pixels
    zero, lacking = ints(0), nodes("Sub", ints(*recipe.input.size), place.size)
    planar, channels = recipe.input.layout is not Layout.NHWC, 1 if recipe.preprocess.colour is Colour.GREY else 3
    behind = (zero, zero, lacking) if planar else (zero, lacking, zero)
    padded = nodes("Pad", pixels, nodes("Concat", ints(0, 0, 0, 0), *behind, axis=0))
    height, width = recipe.input.size
    return nodes("Reshape", padded, ints(*((1, channels, height, width) if planar else (1, height, width, channels))))


def _resized(nodes: Nodes, place: Place) -> str:
    """Scale the frame: (1, height, width, 3) uint8.

    As OpenCV: columns first, then each of two rows weighed in 2048ths and cut to a quarter of a step, then their sum
    rounded. Rows that nothing needs stay as they are.
    """
    rows = nodes("Gather", nodes("Shape", FRAME), ints(0))
    wanted = nodes("Gather", place.size, ints(0))
    step = nodes("Div", nodes.cast(rows, "float64"), nodes.cast(wanted, "float64"))
    zero, array = np.array(0, np.int64), np.array(1, np.int64)
    middles = nodes("Add", nodes.cast(nodes("Range", zero, nodes("Squeeze", wanted, ints(0)), array), "float64"), _HALF)
    last = nodes.cast(nodes("Sub", rows, array), "float64")
    at = nodes("Sub", nodes("Mul", middles, step), _HALF)
    at = nodes("Min", nodes("Max", at, np.array(0, np.float64)), last)
    upper = nodes("Floor", at)
    lower = nodes("Min", nodes("Add", upper, np.array(1, np.float64)), last)
    share = nodes.cast(nodes("Sub", at, upper), "float32")
    parts = nodes("Concat", nodes("Sub", np.array(1, np.float32), share), share, axis=0)
    parts = nodes("Div", nodes("Round", nodes("Mul", parts, _STEPS)), _STEPS / 4)
    pairs = nodes("Gather", FRAME, nodes.cast(nodes("Concat", upper, lower, axis=0), "int64"), axis=0)
    sizes = nodes(
        "Concat", ints(1), nodes("Mul", wanted, ints(2)), nodes("Gather", place.size, ints(1)), ints(3), axis=0
    )
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    both = nodes("Resize", nodes.cast(nodes("Unsqueeze", pairs, ints(0)), "float32"), "", "", sizes, **how)
    quarters = nodes("Floor", nodes("Mul", both, nodes("Reshape", parts, ints(1, -1, 1, 1))))
    halves = nodes.several("Split", quarters, nodes("Concat", wanted, wanted, axis=0), count=2, axis=1)
    rounded = nodes("Add", nodes("Add", *halves), np.array(2, np.float32))
    return nodes.cast(nodes("Mul", rounded, np.array(0.25, np.float32)), "uint8")


def _fitted(nodes: Nodes, recipe: Recipe, pixels: str, place: Place) -> str:
    """Pad or cut what was scaled to the input's size: (1, height, width, 3)."""
    size, zero = ints(*recipe.input.size), ints(0)
    if recipe.preprocess.resize is Resize.LETTERBOX:
        behind = nodes("Sub", nodes("Sub", size, place.size), place.offset)
        pads = nodes("Concat", zero, place.offset, zero, zero, behind, zero, axis=0)
        pixels = nodes("Pad", pixels, pads, np.array(recipe.preprocess.pad, np.uint8))
    if recipe.preprocess.resize is Resize.CENTRE_CROP:
        end = nodes("Add", place.offset, size)
        pixels = nodes("Slice", pixels, place.offset, end, ints(1, 2))
    width = -1 if recipe.preprocess.resize is Resize.LINE else recipe.input.size[1]
    return nodes("Reshape", pixels, ints(1, recipe.input.size[0], width, 3))


def _why_not_written(recipe: Recipe) -> str:
    if reason := why_no_picture(recipe):
        return reason
    if recipe.preprocess.decode is Decode.REDUCED:
        return f"recipe {recipe.name!r} has JPEG files decoded smaller, and a model knows no other size of a frame"
    return ""


def _make(model: Model, context: Context, _: Setting) -> Sequence[Outcome]:
    return [Outcome(embed_preprocess(model, context.recipe), {"preprocess": 1})]


STEP = Step(
    _make,
    does="the model takes frames as they come, of any size: resize, colour and normalisation inside",
    order=70,
    why_not=why_not_embedded,
    why_not_of=_why_not_written,
    in_line=False,
    embeds=Embedded.PREPROCESS,
    is_default=False,
    tried_on=frozenset({"onnxruntime", "browser"}),
)
