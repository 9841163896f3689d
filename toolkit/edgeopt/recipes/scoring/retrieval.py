"""Which picture lies nearest to which, of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""(pictures, length), each of length 1, or 0 where there is no embedding."""
_ROWS = 1024
"""Queries at once: all pairs of 10 000 pictures would be 400 MB."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Whether the nearest other picture shows the same thing."""

    hits: NDArray[np.bool_]
    """(pictures,)"""
    by_chance: float
    """Share of pairs that show the same thing."""


def nearest(vectors: Vectors) -> NDArray[np.int64]:
    """Return (pictures,) the nearest other picture of each, by cosine; of equals the first."""
    result = []
    for start in range(0, len(vectors), _ROWS):
        likeness = vectors[start : start + _ROWS] @ vectors.T
        rows = np.arange(len(likeness))
        likeness[rows, start + rows] = -np.inf
        result.append(likeness.argmax(axis=1))
    return np.concatenate(result) if result else np.empty(0, np.int64)


def retrieve(vectors: Vectors, things: NDArray[np.int64]) -> Retrieval:
    """Return what is found for each picture among the others.

    Args:
        vectors: Of the pictures.
        things: (pictures,) what each shows.
    """
    if len(things) < 2:
        return Retrieval(np.zeros(len(things), np.bool_), 0.0)
    hits = (things[nearest(vectors)] == things) & vectors.any(axis=1)
    sizes = np.unique(things, return_counts=True)[1]
    return Retrieval(hits, float((sizes * (sizes - 1)).sum() / (len(things) * (len(things) - 1))))
