"""Activations, and ops that only hand their input on."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter, Weight
from edgeopt.graph.graph import Node, attribute

_LARGEST = float(np.finfo(np.float32).max)


def _plain(kind: str, **numbers: tuple[int, str, float]) -> Callable[[Conversion, Node], None]:
    """Return what writes an op of one input; each of `numbers` is a parameter, its attribute and the default."""

    def convert(conversion: Conversion, node: Node) -> None:
        parameters: dict[int, Parameter] = {
            key: float(attribute(node, name, default)) for key, name, default in numbers.values()
        }
        conversion.set(node.outputs[0], conversion.layer(node, kind, [node.inputs[0]], parameters))

    return convert


def _clip(conversion: Conversion, node: Node) -> None:
    least, most = -_LARGEST, _LARGEST
    if conversion.graph.opset < 11:  # since then limits are inputs
        least, most = attribute(node, "min", least), attribute(node, "max", most)
    else:
        low, high = conversion.numbers(node, 1), conversion.numbers(node, 2)
        least = least if low is None else float(low.reshape(()))
        most = most if high is None else float(high.reshape(()))
    conversion.set(node.outputs[0], conversion.layer(node, "Clip", [node.inputs[0]], {0: least, 1: most}))


def _prelu(conversion: Conversion, node: Node) -> None:
    slope = conversion.numbers(node, 1)
    assert slope is not None
    shape = conversion.shape(node.inputs[0])
    if slope.size > 1:
        conversion.require_one_picture(node)
        wide = (1,) * (len(shape) - slope.ndim) + slope.shape
        if slope.ndim > len(shape) or slope.size != shape[1] or wide[1] != shape[1]:
            raise conversion.refuse(node, "with slopes that are none of channels")
    weight = Weight(slope.reshape(-1).astype(np.float32), has_tag=False)
    conversion.set(node.outputs[0], conversion.layer(node, "PReLU", [node.inputs[0]], {0: slope.size}, [weight]))


def _gelu(conversion: Conversion, node: Node) -> None:
    is_fast = int(attribute(node, "approximate", "none") == "tanh")
    conversion.set(node.outputs[0], conversion.layer(node, "GELU", [node.inputs[0]], {0: is_fast}))


def _hard_swish(conversion: Conversion, node: Node) -> None:
    conversion.set(node.outputs[0], conversion.layer(node, "HardSwish", [node.inputs[0]], {0: 1 / 6, 1: 0.5}))


def _same(conversion: Conversion, node: Node) -> None:
    if node.op_type == "Dropout" and (mode := conversion.numbers(node, 2)) is not None and mode.any():
        raise conversion.refuse(node, "in training mode")
    if len(node.outputs) > 1 and node.outputs[1].consumers():
        raise conversion.refuse(node, "with its mask read")
    value = node.inputs[0]
    conversion.set(node.outputs[0], conversion.blob(value), conversion.grid(value))


def _cast(conversion: Conversion, node: Node) -> None:
    before, after = (conversion.graph.dtype(value) for value in (node.inputs[0], node.outputs[0]))
    if before != np.float32 or after != np.float32:
        raise conversion.refuse(node, f"from {before} to {after}")
    _same(conversion, node)


def _softmax(conversion: Conversion, node: Node) -> None:
    """Over one axis, since opset 13; before it over all axes from the named one."""
    shape = conversion.shape(node.inputs[0])
    is_old = conversion.graph.opset < 13
    axis = attribute(node, "axis", 1 if is_old else -1) % len(shape)
    last = len(shape) if is_old else axis + 1
    parts = (math.prod(shape[:axis]), math.prod(shape[axis:last]), math.prod(shape[last:]))
    dims = tuple(size for i, size in enumerate(parts) if size > 1 or i == 1)
    place = 1 if parts[0] > 1 else 0
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    made = conversion.layer(node, "Softmax", [blob], {0: place, 1: 1})
    conversion.set(node.outputs[0], conversion.reshaped(node, made, dims, conversion.dims(node.outputs[0])))


OPS = {
    "Relu": _plain("ReLU"),
    "LeakyRelu": _plain("ReLU", slope=(0, "alpha", 0.01)),
    "Elu": _plain("ELU", alpha=(0, "alpha", 1.0)),
    "Celu": _plain("CELU", alpha=(0, "alpha", 1.0)),
    "Selu": _plain("SELU", alpha=(0, "alpha", 1.67326319), gamma=(1, "gamma", 1.05070102)),
    "Sigmoid": _plain("Sigmoid"),
    "HardSigmoid": _plain("HardSigmoid", alpha=(0, "alpha", 0.2), beta=(1, "beta", 0.5)),
    "HardSwish": _hard_swish,
    "Softplus": _plain("Softplus"),
    "Mish": _plain("Mish"),
    "Erf": _plain("Erf"),
    "Gelu": _gelu,
    "com.microsoft.Gelu": _gelu,
    "Clip": _clip,
    "PRelu": _prelu,
    "Softmax": _softmax,
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
}
