"""The rest of each constant when groups keep some of their channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import ChannelGroups
from edgeopt.steps.prune.network.layers import Layer

Array = NDArray[Any]


class Kept:
    """Entries of the dense constants that the pruned model still has."""

    def __init__(self, groups: ChannelGroups, keep: Mapping[str, NDArray[np.int64]]) -> None:
        """Find them.

        Args:
            groups: Of the dense model.
            keep: Sorted kept channels by the group's name; a group that is not named keeps all.
        """
        self._stays: dict[tuple[str, str, int], NDArray[np.bool_]] = {}
        for group in groups.groups:
            if group.name not in keep:
                continue
            stays = np.zeros(group.channels + 1, bool)  # the last: of no channel
            stays[keep[group.name]] = stays[-1] = True
            for use in (*group.producers, *group.consumers):
                place = use.node, use.tensor, use.axis
                self._stays[place] = self._stays.get(place, True) & stays[use.channels]

    def inputs(self, layer: Layer, matrix: Array) -> Array:
        """Return the kept input channels of an ungrouped layer; all of a grouped one's groups."""
        return self._entries(layer, layer.input_axis, matrix.shape[2])

    def outputs(self, layer: Layer, matrix: Array) -> Array:
        """Return the kept outputs of an ungrouped layer; all of a grouped one's groups."""
        return self._entries(layer, layer.output_axis, matrix.shape[1])

    def groups(self, layer: Layer) -> Array:
        """Return the kept groups of a layer: one of a grouped convolution goes whole or stays whole."""
        stays = self._stays.get((layer.name, layer.weight, 0)) if layer.groups > 1 else None
        return np.arange(layer.groups) if stays is None else np.flatnonzero(stays.reshape(layer.groups, -1)[:, 0])

    def all_outputs(self, layer: Layer, matrix: Array) -> Array:
        """Return the kept outputs of the whole layer, all groups in one row."""
        per_group = matrix.shape[1]
        if layer.groups == 1:
            return self.outputs(layer, matrix)
        return np.asarray((self.groups(layer)[:, None] * per_group + np.arange(per_group)).ravel())

    def _entries(self, layer: Layer, axis: int, size: int) -> Array:
        stays = self._stays.get((layer.name, layer.weight, axis)) if layer.groups == 1 else None
        return np.arange(size) if stays is None else np.flatnonzero(stays)
