"""Where a frame lies in the model's input, as ONNX ops: computed as `recipes/inputs/preprocess.py` does, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.nodes import Nodes, Operand
from edgeopt.graph.tensors import ints
from edgeopt.recipes.embedded import FRAME
from edgeopt.recipes.inputs.preprocess import Anchor, Resize
from edgeopt.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Place:
    """Names of tensors (2,), height before width: how large the scaled frame is, and where it lies in the input."""

    size: Operand
    """int64, pixels."""
    offset: Operand
    """int64, pixels of the input; of a crop: what is cut off before."""
    scale: str
    """float64, input over frame."""


def place_of(nodes: Nodes, recipe: Recipe) -> Place:
    """Compute what `PictureInput` computes of a frame's height and width, in the same precision."""
    wanted, size = np.array(recipe.input.size, np.float64), ints(*recipe.input.size)
    sides = nodes.cast(nodes("Slice", nodes("Shape", FRAME), ints(0), ints(2)), "float64")
    fitting = nodes("Div", wanted, sides)
    if recipe.preprocess.resize is Resize.STRETCH:
        return Place(size, ints(0, 0), fitting)
    if recipe.preprocess.resize is Resize.LETTERBOX:
        factor = _of_both(nodes, "Min", fitting)
        scaled = nodes("Max", nodes.cast(nodes("Mul", sides, factor), "int64"), ints(1))
        left = nodes("Div", nodes("Sub", size, scaled), ints(2)) if recipe.preprocess.anchor is Anchor.CENTRE else ""
        return Place(scaled, left or nodes("Identity", ints(0, 0)), nodes("Expand", factor, ints(2)))
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
    return Place(scaled, cut, nodes("Div", nodes.cast(scaled, "float64"), sides))


def _line(nodes: Nodes, recipe: Recipe, sides: str, wanted: NDArray[np.float64]) -> Place:
    """As wide as the input's height makes it, and no wider than the input."""
    height, width = recipe.input.size
    ratio = nodes("Div", nodes("Gather", sides, ints(1)), nodes("Gather", sides, ints(0)))
    long = nodes.cast(nodes("Ceil", nodes("Mul", wanted[:1], ratio)), "int64")
    scaled = nodes("Concat", ints(height), nodes("Min", long, ints(width)), axis=0)
    return Place(scaled, ints(0, 0), nodes("Div", nodes.cast(scaled, "float64"), sides))


def _of_both(nodes: Nodes, op: str, pair: str) -> str:
    """Return Min or Max of two numbers. OpenVINO 2026.4 joins ReduceMin with a Div behind it, and divides wrongly."""
    return nodes(op, nodes("Gather", pair, ints(0)), nodes("Gather", pair, ints(1)))
