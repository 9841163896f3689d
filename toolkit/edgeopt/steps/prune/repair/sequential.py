"""Each layer in turn makes up for all that is lost before it: inputs of the pruned model, targets of the dense one.

The pruned model runs once over the pictures, from layer to layer: when a layer's turn comes, all before it is repaired.
Only tensors that a later node reads are held, for all pictures; `MOST_BYTES` bounds how many pictures that are.

Source: He et al., Channel Pruning for Accelerating Very Deep Neural Networks, ICCV 2017, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.network.kept import Kept
from edgeopt.steps.prune.network.layers import Layer, layers_of
from edgeopt.steps.prune.network.weights import Array, constants_of, with_weights
from edgeopt.steps.prune.repair._fit import Goal, fit
from edgeopt.steps.prune.repair._stepwise import Stepwise, peak_bytes
from edgeopt.steps.prune.statistics import Looks, watch

RIDGE = 0.5
"""Ridge of the mean variance of a column. SqueezeNet, 9 and 24 % gone, KL: 0.037, 0.480 at 0.1; 0.033, 0.482 at 1."""
_MOST_PRODUCTS = 5_000_000_000
"""Multiply-adds of one pass over a layer's sampled rows; of more rows every second, third, ... is taken."""
MOST_BYTES = 1 << 30
"""Most bytes of activations of all pictures that are held at once."""
MOST_TARGET_BYTES = 1 << 29
"""Most target bytes of the dense model's sampled outputs: of more, fewer positions are sampled in each picture."""
_LEAST_POSITIONS = 8


