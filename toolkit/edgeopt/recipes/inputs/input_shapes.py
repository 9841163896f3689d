"""Static shapes of a model's inputs: from the recipe, or from samples that are fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Layout
from edgeopt.recipes.recipe import Recipe

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each input, by name."""


def sample_shape(shape: tuple[int, ...], tensor: TensorSpec) -> tuple[int, ...]:
    """Return the shape of an input from that of one sample, which may have an axis of samples in front.

    Where the model does not tell how many axes it takes, that axis is the batch.
    """
    return shape[1:] if not tensor.is_unranked and len(shape) == len(tensor.shape) + 1 else shape


def _example(tensor: TensorSpec, sizes: Sequence[int]) -> str:
    """Return an example for `--shape`, where free dimensions stand by name."""
    names = (one if isinstance(one, str) else "N" for one in tensor.shape)
    return f"{tensor.name}={'x'.join(str(size) if size > 0 else name for size, name in zip(sizes, names, strict=True))}"


def fixed_shapes(recipe: Recipe, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return the static shape of every input: batch 1, the recipe's size, its named dimensions.

    Raises:
        UnsupportedError: If a dimension stays free; it is named.
    """
    shapes = {}
    for tensor in inputs:
        known = dict(zip(recipe.input.layout.plane, recipe.input.size, strict=False))  # no size: no picture
        known |= {} if recipe.input.layout is Layout.CHW else {0: 1}
        sizes = [*recipe.input.shapes.get(tensor.name, ())] or [
            size if isinstance(size, int) else recipe.input.fixed.get(str(size), known.get(axis, 0))
            for axis, size in enumerate(tensor.shape)
        ]
        if tensor.is_unranked and tensor.name not in recipe.input.shapes:
            raise UnsupportedError(
                f"input {tensor} and recipe {recipe.name!r} does not tell it either",
                remedy=f"give every size: --shape {tensor.name}=1x3x224x224 (an example), or [input.shapes] in a "
                "recipe.toml, or tensors: --calib FILE.npz",
            )
        _require_fit(tensor, sizes, recipe.name)
        if free := [axis for axis, size in enumerate(sizes) if size < 1]:
            raise UnsupportedError(
                f"dimension {free[0]} of input {tensor} {_why_free(tensor.shape[free[0]])} and recipe {recipe.name!r} "
                "does not fix it",
                remedy=f"give every size: --shape {_example(tensor, sizes)}, or [input.shapes] in a recipe.toml, or "
                "tensors: --calib FILE.npz",
            )
        shapes[tensor.name] = tuple(sizes)
    return shapes


def beginning_of(recipe: Recipe, inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return what a stream of a recurrent model begins with: zeros for each state.

    Raises:
        UnsupportedError: If a dimension of a state stays free.
    """
    states = [spec for spec in inputs if spec.name in recipe.input.states]
    shapes = fixed_shapes(recipe, states)
    return {state.name: np.zeros(shapes[state.name], state.dtype) for state in states}


def _why_free(size: int | str | None) -> str:
    """Return what the model says of a dimension; one of 0 is read as one without a size, as old exporters meant it."""
    return "is free" if isinstance(size, str) else "has no size above 0 in the model (0 means no element)"


def _require_fit(tensor: TensorSpec, sizes: Sequence[int], recipe: str) -> None:
    if tensor.takes_shape(sizes):
        return
    raise UnsupportedError(
        f"recipe {recipe!r} gives input {tensor} the shape {'x'.join(map(str, sizes))}",
        remedy="correct it under [input.shapes]",
    )
