"""Normalization over batches, layers, instances and neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.litert.conversion.conversion import Order, TfliteConversion, TfliteStep, channels_last


def _batch(conversion: TfliteConversion, step: TfliteStep) -> None:
    if step.attribute("training_mode", 0):
        raise conversion.refuse(step.node, "in training mode")
    numbers = [conversion.numbers(step.node, place) for place in (1, 2, 3, 4)]
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in numbers)
    factor = scale / np.sqrt(variance + step.attribute("epsilon", 1e-5))
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    conversion.set(step.outputs[0], _scaled(conversion, place, order, factor, bias - mean * factor), order)


def _scaled(conversion: TfliteConversion, place: int, order: Order, factor: NDArray[Any], shift: NDArray[Any]) -> int:
    """Return a tensor times a number and plus a number of each channel."""
    shape = [1] * len(order)
    shape[order.index(1)] = factor.size
    for code, numbers in (("MUL", factor), ("ADD", shift)):
        table = conversion.network.constant(code.lower(), numbers.astype(np.float32).reshape(shape))
        place = conversion.apply(code, [place, table], conversion.shown(place))
    return place


def _normalized(conversion: TfliteConversion, place: int, axes: Sequence[int], epsilon: float) -> int:
    """Return a tensor less its mean, by the root of its variance and epsilon, over axes as they are stored."""
    shape = conversion.shown(place)
    small = [1 if axis in axes else size for axis, size in enumerate(shape)]
    over = conversion.integers(axes)
    mean = conversion.apply("MEAN", [place, over], small, keepDims=True)
    centred = conversion.apply("SUB", [place, mean], shape)
    squares = conversion.apply("MUL", [centred, centred], shape)
    variance = conversion.apply("MEAN", [squares, over], small, keepDims=True)
    variance = conversion.apply("ADD", [variance, conversion.number(epsilon)], small)
    return conversion.apply("MUL", [centred, conversion.apply("RSQRT", [variance], small)], shape)


def _layer(conversion: TfliteConversion, step: TfliteStep) -> None:
    if any(output.consumers() for output in step.node.outputs[1:]):
        raise conversion.refuse(step.node, "with its mean read")
    shape = conversion.shape(step.inputs[0])
    axis = step.attribute("axis", -1) % len(shape)
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    axes = [stored for stored, named in enumerate(order) if named >= axis]
    made = _normalized(conversion, place, axes, step.attribute("epsilon", 1e-5))
    for code, number in (("MUL", 1), ("ADD", 2)):
        table = conversion.numbers(step.node, number)
        if table is not None:
            wide = table.astype(np.float32).reshape((1,) * (len(shape) - table.ndim) + table.shape).transpose(order)
            place = conversion.network.constant(f"{step.node.name}_{code.lower()}", wide)
            made = conversion.apply(code, [made, place], conversion.shown(made))
    conversion.set(step.outputs[0], made, order)


def _instance(conversion: TfliteConversion, step: TfliteStep) -> None:
    scale, bias = conversion.numbers(step.node, 1), conversion.numbers(step.node, 2)
    assert scale is not None
    assert bias is not None
    order = conversion.order(step.inputs[0])
    axes = [place for place, axis in enumerate(order) if axis > 1]
    place = conversion.tensor(step.inputs[0], order)
    made = _normalized(conversion, place, axes, step.attribute("epsilon", 1e-5))
    conversion.set(step.outputs[0], _scaled(conversion, made, order, scale, bias), order)


def _neighbours(conversion: TfliteConversion, step: TfliteStep) -> None:
    size, order = step.attribute("size", 1), channels_last(4)
    if size % 2 == 0 or len(conversion.shape(step.inputs[0])) != 4:
        raise conversion.refuse(step.node, "of an even size, or of no pictures")
    place = conversion.tensor(step.inputs[0], order)
    conversion.network.add(
        "LOCAL_RESPONSE_NORMALIZATION",
        [place],
        [conversion.new(step.outputs[0], order)],
        radius=size // 2,
        bias=step.attribute("bias", 1.0),
        alpha=step.attribute("alpha", 1e-4) / size,
        beta=step.attribute("beta", 0.75),
    )


OPS = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "InstanceNormalization": _instance,
    "LRN": _neighbours,
}
