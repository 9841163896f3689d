"""The step `embed-preprocess`: the model takes the frame as it comes, of any height and width.

Resize, colour, normalisation and layout become ONNX ops, in front of whatever precision follows. Sizes are computed in
float64, as `recipes/preprocess.py` does. Pixels are interpolated by `Resize` in uint8: a whole frame in float32 would
take longer than a small model. Its results differ from OpenCV's by at most one of 255 steps (docs/apps.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.embedded import FRAME, FRAME_OFFSET, FRAME_SCALE, Embedded
from edgeopt.recipes.match_tables import FOUND
from edgeopt.recipes.preprocess import Anchor, Colour, Layout, Resize, affine
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._embedding import (
    PREFIX,
    Nodes,
    Operand,
    floats,
    ints,
    prepared,
    put_after,
    put_before,
    why_not_embedded,
)

_GREY = (0.114, 0.587, 0.299)
"""Of blue, green and red, as OpenCV weighs them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Names of tensors (2,), height before width: how large the scaled frame is, and where it lies in the input."""

    size: Operand
    """int64, pixels."""
    offset: Operand
    """int64, pixels of the input; of a crop: what is cut off before."""
    scale: str
    """float64, input over frame."""


def embed_preprocess(model: Model, recipe: Recipe) -> Model:
    """Return the model with the recipe's preprocessing in it: its input is `FRAME` in place of the picture's tensor.

    A detector also gives `FRAME_SCALE` and `FRAME_OFFSET`, which lead its boxes back into the frame.

    Args:
        model: It is not changed; its other inputs stay.
        recipe: Bound to the model.

    Raises:
        UnsupportedError: If the recipe says nothing of a picture, or onnx cannot bring the model into opset 13.
    """
    if not recipe.input.size:
        raise UnsupportedError(
            f"recipe {recipe.name!r} takes tensors, no pictures", remedy="leave the step embed-preprocess out"
        )
    model = prepared(model)
    named = (one for one in model.inputs if one.name.removeprefix(PREFIX) == recipe.input.tensor)
    taken = next(named, model.inputs[0])
    nodes = Nodes("preprocess", model.opset)
    place = _place(nodes, recipe)
    pixels = _fitted(nodes, recipe, _resized(nodes, place), place)
    tensor = _lengthened(nodes, recipe, _normalised(nodes, recipe, pixels), place)
    nodes.call(taken.name, nodes("Squeeze", tensor, ints(0)) if recipe.input.layout is Layout.CHW else tensor)
    made = put_before(model, taken.name, nodes, [TensorSpec(FRAME, "uint8", ("frame_height", "frame_width", 3))])
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


def _place(nodes: Nodes, recipe: Recipe) -> _Place:
    """Compute what `PictureInput` computes of a frame's height and width, in the same precision."""
    wanted, size = np.array(recipe.input.size, np.float64), ints(*recipe.input.size)
    sides = nodes.cast(nodes("Slice", nodes("Shape", FRAME), ints(0), ints(2)), "float64")
    fitting = nodes("Div", wanted, sides)
    if recipe.preprocess.resize is Resize.STRETCH:
        return _Place(size, ints(0, 0), fitting)
    if recipe.preprocess.resize is Resize.LETTERBOX:
        factor = _of_both(nodes, "Min", fitting)
        scaled = nodes("Max", nodes.cast(nodes("Mul", sides, factor), "int64"), ints(1))
        left = nodes("Div", nodes("Sub", size, scaled), ints(2)) if recipe.preprocess.anchor is Anchor.CENTRE else ""
        return _Place(scaled, left or nodes("Identity", ints(0, 0)), nodes("Expand", factor, ints(2)))
    if recipe.preprocess.resize is Resize.LINE:
        return _line(nodes, recipe, sides, wanted)
    if recipe.preprocess.resize is not Resize.CENTRE_CROP:
        raise UnsupportedError(
            f"embed-preprocess has no ONNX ops for resize = {recipe.preprocess.resize}", remedy="leave the step out"
        )
    shorter = recipe.preprocess.crop_from or min(recipe.input.size)
    whole = nodes("Div", np.array([shorter], np.float64), _of_both(nodes, "Min", sides))
    factor = nodes("Max", whole, _of_both(nodes, "Max", fitting))
    rounded = nodes.cast(nodes("Round", nodes("Mul", sides, factor)), "int64")
    scaled = nodes("Max", rounded, size)
    cut = nodes("Div", nodes("Sub", scaled, size), ints(2))
    return _Place(scaled, cut, nodes("Div", nodes.cast(scaled, "float64"), sides))


