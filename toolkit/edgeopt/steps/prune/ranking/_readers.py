"""The layers that read a group, as matrices over the moments of their inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import Group
from edgeopt.steps.prune.statistics import Moments, Statistics


@dataclass(frozen=True, slots=True)
class GroupReader:
    """One layer that reads a group."""

    weights: NDArray[np.float64]
    """Shape (rows, columns)."""
    moments: Moments
    unit: NDArray[np.int64]
    """The channel of the group that each column belongs to; -1: none."""
    energy: float
    """Variance of the layer's output, summed over outputs; never 0."""


def readers_of(group: Group, statistics: Statistics) -> list[GroupReader]:
    """Return the layers of a group whose inputs were seen, in the order of the group."""
    readers = []
    for use in group.consumers:
        layer = statistics.layers.get(use.node)
        moments = statistics.of(layer) if layer is not None else None
        if layer is None or moments is None:
            continue
        weights = moments.matrix(statistics.weights(layer))
        unit = use.channels[:: moments.fold] if moments.fold else np.repeat(use.channels, moments.width)
        energy = float(np.einsum("ij,jk,ik->", weights, moments.covariance, weights, optimize=True))
        readers.append(GroupReader(weights, moments, unit.astype(np.int64), max(energy, 1e-30)))
    return readers
