"""Pairs of QuantizeLinear and DequantizeLinear, as layers of ncnn round to integers themselves.

ncnn's integers are signed and without a zero point; a tensor has one scale, a weight one for each output channel. A
layer rounds what it reads, so a pair writes no layer: it tells the layers behind it which scale to round to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.graph.graph import Node, Value, attribute

_MOVERS = ("MaxPool", "Concat", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")
"""Ops that hand on what they read, so that it may be rounded behind them as well."""
_TIMES, _ROUND = 2, 18
"""ncnn's numbers of a product and of rounding."""
_OF_PICTURES = 4
"""Axes of the weights of a convolution of pictures."""


@dataclass(frozen=True, slots=True)
class IntegerWeights:
    """A constant that the model stores in integers."""

    integers: NDArray[np.int8]
    scale: NDArray[np.float32]
    axis: int

    @property
    def numbers(self) -> NDArray[np.float32]:
        """The numbers that the integers stand for."""
        shape = [1] * self.integers.ndim
        if self.scale.size > 1:
            shape[self.axis] = self.scale.size
        result: NDArray[np.float32] = self.integers.astype(np.float32) * self.scale.reshape(shape)
        return result


def stored_integers(conversion: Conversion, value: Value | None) -> IntegerWeights | None:
    """Return a constant behind a DequantizeLinear as it is stored; None where it is none.

    Raises:
        UnsupportedError: If it is stored otherwise than in int8 without a zero point.
    """
    node = conversion.graph.producer(value, "DequantizeLinear")
    if node is None:
        return None
    integers = conversion.graph.constant(node.inputs[0])
    if integers is None:
        return None
    scale, zero = _grid(conversion, node)
    if integers.dtype != np.int8 or zero.any() or attribute(node, "block_size", 0):
        raise conversion.refuse(node, f"of {integers.dtype} weights, or with a zero point")
    return IntegerWeights(integers, scale.reshape(-1), attribute(node, "axis", 1) % max(integers.ndim, 1))


def integer_weights(conversion: Conversion, node: Node) -> IntegerWeights | None:
    """Return the second input of a node as it is stored in integers. Raises as `stored_integers`."""
    return stored_integers(conversion, node.inputs[1])


def scales_of(stored: IntegerWeights, group: int, axis: int = 0) -> NDArray[np.float32] | None:
    """Return the scales of integer weights in ncnn's sense, products a number; None where ncnn cannot hold them.

    Args:
        stored: The weights.
        group: Groups of a convolution; one of several has a scale for each group.
        axis: Axis of output channels.
    """
    outputs = stored.integers.shape[axis]
    scale = stored.scale
    if scale.size > 1 and stored.axis != axis:
        return None
    each = np.broadcast_to(scale, (outputs,))
    if group > 1:
        by_group = each.reshape(group, -1)
        if (by_group != by_group[:, :1]).any():
            return None
        each = by_group[:, 0]
    result: NDArray[np.float32] = (1 / each.astype(np.float64)).astype(np.float32)
    return result


def _grid(conversion: Conversion, node: Node) -> tuple[NDArray[Any], NDArray[Any]]:
    scale = conversion.numbers(node, 1)
    zero = conversion.numbers(node, 2)
    assert scale is not None
    return scale, np.zeros(1, np.int8) if zero is None else zero


def _quantize(conversion: Conversion, node: Node) -> None:
    scale, zero = _grid(conversion, node)
    has_zero = len(node.inputs) > 2 and node.inputs[2] is not None
    dtype = zero.dtype if has_zero else np.dtype(np.uint8)
    if dtype != np.int8 or zero.any() or scale.size > 1:
        raise conversion.refuse(node, f"to {dtype}, with a zero point, or by channels")
    conversion.set(node.outputs[0], conversion.blob(node.inputs[0]), float(scale.reshape(())))


def _dequantize(conversion: Conversion, node: Node) -> None:
    stored = stored_integers(conversion, node.outputs[0])
    if stored is not None:  # its readers ask for it; others read the numbers
        conversion.set(
            node.outputs[0], conversion.memory(str(node.name), stored.numbers, conversion.dims(node.outputs[0]))
        )
        return
    grid, (scale, zero) = conversion.grid(node.inputs[0]), _grid(conversion, node)
    if grid is None or zero.any() or scale.size > 1 or float(scale.reshape(())) != grid:
        raise conversion.refuse(node, "of another grid than the QuantizeLinear before it")
    blob = conversion.blob(node.inputs[0])
    if not _is_rounded_by_readers(conversion, node.outputs[0]):
        blob = _rounded(conversion, node, blob, grid)
    conversion.set(node.outputs[0], blob, grid)


def _rounded(conversion: Conversion, node: Node, blob: str, grid: float) -> str:
    """Write what a pair does: divide by the step, round, clip, multiply."""
    for kind, parameters in (
        ("BinaryOp", {0: _TIMES, 1: 1, 2: 1 / grid}),
        ("UnaryOp", {0: _ROUND}),
        ("Clip", {0: -128.0, 1: 127.0}),
        ("BinaryOp", {0: _TIMES, 1: 1, 2: grid}),
    ):
        blob = conversion.layer(node, kind, [blob], parameters)
    return blob


def _is_rounded_by_readers(conversion: Conversion, value: Value) -> bool:
    """Whether all that reads a tensor are integer layers, which round it themselves, or moves it to such ones."""
    if conversion.graph.is_output(value) or not value.consumers():
        return False
    return all(_rounds(conversion, node, value) for node in conversion.graph.consumers(value))


def _rounds(conversion: Conversion, node: Node, value: Value) -> bool:
    if node.op_type in ("Conv", "Gemm", "MatMul"):
        stored = integer_weights(conversion, node) if node.inputs[0] is value else None
        if stored is None or (node.op_type == "Conv" and stored.integers.ndim != _OF_PICTURES):
            return False
        axis = 1 if node.op_type == "MatMul" or (node.op_type == "Gemm" and not attribute(node, "transB", 0)) else 0
        return scales_of(stored, attribute(node, "group", 1), axis) is not None
    if not _moves(node) or (node.op_type == "Concat" and _grid_of(conversion, node) is None):
        return False
    return _is_rounded_by_readers(conversion, node.outputs[0])


def _moves(node: Node) -> bool:
    return node.op_type in _MOVERS or (node.op_type == "Resize" and attribute(node, "mode", "nearest") == "nearest")


def _grid_of(conversion: Conversion, node: Node) -> float | None:
    """Return the step of the grid of all that a node reads, if it is one: a pair stands in front of each."""
    steps = set[float | None]()
    for value in node.inputs:
        maker = conversion.graph.producer(value)
        if maker is not None and _moves(maker):
            steps.add(_grid_of(conversion, maker))
        elif maker is not None and maker.op_type == "DequantizeLinear":
            scale = conversion.graph.constant(maker.inputs[1])
            steps.add(float(scale.reshape(-1)[0]) if scale is not None else None)
        else:
            steps.add(None)
    return steps.pop() if len(steps) == 1 else None


OPS = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
