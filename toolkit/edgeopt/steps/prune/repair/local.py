"""Each layer makes up for the inputs that it lost, as the dense model's statistics say: no picture is run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model
from edgeopt.steps.prune.network.kept import Kept
from edgeopt.steps.prune.network.layers import Layer, layers_of
from edgeopt.steps.prune.network.weights import Array, constants_of, with_weights
from edgeopt.steps.prune.repair._fit import make_up
from edgeopt.steps.prune.statistics import Statistics

RIDGE = 1e-8
"""Ridge of the mean variance of a kept column."""


def repair_local(
    dense: Model,
    pruned: Model,
    groups: ChannelGroups,
    keep: Mapping[str, NDArray[np.int64]],
    statistics: Statistics,
    ridge: float = RIDGE,
) -> Model:
    """Return the pruned model with weights that meet the dense layers' outputs best, given the dense inputs that stay.

    Layers that share a weight are solved as one. Layers without statistics stay as they are.

    Args:
        dense: Before channels were removed.
        pruned: After.
        groups: Of the dense model.
        keep: Sorted kept channels by the group's name.
        statistics: Of the dense model.
        ridge: Relative to the mean variance of a kept column.
    """
    kept, stored = Kept(groups, keep), constants_of(pruned)
    left = {other.name: other for other in layers_of(pruned, stored)}
    sharing: dict[str, list[Layer]] = {}
    for layer in statistics.layers.values():
        if layer.name in left and statistics.of(layer) is not None:
            sharing.setdefault(left[layer.name].weight, []).append(layer)
    weights, biases = dict[str, Array](), dict[Layer, Array]()
    for name, layers in sharing.items():
        repaired = _weights(layers, kept, statistics, ridge)
        if repaired is None:
            continue
        weights[name] = left[layers[0].name].constant(repaired[None], stored[name])
        for layer in layers:
            if layer.bias is not None:
                biases[left[layer.name]] = _bias(layer, left[layer.name], repaired, kept, statistics, stored)
    return with_weights(pruned, weights, biases)


def _weights(layers: Sequence[Layer], kept: Kept, statistics: Statistics, ridge: float) -> NDArray[np.float64] | None:
    """Return the weights of all layers that share them, (outputs, channels, taps); None where no input is lost."""
    layer = layers[0]
    dense = statistics.weights(layer)
    channels, outputs = kept.inputs(layer, dense[None]), kept.outputs(layer, dense[None])
    if len(channels) == dense.shape[1]:
        return None
    forms = [(one, moments) for one in layers if (moments := statistics.of(one)) is not None]
    first = forms[0][1]
    if any((other.width, other.fold) != (first.width, first.fold) for _, other in forms):
        return None
    total = sum(moments.gram[:-1, :-1] if one.bias is None else moments.covariance for one, moments in forms)
    matrix = make_up(first.matrix(dense[outputs]), np.asarray(total), first.columns(channels), ridge)
    return first.weights(matrix, len(outputs), dense.shape[2])


def _bias(
    layer: Layer,
    left: Layer,
    weights: NDArray[np.float64],
    kept: Kept,
    statistics: Statistics,
    stored: Mapping[str, Array],
) -> NDArray[np.float64]:
    """Return the bias with which the mean output is the dense one."""
    moments, dense = statistics.of(layer), statistics.weights(layer)
    assert moments is not None
    outputs, columns = kept.outputs(layer, dense[None]), moments.columns(kept.inputs(layer, dense[None]))
    before = moments.by_output(moments.matrix(dense[outputs]) @ moments.mean, len(outputs))
    after = moments.by_output(moments.matrix(weights) @ moments.mean[columns], len(outputs))
    return left.bias_of(stored) + before - after
