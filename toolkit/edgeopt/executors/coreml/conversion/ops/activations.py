"""Functions of each number, and ops that only hand their input on."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import Convert, MilConversion
from edgeopt.graph.graph import Node, attribute

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_OPSET_OF_ONE_AXIS = 13
"""Opset since which a softmax runs over one axis."""


def _plain(name: str) -> Convert:
    def convert(conversion: MilConversion, node: Node) -> None:
        made = getattr(conversion.mb, name)(x=conversion.var(node.inputs[0]))
        conversion.set(node.outputs[0], made)

    return convert


def _with_numbers(name: str, **options: tuple[str, float]) -> Convert:
    """Return what writes an op whose options are attributes of the node with these defaults."""

    def convert(conversion: MilConversion, node: Node) -> None:
        numbers = {key: np.float32(attribute(node, *named)) for key, named in options.items()}
        made = getattr(conversion.mb, name)(x=conversion.var(node.inputs[0]), **numbers)
        conversion.set(node.outputs[0], made)

    return convert


def _negated(conversion: MilConversion, node: Node) -> None:
    x = conversion.var(node.inputs[0])
    factor = np.int32(-1) if conversion.dtype(node.inputs[0]) == "int32" else np.float32(-1)
    conversion.set(node.outputs[0], conversion.mb.mul(x=x, y=factor))


def _reciprocal(conversion: MilConversion, node: Node) -> None:
    # `inverse` adds an epsilon to what it divides by
    made = conversion.mb.real_div(x=np.float32(1), y=conversion.var(node.inputs[0]))
    conversion.set(node.outputs[0], made)


def _selu(conversion: MilConversion, node: Node) -> None:
    alpha, gamma = attribute(node, "alpha", _SELU_ALPHA), attribute(node, "gamma", _SELU_GAMMA)
    made = conversion.mb.elu(x=conversion.var(node.inputs[0]), alpha=np.float32(alpha))
    conversion.set(node.outputs[0], conversion.mb.mul(x=made, y=np.float32(gamma)))


def _hard_swish(conversion: MilConversion, node: Node) -> None:
    x = conversion.var(node.inputs[0])
    gate = conversion.mb.sigmoid_hard(x=x, alpha=np.float32(1 / 6), beta=np.float32(0.5))
    conversion.set(node.outputs[0], conversion.mb.mul(x=x, y=gate))


def _mish(conversion: MilConversion, node: Node) -> None:
    x = conversion.var(node.inputs[0])
    gate = conversion.mb.tanh(x=conversion.mb.softplus(x=x))
    conversion.set(node.outputs[0], conversion.mb.mul(x=x, y=gate))


def _gelu(conversion: MilConversion, node: Node) -> None:
    mode = "TANH_APPROXIMATION" if attribute(node, "approximate", "none") == "tanh" else "EXACT"
    conversion.set(node.outputs[0], conversion.mb.gelu(x=conversion.var(node.inputs[0]), mode=mode))


def _slopes(conversion: MilConversion, node: Node) -> None:
    slope = conversion.var(node.inputs[1])
    x, zero = conversion.var(node.inputs[0]), np.float32(0)
    below = conversion.mb.mul(x=conversion.mb.minimum(x=x, y=zero), y=slope)
    conversion.set(node.outputs[0], conversion.mb.add(x=conversion.mb.relu(x=x), y=below))


def _clip(conversion: MilConversion, node: Node) -> None:
    if conversion.graph.opset < 11:  # since then limits are inputs
        least, most = attribute(node, "min", -np.inf), attribute(node, "max", np.inf)
    else:
        bounds = [conversion.numbers(node, place) for place in (1, 2)]
        least, most = (
            endless if bound is None else float(bound.reshape(()))
            for bound, endless in zip(bounds, (-np.inf, np.inf), strict=True)
        )
    if conversion.dtype(node.inputs[0]) != "fp32":
        raise conversion.refuse(node, "of integers")
    conversion.set(node.outputs[0], limited(conversion, conversion.var(node.inputs[0]), least, most))


def limited(conversion: MilConversion, x: Any, least: float, most: float) -> Any:
    """Return a variable between two numbers, each of which may be endless."""
    mb = conversion.mb
    if (least, most) == (0.0, 6.0):
        return mb.relu6(x=x)
    if np.isfinite(least) and np.isfinite(most):
        return mb.clip(x=x, alpha=np.float32(least), beta=np.float32(most))
    if least == 0:
        return mb.relu(x=x)
    if np.isfinite(least):
        return mb.maximum(x=x, y=np.float32(least))
    return mb.minimum(x=x, y=np.float32(most)) if np.isfinite(most) else x


def _same(conversion: MilConversion, node: Node) -> None:
    if node.op_type == "Dropout" and (mode := conversion.numbers(node, 2)) is not None and mode.any():
        raise conversion.refuse(node, "in training mode")
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    if mask is not None and (mask.consumers() or conversion.graph.is_output(mask)):
        raise conversion.refuse(node, "with its mask read")
    conversion.set(node.outputs[0], conversion.var(node.inputs[0]))


def _cast(conversion: MilConversion, node: Node) -> None:
    x, dtype = conversion.var(node.inputs[0]), conversion.dtype(node.outputs[0])
    before = conversion.dtype(node.inputs[0])
    conversion.set(node.outputs[0], x if dtype == before else conversion.mb.cast(x=x, dtype=dtype))


def _softmax(conversion: MilConversion, node: Node) -> None:
    _over_axis(conversion, node, lambda x, axis: conversion.mb.softmax(x=x, axis=axis))


def _log_softmax(conversion: MilConversion, node: Node) -> None:
    def convert(x: Any, axis: int) -> Any:
        total = conversion.mb.reduce_log_sum_exp(x=x, axes=[axis], keep_dims=True)
        return conversion.mb.sub(x=x, y=total)

    _over_axis(conversion, node, convert)


def _over_axis(conversion: MilConversion, node: Node, write: Any) -> None:
    """Write a function over one axis; before opset 13 over all axes from the named one."""
    shape, x = conversion.shape(node.inputs[0]), conversion.var(node.inputs[0])
    is_old = conversion.graph.opset < _OPSET_OF_ONE_AXIS
    axis = attribute(node, "axis", 1 if is_old else -1) % len(shape)
    if is_old and any(size > 1 for size in shape[axis + 1 :]):
        flat = conversion.mb.reshape(x=x, shape=(int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))))
        made = conversion.mb.reshape(x=write(flat, 1), shape=shape)
    else:
        made = write(x, axis)
    conversion.set(node.outputs[0], made)


OPS = {
    "Relu": _plain("relu"),
    "LeakyRelu": _with_numbers("leaky_relu", alpha=("alpha", 0.01)),
    "Elu": _with_numbers("elu", alpha=("alpha", 1.0)),
    "Selu": _selu,
    "Sigmoid": _plain("sigmoid"),
    "Tanh": _plain("tanh"),
    "HardSigmoid": _with_numbers("sigmoid_hard", alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "HardSwish": _hard_swish,
    "Softplus": _plain("softplus"),
    "Mish": _mish,
    "Gelu": _gelu,
    "com.microsoft.Gelu": _gelu,
    "Clip": _clip,
    "PRelu": _slopes,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "Abs": _plain("abs"),
    "Neg": _negated,
    "Floor": _plain("floor"),
    "Ceil": _plain("ceil"),
    "Round": _plain("round"),
    "Sqrt": _plain("sqrt"),
    "Exp": _plain("exp"),
    "Log": _plain("log"),
    "Erf": _plain("erf"),
    "Sin": _plain("sin"),
    "Cos": _plain("cos"),
    "Sign": _plain("sign"),
    "Not": _plain("logical_not"),
    "Reciprocal": _reciprocal,
}
