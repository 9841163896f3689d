"""Normalization over batches, layers, instances and neighbouring channels."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.graph.graph import Node, attribute


def _batch(conversion: MilConversion, node: Node) -> None:
    if attribute(node, "training_mode", 0):
        raise conversion.refuse(node, "in training mode")
    numbers = [conversion.numbers(node, place) for place in (1, 2, 3, 4)]
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in numbers)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    shape = (1, -1, *(1,) * (len(conversion.shape(node.inputs[0])) - 2))
    x = conversion.var(node.inputs[0])
    x = conversion.mb.mul(x=x, y=factor.reshape(shape).astype(np.float32))
    shift = (bias - mean * factor).reshape(shape).astype(np.float32)
    conversion.set(node.outputs[0], conversion.mb.add(x=x, y=shift))


def _layer(conversion: MilConversion, node: Node) -> None:
    if any(output.consumers() for output in node.outputs[1:]):
        raise conversion.refuse(node, "with its mean read")
    shape = conversion.shape(node.inputs[0])
    axis = attribute(node, "axis", -1) % len(shape)
    tables = {}
    for name, place in (("gamma", 1), ("beta", 2)):
        table = conversion.numbers(node, place)
        if table is not None:
            tables[name] = np.ascontiguousarray(np.broadcast_to(table, shape[axis:])).astype(np.float32)
    made = conversion.mb.layer_norm(
        x=conversion.var(node.inputs[0]),
        axes=[*range(axis, len(shape))],
        epsilon=np.float32(attribute(node, "epsilon", 1e-5)),
        **tables,
    )
    conversion.set(node.outputs[0], made)


def _instance(conversion: MilConversion, node: Node) -> None:
    scale, bias = (np.asarray(conversion.numbers(node, place), np.float32).reshape(-1) for place in (1, 2))
    if len(conversion.shape(node.inputs[0])) > 4:
        raise conversion.refuse(node, "over volumes")
    made = conversion.mb.instance_norm(
        x=conversion.var(node.inputs[0]),
        gamma=scale,
        beta=bias,
        epsilon=np.float32(attribute(node, "epsilon", 1e-5)),
    )
    conversion.set(node.outputs[0], made)


def _neighbours(conversion: MilConversion, node: Node) -> None:
    size = attribute(node, "size", 1)
    if size % 2 == 0 or len(conversion.shape(node.inputs[0])) not in (3, 4):
        raise conversion.refuse(node, "of an even size, or of neither lines nor pictures")
    made = conversion.mb.local_response_norm(
        x=conversion.var(node.inputs[0]),
        size=size,
        alpha=np.float32(attribute(node, "alpha", 1e-4)),
        beta=np.float32(attribute(node, "beta", 0.75)),
        k=np.float32(attribute(node, "bias", 1.0)),
    )
    conversion.set(node.outputs[0], made)


OPS = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "InstanceNormalization": _instance,
    "LRN": _neighbours,
}
