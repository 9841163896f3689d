"""Sums, products and the like of two tensors, and functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgeopt.executors.ncnn.conversion.conversion import MOST_DIMENSIONS, Conversion, dims_of
from edgeopt.graph.graph import Node, Value, attribute

_ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _POW, _RSUB, _RDIV = range(9)
_REVERSED = {_SUB: _RSUB, _DIV: _RDIV}
_SQUARE, _CUBE = 4, 3
_UNARY = {
    "Abs": 0,
    "Neg": 1,
    "Floor": 2,
    "Ceil": 3,
    "Sqrt": 5,
    "Exp": 7,
    "Log": 8,
    "Sin": 9,
    "Cos": 10,
    "Tan": 11,
    "Asin": 12,
    "Acos": 13,
    "Atan": 14,
    "Reciprocal": 15,
    "Tanh": 16,
}


def _binary(kind: int) -> Callable[[Conversion, Node], None]:
    def convert(conversion: Conversion, node: Node) -> None:
        if _swish(conversion, node, kind):
            return
        if len(node.inputs) == 1:
            conversion.set(node.outputs[0], conversion.blob(node.inputs[0]))
            return
        blob = _of_two(conversion, node, kind, node.inputs[0], node.inputs[1])
        if len(node.inputs) > 2:
            if len({conversion.shape(value) for value in node.inputs}) > 1:
                raise conversion.refuse(node, "of several tensors of different shapes")
            for value in node.inputs[2:]:
                blob = conversion.layer(node, "BinaryOp", [blob, value], {0: kind})
        conversion.set(node.outputs[0], blob)

    return convert


def _of_two(conversion: Conversion, node: Node, kind: int, left: Value | None, right: Value | None) -> str:
    made = conversion.shape(node.outputs[0]) if len(node.inputs) == 2 else conversion.shape(left)
    for value, other, code in ((right, left, kind), (left, right, _REVERSED.get(kind, kind))):
        number = conversion.graph.constant(value)
        if number is not None and number.size == 1 and conversion.shape(other) == made:
            return conversion.layer(node, "BinaryOp", [other], {0: code, 1: 1, 2: float(number.reshape(()))})
    blobs = []
    rank = len(made)
    is_flat = len(dims_of(made)) == 1 < rank - 1 and math.prod(made) > made[-1]
    for value in (left, right):
        shape = conversion.shape(value)
        if is_flat and shape != made:
            raise conversion.refuse(node, f"of {shape} and {made}, more than {MOST_DIMENSIONS} axes")
        # of one rank both are combined as NumPy does it; ncnn guesses where ranks differ
        wide = (*(1,) * (rank - len(shape)), *shape)
        dims = dims_of(wide) if len(dims_of(wide)) == len(dims_of(made)) else wide
        dims = dims[-len(dims_of(made)) :] if math.prod(dims[: -len(dims_of(made))]) == 1 else dims
        if len(dims) != len(dims_of(made)):
            raise conversion.refuse(node, f"of {shape} where {made} is made")
        array = conversion.graph.constant(value)
        if array is not None:
            blobs.append(conversion.memory(f"{node.name}_constant", array.astype(np.float32), dims))
        else:
            blobs.append(conversion.reshaped(node, conversion.blob(value), conversion.dims(value), dims))
    return conversion.layer(node, "BinaryOp", blobs, {0: kind})


def _swish(conversion: Conversion, node: Node, kind: int) -> bool:
    """Write x times Sigmoid(x), or HardSigmoid(x), as one layer; return whether it is that."""
    if kind != _MUL or len(node.inputs) != 2:
        return False
    for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        maker = conversion.graph.producer(other)
        if maker is None or maker.domain not in ("", "ai.onnx") or [*maker.inputs][:1] != [value]:
            continue
        if maker.op_type == "Sigmoid":
            conversion.set(node.outputs[0], conversion.layer(node, "Swish", [value]))
            return True
        if maker.op_type == "HardSigmoid":
            numbers = {0: float(attribute(maker, "alpha", 0.2)), 1: float(attribute(maker, "beta", 0.5))}
            conversion.set(node.outputs[0], conversion.layer(node, "HardSwish", [value], numbers))
            return True
    return False


def _power(conversion: Conversion, node: Node) -> None:
    """Powers of numbers below zero: ncnn has their logarithm, which they lack."""
    exponent = conversion.numbers(node, 1)
    assert exponent is not None
    number = float(exponent.reshape(-1)[0])
    if exponent.size > 1 or (number.is_integer() and number not in (1, 2, 3)):
        raise conversion.refuse(node, "but squares, cubes and powers with fractions")
    blob = conversion.blob(node.inputs[0])
    if number in (2, 3):
        blob = conversion.layer(node, "UnaryOp", [blob], {0: _SQUARE})
    if number == _CUBE:
        blob = conversion.layer(node, "BinaryOp", [blob, node.inputs[0]], {0: _MUL})
    elif not number.is_integer():
        blob = conversion.layer(node, "BinaryOp", [blob], {0: _POW, 1: 1, 2: number})
    before, after = conversion.dims(node.inputs[0]), conversion.dims(node.outputs[0])
    conversion.set(node.outputs[0], conversion.reshaped(node, blob, before, after))


def _unary(kind: int) -> Callable[[Conversion, Node], None]:
    def convert(conversion: Conversion, node: Node) -> None:
        conversion.set(node.outputs[0], conversion.layer(node, "UnaryOp", [node.inputs[0]], {0: kind}))

    return convert


OPS = {
    "Add": _binary(_ADD),
    "Sub": _binary(_SUB),
    "Mul": _binary(_MUL),
    "Div": _binary(_DIV),
    "Max": _binary(_MAX),
    "Min": _binary(_MIN),
    "Pow": _power,
    "Sum": _binary(_ADD),
    **{name: _unary(kind) for name, kind in _UNARY.items()},
}
