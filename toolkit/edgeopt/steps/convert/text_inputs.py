"""The inputs with which a decoder reads a text from its first token on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.decoder import IDS, MASK, POSITIONS, CachePart
from edgeopt.executors.onnxruntime.image_rows import ImageInputs
from edgeopt.executors.onnxruntime.state_parts import STATE
from edgeopt.graph.tensors import Tensors, TensorSpec


def feeds_of(window: Sequence[int], cache: Sequence[CachePart], inputs: Sequence[TensorSpec]) -> Tensors:
    """Return the inputs of a decoder for a text from its first token on, with nothing before it.

    Args:
        window: Tokens.
        cache: Of the decoder.
        inputs: That it takes.
    """
    arrays: dict[str, NDArray[Any]] = {
        IDS: np.array([window], np.int64),
        MASK: np.ones((1, len(window)), np.int64),
        POSITIONS: np.arange(len(window), dtype=np.int64)[None],
        **{part.past: np.zeros((1, part.heads, 0, part.head), part.dtype) for part in cache},
    }
    for spec in inputs:
        if STATE.fullmatch(spec.name):
            arrays[spec.name] = np.zeros((1, *(side for side in spec.shape[1:] if isinstance(side, int))), spec.dtype)
    images = ImageInputs.among(inputs)
    arrays |= images.without if images is not None else {}
    return {spec.name: arrays[spec.name] for spec in inputs if spec.name in arrays}
