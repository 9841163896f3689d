"""A recipe of sounds bound to a model: which input hears, which are states, which hold one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.sound_input import sized_for
from edgeopt.recipes.recipe import Recipe

_RATE = frozenset({"sr", "rate", "sample_rate", "sampling_rate", "samplerate"})
"""Inputs of one number that are the rate."""


def hear(recipe: Recipe, inputs: Sequence[TensorSpec]) -> Recipe:
    """Return the recipe with the input that hears, the samples of a window, all shapes and constants.

    Raises:
        UnsupportedError: If inputs are left whose values nothing tells, or the window does not fit.
    """
    rates = {spec.name: float(recipe.audio.rate_hz) for spec in inputs if is_rate(spec)}
    constants = {**rates, **recipe.input.constants}
    known = {*constants, *recipe.input.states}
    left = [spec for spec in inputs if spec.name not in known]
    wanted = recipe.input.tensor
    hearing = [spec for spec in left if spec.name == wanted] if wanted else left
    others = ", ".join(str(spec) for spec in left if spec not in hearing[:1])
    if not hearing or others:
        text = f"it does not tell {others}" if hearing else "no input is left for it"
        raise UnsupportedError(
            f"recipe {recipe.name!r} feeds one sound; {text}",
            remedy="under [input]: tensor = the input that hears, states = { input = output } of what is fed back, "
            "constants = { input = number } of what is always the same",
        )
    audio, shape = sized_for(recipe.audio, hearing[0], recipe.name)
    shapes = {
        spec.name: tuple(size if isinstance(size, int) and size > 0 else 1 for size in spec.shape)
        for spec in inputs
        if spec.name in known and spec.shape
    }
    shapes |= {hearing[0].name: shape}
    taken = replace(
        recipe.input, tensor=hearing[0].name, size=(), constants=constants, shapes={**shapes, **recipe.input.shapes}
    )
    return replace(recipe, audio=audio, input=taken)


def is_rate(spec: TensorSpec) -> bool:
    """Return whether an input is one number, by its name the rate of the sound."""
    return spec.name.lower() in _RATE and all(size in (1, None) or isinstance(size, str) for size in spec.shape)
