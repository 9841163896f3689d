"""The inputs with which a decoder reads a text from its first token on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from edgeopt.executors.onnxruntime.decoder import IDS, MASK, POSITIONS, CachePart
from edgeopt.graph.tensors import Tensors


def feeds_of(window: Sequence[int], cache: Sequence[CachePart], known: Collection[str]) -> Tensors:
    """Return the inputs of a decoder for a text from its first token on, with nothing before it.

    Args:
        window: Tokens.
        cache: Of the decoder.
        known: Names of the inputs that it takes.
    """
    arrays = {
        IDS: np.array([window], np.int64),
        MASK: np.ones((1, len(window)), np.int64),
        POSITIONS: np.arange(len(window), dtype=np.int64)[None],
        **{part.past: np.zeros((1, part.heads, 0, part.head), part.dtype) for part in cache},
    }
    return {name: value for name, value in arrays.items() if name in known}
