"""Other ways to read a picture than a recipe's: the other order of colours, the usual normalisations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from edgeopt.recipes.drafting.questions import NORMS
from edgeopt.recipes.inputs.preprocess import Colour, Preprocess
from edgeopt.recipes.recipe import Recipe


def other_readings(recipe: Recipe) -> list[Recipe]:
    """Return the recipe with the other colour order first, then the usual normalisations, itself left out."""
    own = recipe.preprocess
    colours = (Colour.GREY,) if own.colour is Colour.GREY else (Colour.RGB, Colour.BGR)
    swapped = [replace(own, colour=colour) for colour in colours if colour is not own.colour]
    preprocesses = [
        preprocess for new in swapped for preprocess in (replace(new, mean=own.mean[::-1], std=own.std[::-1]), new)
    ]
    if "float" in recipe.input.dtype:
        preprocesses += [_normalised(own, colour, *norm) for colour in colours for norm in NORMS.values()]
    distinct = {_gains(own): own}
    for other in preprocesses:
        distinct.setdefault(_gains(other), other)
    return [replace(recipe, preprocess=preprocess) for preprocess in list(distinct.values())[1:]]


def _normalised(
    own: Preprocess, colour: Colour, scale: float, mean: tuple[float, ...], std: tuple[float, ...]
) -> Preprocess:
    if colour is Colour.GREY:
        mean, std = (float(np.mean(mean)),), (float(np.mean(std)),)
    order = -1 if colour is Colour.BGR else 1
    return replace(own, colour=colour, scale=scale, mean=mean[::order], std=std[::order])


def _gains(preprocess: Preprocess) -> tuple[Any, ...]:
    """Return what makes two ways to normalise the same: colour, and the value of black and white in each channel."""
    ends = [
        np.round((level * preprocess.scale - np.broadcast_to(preprocess.mean, 3)) / preprocess.std, 2).tolist()
        for level in (0, 255)
    ]
    return preprocess.colour, *map(tuple, ends)


def contrast_of(recipe: Recipe) -> float:
    """Return how many units of the input black and white lie apart, in the mean of the channels."""
    return recipe.preprocess.scale * 255 * float(np.mean(1 / np.asarray(recipe.preprocess.std)))
