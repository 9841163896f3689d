"""A sample of any kind as named arrays, which a file can hold and a hash can cover, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import ReducedPicture, Sample

PICTURE, TEXT = "picture", "text"
"""Names of the arrays of what is not tensors."""


def arrays_of(sample: Sample) -> Mapping[str, NDArray[Any]]:
    """Return a sample as arrays: tensors by their own names, a picture as `picture`, a text's UTF-8 bytes as `text`.

    A sound has two: `sound` and `rate_hz`; a bundle stores the inputs that a model makes of one.
    """
    if isinstance(sample, str):
        return {TEXT: np.frombuffer(sample.encode("utf-8", "surrogatepass"), np.uint8)}
    if isinstance(sample, Sound):
        return {"sound": sample.samples, "rate_hz": np.array(sample.rate_hz)}
    if isinstance(sample, ReducedPicture):
        return {PICTURE: sample.enlarged()}
    return sample if isinstance(sample, Mapping) else {PICTURE: sample}


def sample_of(name: str, array: NDArray[Any], text: str) -> Sample:
    """Return the sample that `arrays_of` made one array of.

    Args:
        name: `PICTURE` or `TEXT`.
        array: What it holds.
        text: What messages call it.

    Raises:
        ValueError: If it is no such sample.
    """
    if name == TEXT:
        if array.ndim != 1 or array.dtype != np.uint8:
            raise ValueError(f"{text} is no text")
        return array.tobytes().decode("utf-8")
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or not array.size:
        raise ValueError(f"{text} is no picture")
    return array
