"""The input of a model that is a picture: whether it may be one, its size, its layout and its channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.readings import are_features
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Colour, Layout
from edgeopt.recipes.metadata import input_size_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.text import plural

_LARGEST_BANDS = 128
"""Largest bands of a window of sound as bands and frames; larger ones are pictures."""


def may_be_picture(tensor: TensorSpec) -> bool:
    """Whether an input has type and shape of a picture: four dimensions, 1 or 3 channels."""
    if len(tensor.shape) != 4 or tensor.dtype not in PICTURE_TYPES:
        return False
    batch, first, _, last = tensor.shape
    return (batch == 1 or not isinstance(batch, int)) and (first in (1, 3) or last in (1, 3))


def fixed_batch(tensor: TensorSpec) -> int:
    """Return how many pictures an input of four dimensions takes at once, if it is fixed above 1; otherwise 0."""
    batch = tensor.shape[0] if len(tensor.shape) == 4 else 1
    return batch if isinstance(batch, int) and batch > 1 else 0


def are_bands(tensor: TensorSpec, outputs: Sequence[TensorSpec]) -> bool:
    """Whether what looks like a small grey picture is rather frames of mel bands: no square, and features come out."""
    sides = [size for size in tensor.shape[1:] if size != 1]
    is_small = len(sides) == 2 and all(isinstance(side, int) and side <= _LARGEST_BANDS for side in sides)
    return is_small and sides[0] != sides[1] and len(outputs) == 1 and are_features(outputs[0])


def picture_layout(tensor: TensorSpec) -> Layout:
    """Return where the channels of a picture lie."""
    return Layout.NHWC if tensor.shape[3] in (1, 3) and tensor.shape[1] not in (1, 3) else Layout.NCHW


def plane_of(shape: Sequence[Any], layout: Layout) -> Sequence[Any]:
    """Return height and width of a shape."""
    return [shape[axis] for axis in layout.plane]


def size_of(tensor: TensorSpec, recipe: Recipe, metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Return height and width: the model's own, the recipe's, or the exporter's."""
    if not has_axes_of_picture(tensor, recipe):
        return None
    height, width = (tensor.shape[axis] for axis in layout_of(tensor, recipe).plane)
    if isinstance(height, int) and isinstance(width, int):
        return height, width
    if recipe.input.size:
        return recipe.input.size[0], recipe.input.size[1]
    return input_size_of(metadata)


def has_axes_of_picture(tensor: TensorSpec, recipe: Recipe) -> bool:
    """Return whether an input has four dimensions, or three where the recipe's layout has no batch."""
    return len(tensor.shape) == 4 or (len(tensor.shape) == 3 and recipe.input.layout is Layout.CHW)


def layout_of(tensor: TensorSpec, recipe: Recipe) -> Layout:
    """Return the recipe's layout, or the other one where only that one has 1 or 3 channels.

    A model may have a batch where the recipe has none.
    """
    if len(tensor.shape) == 3:
        return Layout.CHW
    channels = {Layout.NCHW: tensor.shape[1], Layout.NHWC: tensor.shape[3]}
    own = Layout.NCHW if recipe.input.layout is Layout.CHW else recipe.input.layout
    other = Layout.NHWC if own is Layout.NCHW else Layout.NCHW
    is_other = isinstance(channels[own], int) and channels[own] not in (1, 3) and channels[other] in (1, 3)
    return other if is_other else own


def why_other_channels(recipe: Recipe, tensor: TensorSpec) -> str:
    """Return why the recipe's channels do not fit the input; empty where they do."""
    channels = 1 if recipe.preprocess.colour is Colour.GREY else 3
    if not has_axes_of_picture(tensor, recipe):
        return "it has not four dimensions"
    result = tensor.shape[layout_of(tensor, recipe).channels]
    if not isinstance(result, int) or result == channels:
        return ""
    return f"it has {plural(result, 'channel')}, {recipe.preprocess.colour} has {channels}"
