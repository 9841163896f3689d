"""The gain and the offset with which a function is closest to another, in closed form."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.activations.forms import Numbers

Solved: TypeAlias = tuple[Numbers, Numbers, Numbers]
_TINY = 1e-12
_LEAST_GAIN = 0.02
"""A smaller one, or one below zero, could not go through a pooling by maximum."""


def solve(z: Numbers, wanted: Numbers, gain: Numbers | None, has_offset: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return the gain, the offset and the mean squared error with which gain * z + offset is closest to `wanted`.

    Args:
        z: Shape (channels, samples).
        wanted: The same shape.
        gain: The gains that it must have; None: any above zero.
        has_offset: Whether there may be an offset; otherwise it is 0.
    """
    mean, its_mean = (z.mean(axis=1), wanted.mean(axis=1)) if has_offset else (np.zeros(len(z)), np.zeros(len(z)))
    if gain is None:
        power = np.square(z).mean(axis=1) - np.square(mean)
        common = (z * wanted).mean(axis=1) - mean * its_mean
        gain = np.maximum(common / np.maximum(power, _TINY), _LEAST_GAIN)
    offset = its_mean - gain * mean
    error = np.square(gain[:, None] * z + offset[:, None] - wanted).mean(axis=1)
    return gain, offset, error


def where(better: NDArray[np.bool_], new: Solved, old: Solved) -> Solved:
    """Return three numbers for each channel, the new ones where they are better."""
    a, b, c = (np.where(better, array, other) for array, other in zip(new, old, strict=True))
    return a, b, c