def repair_sequential(
    dense: Model,
    pruned: Model,
    groups: ChannelGroups,
    keep: Mapping[str, NDArray[np.int64]],
    batches: Iterable[Tensors],
    ridge: float = RIDGE,
    *,
    looks: Looks = Looks(),  # noqa: B008, frozen
    targets: Mapping[str, Array] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Return the pruned model with weights that meet the dense layers' outputs best, given the pruned model's inputs.

    The ridge pulls towards the weights that `pruned` has: give it repaired locally. A weight that several nodes share
    stays as it is: no one solution fits inputs that change as it does.

    Args:
        dense: Before channels were removed.
        pruned: After; its weights are where the fit begins.
        groups: Of the dense model.
        keep: Sorted kept channels by the group's name.
        batches: Model inputs, one picture each.
        ridge: Relative to the mean variance of a column.
        looks: At which positions of layers' outputs.
        targets: What `collect_targets` gave for the same pictures and looks; None: the dense model runs.
        progress: Called with the number of layers done, and of all.
    """
    pictures = list(batches)
    if not pictures:
        return pruned
    kept, stored = Kept(groups, keep), constants_of(pruned)
    layers = _layers_to_fit(dense, pruned, stored, kept)
    if not layers:
        return pruned
    looks = affordable(dense, len(pictures), looks)
    pictures = pictures[: max(1, MOST_BYTES // max(peak_bytes(pruned, pictures[0]), 1))]
    if targets is None:
        targets = _targets(dense, pictures, looks, {other.name for other in layers})
    originals, whole = {other.name: other for other in layers_of(dense, constants_of(dense))}, constants_of(dense)
    goals = goals_of(pruned)
    run = Stepwise(pruned, stored, pictures)
    for number, layer in enumerate(layers):
        run.until(layer.name)
        original = originals[layer.name]
        outputs = kept.all_outputs(original, original.matrix(whole[original.weight]))
        rows = _rows(layer, run, looks)
        wanted = targets[layer.name][: rows.shape[1]][:, outputs]
        weight, bias = _fitted(layer, stored, rows, wanted, ridge, goals.get(layer.name))
        if bias is not None and layer.bias_node != layer.name:  # the targets are without it
            bias += original.bias_of(whole)[outputs]
        run.change(layer, weight, bias)
        if progress:
            progress(number + 1, len(layers))
    return with_weights(pruned, run.weights, run.biases)


def collect_targets(dense: Model, batches: Iterable[Tensors], *, looks: Looks = Looks()) -> dict[str, Array]:  # noqa: B008
    """Return sampled rows of the outputs of all layers, by name: shape (pictures * positions, outputs).

    Args:
        dense: The dense model.
        batches: Model inputs, one picture each.
        looks: As `repair_sequential` has them.
    """
    pictures = list(batches)
    names = {layer.name for layer in layers_of(dense, constants_of(dense))}
    return _targets(dense, pictures, affordable(dense, len(pictures), looks), names)


def affordable(dense: Model, pictures: int, looks: Looks) -> Looks:
    """Return looks at as many positions as memory holds the dense outputs of.

    Of fewer pictures, what this returns is affordable too: targets of all of them serve a part.
    """
    stored = constants_of(dense)
    outputs = sum(math.prod(layer.matrix(stored[layer.weight]).shape[:2]) for layer in layers_of(dense, stored))
    most = MOST_TARGET_BYTES // max(4 * pictures * outputs * looks.rows // looks.most, 1)
    return replace(looks, most=min(looks.most, max(_LEAST_POSITIONS, most)))


def _targets(dense: Model, pictures: Iterable[Tensors], looks: Looks, names: set[str]) -> dict[str, Array]:
    layers = [other for other in layers_of(dense, constants_of(dense)) if other.name in names]
    result: dict[str, list[Array]] = {other.name: [] for other in layers}
    for picture, values in watch(dense, pictures, result):
        for layer in layers:
            if layer.name in values:
                value = values[layer.name]
                result[layer.name].append(layer.outputs(value, looks.at(layer, value.shape, picture)))
    return {name: np.concatenate(rows) for name, rows in result.items()}


def _layers_to_fit(dense: Model, pruned: Model, stored: Mapping[str, Array], kept: Kept) -> list[Layer]:
    """Return the pruned model's layers whose output is no longer the dense one's, in order."""
    whole = constants_of(dense)
    lost = {
        other.name
        for other in layers_of(dense, whole)
        if len(kept.inputs(other, matrix := other.matrix(whole[other.weight]))) < matrix.shape[2]
    }
    layers = {other.name: other for other in layers_of(pruned, stored)}
    shared = [other.weight for other in layers.values()]
    changed, result = set[str](), list[Layer]()
    for node in pruned.proto.graph.node:
        if node.output and (node.output[0] in lost or changed & set(node.input)):
            changed |= set(filter(None, node.output))  # an output nobody asked for is no input left out
            layer = layers.get(node.output[0])
            if layer is not None and shared.count(layer.weight) == 1:
                result.append(layer)
    return result


def _rows(layer: Layer, run: Stepwise, looks: Looks) -> NDArray[np.float32]:
    """Return what the layer reads at sampled positions of all pictures, shape (groups, n, columns)."""
    shape = run.shape(layer.name)
    rows = []
    for picture, value in enumerate(run.values(layer.source)):
        array = layer.rows(value, shape, looks.at(layer, shape, picture))
        rows.append(array.reshape(*array.shape[:2], -1))
    return np.concatenate(rows, axis=1)


def _fitted(
    layer: Layer,
    stored: Mapping[str, Array],
    rows: NDArray[np.float32],
    wanted: Array,
    ridge: float,
    goal: Goal | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the layer's weights (groups, outputs, channels, taps) and its bias; None: it has none."""
    matrix = layer.matrix(stored[layer.weight])
    outputs = wanted.reshape(len(wanted), len(matrix), -1)
    weights, biases = [], []
    for group, begun in enumerate(matrix.reshape(len(matrix), matrix.shape[1], -1)):
        step = max(1, len(wanted) * begun.size // max(_MOST_PRODUCTS, 4 * begun.shape[1] * begun.size))
        weight, bias = fit(
            rows[group, ::step], outputs[::step, group], begun, ridge, has_bias=layer.bias is not None, goal=goal
        )
        weights.append(weight)
        biases.append(bias)
    return np.stack(weights).reshape(matrix.shape), np.concatenate(biases) if layer.bias is not None else None


# Ignore errors that the next activation erases: both the dense output and the pruned one clip to the same value.

Rows = NDArray[np.float32]
_STEEPEST = 1.21
"""The greatest square of the slope of x * sigmoid(x)."""


def relu(fitted: Rows, dense: Rows) -> Rows:
    """Return the dense outputs; where they are below zero, what was fitted, if that is too."""
    return np.where(dense > 0, dense, np.minimum(fitted, 0))


def silu(fitted: Rows, dense: Rows) -> Rows:
    """Return what was fitted, one step of steepest descent closer to the dense outputs behind x * sigmoid(x)."""
    gate, dense_gate = (1 / (1 + np.exp(-np.clip(array, -60, 60))) for array in (fitted, dense))
    slope = gate * (1 + fitted * (1 - gate))
    return np.asarray(fitted - slope * (fitted * gate - dense * dense_gate) / _STEEPEST, np.float32)


def goals_of(model: Model) -> Mapping[str, Goal]:
    """Return what to fit, by the name of a tensor that nothing but an activation reads: Relu, or Sigmoid and Mul."""
    readers: dict[str, list[NodeProto]] = {}
    for node in model.proto.graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    outputs = {value_info.name for value_info in model.proto.graph.output}
    goals: dict[str, Goal] = {}
    for name, nodes in readers.items():
        ops = sorted(other.op_type for other in nodes)
        if name in outputs:
            continue
        if ops == ["Relu"]:
            goals[name] = relu
        elif ops == ["Mul", "Sigmoid"]:
            product, gate = sorted(nodes, key=lambda other: other.op_type)
            if gate.output[0] in product.input and len(readers[gate.output[0]]) == 1:
                goals[name] = silu
    return goals