def _line(nodes: Nodes, recipe: Recipe, sides: str, wanted: NDArray[np.float64]) -> _Place:
    """As wide as the input's height makes it, and no wider than the input."""
    height, width = recipe.input.size
    ratio = nodes("Div", nodes("Gather", sides, ints(1)), nodes("Gather", sides, ints(0)))
    long = nodes.cast(nodes("Ceil", nodes("Mul", wanted[:1], ratio)), "int64")
    scaled = nodes("Concat", ints(height), nodes("Min", long, ints(width)), axis=0)
    return _Place(scaled, ints(0, 0), nodes("Div", nodes.cast(scaled, "float64"), sides))


def _lengthened(nodes: Nodes, recipe: Recipe, pixels: str, place: _Place) -> str:
    """Fill a line with 0 up to the input's width; what fills the input stays as it is."""
    if recipe.preprocess.resize is not Resize.LINE:
        return pixels
    zero, lacking = ints(0), nodes("Sub", ints(*recipe.input.size), place.size)
    planar, channels = recipe.input.layout is not Layout.NHWC, 1 if recipe.preprocess.colour is Colour.GREY else 3
    behind = (zero, zero, lacking) if planar else (zero, lacking, zero)
    padded = nodes("Pad", pixels, nodes("Concat", ints(0, 0, 0, 0), *behind, axis=0))
    height, width = recipe.input.size
    return nodes("Reshape", padded, ints(*((1, channels, height, width) if planar else (1, height, width, channels))))


def _of_both(nodes: Nodes, op: str, pair: str) -> str:
    """Return Min or Max of two numbers. OpenVINO 2026.4 joins ReduceMin with a Div behind it, and divides wrongly."""
    return nodes(op, nodes("Gather", pair, ints(0)), nodes("Gather", pair, ints(1)))


def _resized(nodes: Nodes, place: _Place) -> str:
    """Scale the frame, then leave uint8: (1, height, width, 3) float32."""
    sizes = nodes("Concat", ints(1), place.size, ints(3), axis=0)
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return nodes.cast(nodes("Resize", nodes("Unsqueeze", FRAME, ints(0)), "", "", sizes, **how), "float32")


def _fitted(nodes: Nodes, recipe: Recipe, pixels: str, place: _Place) -> str:
    """Pad or cut what was scaled to the input's size: (1, height, width, 3)."""
    size, zero = ints(*recipe.input.size), ints(0)
    if recipe.preprocess.resize is Resize.LETTERBOX:
        behind = nodes("Sub", nodes("Sub", size, place.size), place.offset)
        pads = nodes("Concat", zero, place.offset, zero, zero, behind, zero, axis=0)
        pixels = nodes("Pad", pixels, pads, np.array(recipe.preprocess.pad, np.float32))
    if recipe.preprocess.resize is Resize.CENTRE_CROP:
        end = nodes("Add", place.offset, size)
        pixels = nodes("Slice", pixels, place.offset, end, ints(1, 2))
    width = -1 if recipe.preprocess.resize is Resize.LINE else recipe.input.size[1]
    return nodes("Reshape", pixels, ints(1, recipe.input.size[0], width, 3))


def _normalised(nodes: Nodes, recipe: Recipe, pixels: str) -> str:
    """Put the channels in their order and layout, and normalise them as `PictureInput` does."""
    planar, preprocess = recipe.input.layout is not Layout.NHWC, recipe.preprocess
    if preprocess.colour is Colour.GREY:
        grey = nodes("MatMul", pixels, floats(*_GREY).reshape(3, 1))
        pixels = nodes("Floor", nodes("Add", grey, floats(0.5)))
    if planar:
        pixels = nodes("Transpose", pixels, perm=[0, 3, 1, 2])
    if preprocess.colour is Colour.RGB:
        pixels = nodes("Gather", pixels, ints(2, 1, 0), axis=1 if planar else 3)
    gain, bias = affine(preprocess, 1 if preprocess.colour is Colour.GREY else 3)
    shape = (1, -1, 1, 1) if planar else (1, 1, 1, -1)
    if np.any(gain != 1):
        pixels = nodes("Mul", pixels, gain.reshape(shape))
    if np.any(bias != 0):
        pixels = nodes("Add", pixels, bias.reshape(shape))
    dtype = np.dtype(recipe.input.dtype)
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        low, high = np.array(limits.min, np.float32), np.array(limits.max, np.float32)
        pixels = nodes("Clip", nodes("Round", pixels), low, high)
    return pixels if dtype == np.float32 else nodes.cast(pixels, str(dtype))


def _make(model: Model, context: Context, _: Setting) -> Sequence[Outcome]:
    return [Outcome(embed_preprocess(model, context.recipe), {"preprocess": 1})]


STEP = Step(
    _make,
    does="the model takes frames as they come, of any size: resize, colour and normalisation inside",
    order=70,
    why_not=why_not_embedded,
    in_line=False,
    embeds=Embedded.PREPROCESS,
    is_default=False,
)
