"""Sums, products, comparisons and the like of two tensors."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import Convert, MilConversion
from edgeopt.graph.graph import Node, Value, attribute

_OF_ANY_COUNT = ("Sum", "Max", "Min")
"""Ops that take one tensor too, which they hand on."""
_MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather", "GatherElements", "Transpose", "Identity", "Mod")


def _binary(name: str) -> Convert:
    def convert(conversion: MilConversion, node: Node) -> None:
        first, *others = [conversion.var(value) for value in node.inputs]
        if not others and node.op_type not in _OF_ANY_COUNT:
            raise conversion.refuse(node, "of one tensor")
        for other in others:
            first = getattr(conversion.mb, name)(x=first, y=other)
        conversion.set(node.outputs[0], first)

    return convert


def _divide(conversion: MilConversion, node: Node) -> None:
    """Write a quotient; whole numbers are rounded down, which ONNX does where neither is below zero."""
    if conversion.dtype(node.outputs[0]) == "fp32":
        _binary("real_div")(conversion, node)
        return
    divisor = conversion.numbers(node, 1)
    if divisor is None or (divisor <= 0).any() or not is_place(conversion, node.inputs[0]):
        raise conversion.refuse(node, "of whole numbers that are no indices, or by a number that is not above zero")
    _binary("floor_div")(conversion, node)


def is_place(conversion: MilConversion, value: Value | None) -> bool:
    """Whether a tensor holds places in another, none of which is below zero."""
    node = conversion.graph.producer(value)
    if node is None:
        return False
    if node.op_type in _MOVES:
        return is_place(conversion, node.inputs[0])
    return node.op_type in ("TopK", "ArgMax", "ArgMin")


def _remainder(conversion: MilConversion, node: Node) -> None:
    if attribute(node, "fmod", 0) or conversion.dtype(node.outputs[0]) == "fp32":
        raise conversion.refuse(node, "of floats")
    divisor = conversion.numbers(node, 1)
    if divisor is None or (divisor == 0).any():
        raise conversion.refuse(node, "by 0")
    _binary("mod")(conversion, node)


def _power(conversion: MilConversion, node: Node) -> None:
    exponent = conversion.constant(node.inputs[1])
    other = conversion.var(node.inputs[1]) if exponent is None else conversion.constant_var(exponent.astype(np.float32))
    conversion.set(node.outputs[0], conversion.mb.pow(x=conversion.var(node.inputs[0]), y=other))


def _is_nan(conversion: MilConversion, node: Node) -> None:
    """Write what is true of a NaN alone: it is not equal to itself."""
    x = conversion.var(node.inputs[0])
    conversion.set(node.outputs[0], conversion.mb.not_equal(x=x, y=x))


def _where(conversion: MilConversion, node: Node) -> None:
    """Write a choice; all three are brought to the shape of the result, as Core ML compares shapes before it runs."""
    shape = conversion.shape(node.outputs[0])
    cond, a, b = (_wide(conversion, value, shape) for value in node.inputs)
    conversion.set(node.outputs[0], conversion.mb.select(cond=cond, a=a, b=b))


def _wide(conversion: MilConversion, value: Value | None, shape: tuple[int, ...]) -> object:
    array = conversion.constant(value)
    if array is not None:
        return conversion.constant_var(np.ascontiguousarray(np.broadcast_to(array, shape)))
    before = conversion.shape(value)
    wide = (1,) * (len(shape) - len(before)) + before
    var = conversion.var(value)
    if wide != before:
        var = conversion.mb.reshape(x=var, shape=wide)
    repeats = [after // size for after, size in zip(shape, wide, strict=True)]
    return var if set(repeats) == {1} else conversion.mb.tile(x=var, reps=repeats)


OPS = {
    "Add": _binary("add"),
    "Sum": _binary("add"),
    "Sub": _binary("sub"),
    "Mul": _binary("mul"),
    "Div": _divide,
    "Mod": _remainder,
    "Pow": _power,
    "Max": _binary("maximum"),
    "Min": _binary("minimum"),
    "Greater": _binary("greater"),
    "GreaterOrEqual": _binary("greater_equal"),
    "Less": _binary("less"),
    "LessOrEqual": _binary("less_equal"),
    "Equal": _binary("equal"),
    "And": _binary("logical_and"),
    "Or": _binary("logical_or"),
    "Xor": _binary("logical_xor"),
    "Where": _where,
    "IsNaN": _is_nan,
}
