"""Convolutions, products, pools and normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, Read, as_array


def _pads(op: MilOp, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """Return padding as ONNX has it: before all axes, then behind all."""
    mode = op.number("pad_type")
    axes = len(kernel)
    if mode == "valid":
        return [0] * (2 * axes)
    if mode == "custom":
        flat = op.whole("pad")
        return [*flat[0::2], *flat[1::2]]
    before, behind = [], []
    for size, width, stride, dilation in zip(op.shape("x")[2:], kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        before.append(more if mode == "same_lower" else less)
        behind.append(less if mode == "same_lower" else more)
    return [*before, *behind]


def _convolution(name: str) -> Read:
    def read(reading: MilReading, op: MilOp) -> str:
        kernel = [*op.shape("weight")[2:]]
        strides, dilations = op.whole("strides"), op.whole("dilations")
        inputs = [op.tensor("x"), op.tensor("weight"), *([op.tensor("bias")] if op.has("bias") else [])]
        pads = _pads(op, kernel, strides, dilations)
        if op.has("output_shape"):
            _require_plain(op, kernel, strides, dilations, pads)
        made: str = reading.add(
            name,
            inputs,
            strides=strides,
            dilations=dilations,
            pads=pads,
            group=int(op.number("groups")),
        )
        return made

    return read


def _require_plain(op: MilOp, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]) -> None:
    """Refuse an output_shape that the other options do not give. Raises UnsupportedError."""
    plain = [
        (size - 1) * stride + (width - 1) * dilation + 1 - before - behind
        for size, stride, width, dilation, before, behind in zip(
            op.shape("x")[2:], strides, kernel, dilations, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    ]
    if op.whole("output_shape")[2:] != plain:
        raise op.refuse("with another output_shape")


def _linear(reading: MilReading, op: MilOp) -> str:
    turned = reading.add("Transpose", [op.tensor("weight")], perm=[1, 0])
    made: str = reading.add("MatMul", [op.tensor("x"), turned])
    if op.has("bias"):
        made = reading.add("Add", [made, op.tensor("bias")])
    return made


def _product(reading: MilReading, op: MilOp) -> str:
    sides = []
    for key in ("x", "y"):
        side = op.tensor(key)
        if op.has(f"transpose_{key}") and op.number(f"transpose_{key}"):
            rank = len(op.shape(key))
            side = reading.add("Transpose", [side], perm=[*range(rank - 2), rank - 1, rank - 2])
        sides.append(side)
    made: str = reading.add("MatMul", sides)
    return made


def _pool(name: str) -> Read:
    def read(reading: MilReading, op: MilOp) -> str:
        kernel = op.whole("kernel_sizes")
        ones = [1] * len(kernel)
        strides = op.whole("strides") if op.has("strides") else ones
        if op.has("ceil_mode") and op.number("ceil_mode"):
            raise op.refuse("that rounds up")
        options: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
        options["pads"] = _pads(op, kernel, strides, ones)
        if name == "AveragePool":
            excludes = op.has("exclude_padding_from_average") and op.number("exclude_padding_from_average")
            options["count_include_pad"] = int(not excludes)
        made: str = reading.add(name, [op.tensor("x")], **options)
        return made

    return read


def _normalized(reading: MilReading, op: MilOp, axes: list[int], wide: Sequence[int]) -> str:
    """Return gamma * (x - mean) / sqrt(variance + epsilon) + beta, with the tables in the shape `wide`."""
    x, over = op.tensor("x"), reading.row(axes)
    centred = reading.add("Sub", [x, reading.add("ReduceMean", [x, over], keepdims=1)])
    squares = reading.add("Mul", [centred, centred])
    variance = reading.add("ReduceMean", [squares, over], keepdims=1)
    epsilon = reading.const(op.number("epsilon"), np.float32)
    root = reading.add("Sqrt", [reading.add("Add", [variance, epsilon])])
    made: str = reading.add("Div", [centred, root])
    for key, name in (("gamma", "Mul"), ("beta", "Add")):
        if op.has(key):
            made = reading.add(name, [made, reading.const(as_array(op.value(key).reshape(wide)))])
    return made


def _layer(reading: MilReading, op: MilOp) -> str:
    shape = op.shape("x")
    axes = sorted(axis % len(shape) for axis in op.whole("axes"))
    wide = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    return _normalized(reading, op, axes, wide)


def _instance(reading: MilReading, op: MilOp) -> str:
    rank = len(op.shape("x"))
    wide = (1, -1, *(1,) * (rank - 2))
    return _normalized(reading, op, [*range(2, rank)], wide)


def _batch(reading: MilReading, op: MilOp) -> str:
    wide = (1, -1, *(1,) * (len(op.shape("x")) - 2))
    mean, variance = (op.value(key).astype(np.float64) for key in ("mean", "variance"))
    gamma = op.value("gamma") if op.has("gamma") else np.ones_like(mean)
    beta = op.value("beta") if op.has("beta") else np.zeros_like(mean)
    factor = gamma / np.sqrt(variance + op.number("epsilon"))
    scaled = reading.add("Mul", [op.tensor("x"), reading.const(as_array(factor.reshape(wide)))])
    made: str = reading.add("Add", [scaled, reading.const(as_array((beta - mean * factor).reshape(wide)))])
    return made


def _neighbours(reading: MilReading, op: MilOp) -> str:
    made: str = reading.add(
        "LRN",
        [op.tensor("x")],
        size=int(op.number("size")),
        alpha=float(op.number("alpha")),
        beta=float(op.number("beta")),
        bias=float(op.number("k")),
    )
    return made


def _softmax(reading: MilReading, op: MilOp) -> str:
    made: str = reading.add("Softmax", [op.tensor("x")], axis=int(op.number("axis")))
    return made


OPS = {
    "conv": _convolution("Conv"),
    "conv_transpose": _convolution("ConvTranspose"),
    "linear": _linear,
    "matmul": _product,
    "max_pool": _pool("MaxPool"),
    "avg_pool": _pool("AveragePool"),
    "layer_norm": _layer,
    "instance_norm": _instance,
    "batch_norm": _batch,
    "local_response_norm": _neighbours,
    "softmax": _softmax,
}
