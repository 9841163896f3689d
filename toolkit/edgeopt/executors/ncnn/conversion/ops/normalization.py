"""Normalization over batches, layers, instances and neighbouring channels."""

from __future__ import annotations

import math

import numpy as np

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Weight
from edgeopt.graph.graph import Node, attribute


def _batch(conversion: Conversion, node: Node) -> None:
    conversion.require_one_picture(node)
    if attribute(node, "training_mode", 0):
        raise conversion.refuse(node, "in training mode")
    numbers = [conversion.numbers(node, place) for place in (1, 2, 3, 4)]
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in numbers)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    weights = [Weight(array.astype(np.float32), has_tag=False) for array in (factor, bias - mean * factor)]
    parameters = {0: factor.size, 1: 1}
    conversion.set(node.outputs[0], conversion.layer(node, "Scale", [node.inputs[0]], parameters, weights))


def _layer(conversion: Conversion, node: Node) -> None:
    shape = conversion.shape(node.inputs[0])
    axis = attribute(node, "axis", -1) % len(shape)
    size = math.prod(shape[axis:])
    scale, bias = conversion.numbers(node, 1), conversion.numbers(node, 2)
    if scale is None or scale.size != size or any(output.consumers() for output in node.outputs[1:]):
        raise conversion.refuse(node, "with a scale of another shape, or its mean read")
    shift = (
        np.zeros(size, np.float32)
        if bias is None
        else np.broadcast_to(bias, shape[axis:]).reshape(-1).astype(np.float32)
    )
    weights = [Weight(scale.reshape(-1).astype(np.float32), has_tag=False), Weight(shift, has_tag=False)]
    rows = math.prod(shape[:axis])
    dims = (size,) if rows == 1 else (rows, size)
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    parameters = {0: size, 1: float(attribute(node, "epsilon", 1e-5)), 2: 1}
    made = conversion.layer(node, "LayerNorm", [blob], parameters, weights)
    conversion.set(node.outputs[0], conversion.reshaped(node, made, dims, conversion.dims(node.outputs[0])))


def _instance(conversion: Conversion, node: Node) -> None:
    scale, bias = conversion.numbers(node, 1), conversion.numbers(node, 2)
    assert scale is not None
    assert bias is not None
    if conversion.shape(node.inputs[0])[0] != 1:
        raise conversion.refuse(node, "of several pictures at once")
    weights = [Weight(array.astype(np.float32), has_tag=False) for array in (scale, bias)]
    parameters = {0: scale.size, 1: float(attribute(node, "epsilon", 1e-5)), 2: 1}
    shape = conversion.shape(node.inputs[0])
    before, dims = conversion.dims(node.inputs[0]), (shape[1], 1, math.prod(shape[2:]))
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), before, dims)
    made = conversion.layer(node, "InstanceNorm", [blob], parameters, weights)
    conversion.set(node.outputs[0], conversion.reshaped(node, made, dims, before))


def _neighbours(conversion: Conversion, node: Node) -> None:
    conversion.require_one_picture(node)
    size = attribute(node, "size", 0)
    parameters = {
        0: 0,
        1: size,
        2: float(attribute(node, "alpha", 1e-4)),
        3: float(attribute(node, "beta", 0.75)),
        4: float(attribute(node, "bias", 1.0)),
    }
    conversion.set(node.outputs[0], conversion.layer(node, "LRN", [node.inputs[0]], parameters))


OPS = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "InstanceNormalization": _instance,
    "LRN": _neighbours,
}
