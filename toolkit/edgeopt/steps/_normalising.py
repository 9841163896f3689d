"""Helpers of the two steps that take pictures: colour, layout and normalisation as ONNX ops, in front of a model.

As much of it as moves exactly lies in the first convolution (`_first_convolution.py`). What moves bytes stands before
the cast to float, which makes four of each.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.model import Model
from edgeopt.graph.nodes import Nodes
from edgeopt.graph.tensors import floats, ints
from edgeopt.recipes.inputs.preprocess import Colour, Layout, affine
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps._embedding import PREFIX, prepared
from edgeopt.steps._first_convolution import Normalisation, fold_normalisation

_GREY = (0.114, 0.587, 0.299)
"""Weights of blue, green and red in grey, as OpenCV weighs them."""


def why_no_picture(recipe: Recipe) -> str:
    """Return why a recipe's input is no picture; empty where it is, or where the recipe is not bound yet."""
    if recipe.kind != "picture":
        return f"recipe {recipe.name!r} takes {recipe.kind}s, no pictures"
    if recipe.takes_arrays and not recipe.input.size:
        return f"recipe {recipe.name!r} takes tensors, no pictures"
    return ""


def take_over(model: Model, recipe: Recipe, fed: str, *, has_border: bool) -> tuple[Model, str, Normalisation]:
    """Return the model with what moves into it, the name of the input that takes pictures, and what is left.

    Args:
        model: It is not changed.
        recipe: Bound to the model.
        fed: Name of the input that it is to have.
        has_border: Whether zeros are written beside the normalised picture.

    Raises:
        UnsupportedError: If onnx cannot bring the model into the opset of the nodes.
    """
    model = prepared(model, fed)
    named = (spec for spec in model.inputs if spec.name.removeprefix(PREFIX) == recipe.input.tensor)
    taken = next(named, model.inputs[0]).name
    colour, layout = recipe.preprocess.colour, recipe.input.layout
    channels = 1 if colour is Colour.GREY else 3
    order = np.arange(channels)[::-1].copy() if colour is Colour.RGB else np.arange(channels)
    wanted = Normalisation(order, *affine(recipe.preprocess, channels))
    if layout is Layout.CHW or recipe.input.dtype != "float32":  # a type that rounds pixels sees them as before
        return model, taken, wanted
    model, left = fold_normalisation(model, taken, wanted, is_planar=layout is Layout.NCHW, has_border=has_border)
    return model, taken, left


def normalised(nodes: Nodes, recipe: Recipe, pixels: str, wanted: Normalisation) -> str:
    """Return the model's tensor of a picture (1, height, width, 3), uint8, as `PictureInput` makes it."""
    is_planar, is_grey = recipe.input.layout is not Layout.NHWC, recipe.preprocess.colour is Colour.GREY
    if is_grey:
        grey = nodes("MatMul", nodes.cast(pixels, "float32"), floats(*_GREY).reshape(3, 1))
        pixels = nodes.cast(nodes("Add", grey, floats(0.5)), "uint8")
    if wanted.moves_channels:
        pixels = nodes("Gather", pixels, ints(*wanted.order.tolist()), axis=3)
    if is_planar:
        pixels = nodes("Transpose", pixels, perm=[0, 3, 1, 2])
    dtype, shape = np.dtype(recipe.input.dtype), (1, -1, 1, 1) if is_planar else (1, 1, 1, -1)
    is_plain = np.all(wanted.gain == 1) and np.all(wanted.bias == 0)
    if is_plain and dtype == np.uint8:
        return pixels
    tensor = nodes.cast(pixels, "float32")
    if np.any(wanted.gain != 1):
        tensor = nodes("Mul", tensor, wanted.gain.reshape(shape))
    if np.any(wanted.bias != 0):
        tensor = nodes("Add", tensor, wanted.bias.reshape(shape))
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        low, high = np.array(limits.min, np.float32), np.array(limits.max, np.float32)
        tensor = nodes("Clip", nodes("Round", tensor), low, high)
    return tensor if dtype == np.float32 else nodes.cast(tensor, str(dtype))


def name_tensor(nodes: Nodes, recipe: Recipe, tensor: str, name: str) -> None:
    """Give the tensor that nodes made the name of the input that it replaces."""
    nodes.call(name, nodes("Squeeze", tensor, ints(0)) if recipe.input.layout is Layout.CHW else tensor)
