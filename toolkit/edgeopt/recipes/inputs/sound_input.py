"""Sound to tensors: a window of it as the samples themselves or their features, states and constants beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.recipes.inputs.audio import Audio, Features, Pad, Scaling
from edgeopt.recipes.inputs.features import FeatureMaker, normalised
from edgeopt.recipes.inputs.input_shapes import beginning_of, fixed_shapes
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.recipes.recipe import Recipe


class SoundInput:
    """Turns sounds into a model's inputs."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec]) -> None:
        """Prepare filters.

        Args:
            recipe: Of sounds, bound to the model.
            inputs: Of the model.

        Raises:
            UnsupportedError: If the recipe's window does not fit the input.
        """
        self._audio, self._name = recipe.audio, recipe.input.tensor
        spec = next(input_ for input_ in inputs if input_.name == self._name)
        self._shape, self._dtype = fixed_shapes(recipe, inputs)[self._name], np.dtype(spec.dtype)
        self._maker, sizes = _maker(recipe.audio, recipe.name)
        if place_sizes(self._shape, sizes) is None:
            raise UnsupportedError(
                f"recipe {recipe.name!r} makes {_told(sizes)} of a sound, the model takes {spec}",
                remedy="correct samples, step or bands under [audio]",
            )
        self._is_turned = [size for size in self._shape if size != 1] != [size for size in sizes if size != 1]
        constants = {input_.name: input_ for input_ in inputs if input_.name in recipe.input.constants}
        self._beside: dict[str, NDArray[Any]] = beginning_of(recipe, inputs) | {
            name: np.full(fixed_shapes(recipe, [constant])[name], recipe.input.constants[name], constant.dtype)
            for name, constant in constants.items()
        }

    def __call__(self, sample: Sample) -> Tensors:
        """Return the inputs: of a recurrent model as a stream begins.

        Raises:
            UnsupportedError: If it is no sound, or its rate differs and nothing resamples.
            ValueError: If a chunk of a stream is longer than a window.
        """
        if not isinstance(sample, Sound):
            raise UnsupportedError("the recipe takes sounds, and is fed something else", remedy="pass .wav files")
        sound = resampled(sample, self._audio.rate_hz)
        samples = window_of(sound, self._audio) * np.float32(self._audio.scale)
        heard = min(len(sound.samples), len(samples)) if self._audio.pad is Pad.FEATURES else None
        array: NDArray[Any] = _scaled(samples, self._audio) if self._maker is None else self._maker(samples, heard)
        array = array.T if self._is_turned else array
        if self._dtype.kind in "iu":
            limits = np.iinfo(self._dtype)
            array = np.clip(np.rint(array), limits.min, limits.max)
        return {self._name: np.ascontiguousarray(array.reshape(self._shape), self._dtype), **self._beside}


def _scaled(samples: NDArray[np.float32], audio: Audio) -> NDArray[np.float32]:
    return samples if audio.scaling is Scaling.NONE else normalised(samples)


def window_of(sound: Sound, audio: Audio) -> NDArray[np.float32]:
    """Return (context + samples,) of a sound: cut or padded to one window, or a chunk behind its context.

    Raises:
        UnsupportedError: If the rate differs and soxr is not installed.
        ValueError: If a chunk of a stream is longer than a window.
    """
    heard, whole = resampled(sound, audio.rate_hz).samples, audio.context + audio.samples
    if len(heard) == whole:
        return heard
    if not audio.streams:
        missing = max(whole - len(heard), 0)
        left = {Pad.START: missing, Pad.BOTH: missing // 2}.get(audio.pad, 0)
        return np.pad(heard[:whole], (left, missing - left))
    if len(heard) > audio.samples:
        raise ValueError(f"a chunk of this stream has up to {audio.samples} samples, not {len(heard)}")
    return np.pad(heard, (audio.context, audio.samples - len(heard)))


def sized_for(audio: Audio, spec: TensorSpec, recipe: str) -> tuple[Audio, tuple[int, ...]]:
    """Return the table with the samples of a window, and the whole shape of the input that takes it.

    Args:
        audio: Of a recipe.
        spec: Of the input, whose dimensions may be free.
        recipe: Its name.

    Raises:
        UnsupportedError: If they do not fit each other.
    """
    if not audio.samples:
        sizes = [size for size in spec.shape if isinstance(size, int) and size > 1]
        if len(sizes) != 1 or sizes[0] <= audio.context:
            raise UnsupportedError(
                f"input {spec} does not tell how many samples it takes",
                remedy="write samples = N under [audio]: how many are new in each window",
            )
        audio = replace(audio, samples=sizes[0] - audio.context)
    _, sizes_of = _maker(audio, recipe)
    shape = place_sizes(spec.shape, sizes_of)
    if shape is None:
        raise UnsupportedError(
            f"recipe {recipe!r} makes {_told(sizes_of)} of a sound, the model takes {spec}",
            remedy="correct samples, context, step or bands under [audio]",
        )
    return audio, shape


def place_sizes(shape: Sequence[int | str | None], sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the whole shape in which sizes lie in their order or turned, all else being 1; None where none fits."""
    for order in dict.fromkeys((tuple(sizes), tuple(reversed(sizes)))):
        for axes in reversed(list(combinations(range(len(shape)), len(order)))):
            placed = dict(zip(axes, order, strict=True))
            whole = tuple(placed.get(axis, 1) for axis in range(len(shape)))
            if all(not isinstance(size, int) or size == mine for size, mine in zip(shape, whole, strict=True)):
                return whole
    return None


def _maker(audio: Audio, recipe: str) -> tuple[FeatureMaker | None, tuple[int, ...]]:
    """Return what makes features, None for the samples themselves, and the sizes of what the model hears."""
    whole = audio.context + audio.samples
    if audio.features is Features.WAVEFORM:
        return None, (whole,)
    try:
        maker = FeatureMaker(replace(audio, samples=whole))
    except ValueError as error:
        raise UnsupportedError(f"recipe {recipe!r}: {error}", remedy="correct [audio]") from error
    return maker, maker.shape


def _told(sizes: Sequence[int]) -> str:
    return f"{sizes[0]} samples" if len(sizes) == 1 else f"{sizes[0]} bands x {sizes[1]} frames"
