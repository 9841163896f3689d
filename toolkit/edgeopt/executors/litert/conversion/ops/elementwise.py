"""Sums, products, comparisons and the like of two tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeopt.executors.litert.conversion.conversion import WHOLE_NUMBERS, Order, TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import any_grids
from edgeopt.executors.litert.conversion.network import type_name
from edgeopt.graph.graph import Value

_FUSES = ("ADD", "SUB", "MUL")
_OF_ANY_COUNT = ("Sum", "Max", "Min")
"""Ops that take one tensor too, which they hand on."""


def _binary(code: str) -> Callable[[TfliteConversion, TfliteStep], None]:
    def convert(conversion: TfliteConversion, step: TfliteStep) -> None:
        order = order_of_all(conversion, step.inputs, step.outputs[0])
        places = [in_rank(conversion, value, order) for value in step.inputs]
        place = places[0]
        if len(places) == 1:
            if step.node.op_type not in _OF_ANY_COUNT:
                raise conversion.refuse(step.node, "of one tensor")
            conversion.set(step.outputs[0], place, order)
            return
        for other in places[1:-1]:
            shape = np.broadcast_shapes(conversion.shown(place), conversion.shown(other))
            place = conversion.apply(code, [place, other], shape)
        made = conversion.new(step.outputs[0], order)
        options = {"fusedActivationFunction": step.activation} if code in _FUSES else {}
        conversion.network.add(code, [place, places[-1]], [made], **options)

    return convert


def order_of_all(conversion: TfliteConversion, values: tuple[Value | None, ...], output: Value) -> Order:
    """Return the order of axes in which several tensors meet: that of the largest of the output's rank at hand."""
    rank = len(conversion.shape(output))
    computed = [value for value in values if value is not None and conversion.constant(value) is None]
    alike = [value for value in computed if len(conversion.shape(value)) == rank]
    if not alike:
        return tuple(range(rank))
    return conversion.order(max(alike, key=lambda value: np.prod(conversion.shape(value))))


def in_rank(conversion: TfliteConversion, value: Value | None, order: Order) -> int:
    """Return a tensor of as many axes as `order`, in that order; axes that it lacks come first and are of size 1."""
    shape = conversion.shape(value)
    missing = len(order) - len(shape)
    if not missing:
        return conversion.tensor(value, order)
    if not shape or order == tuple(range(len(order))):
        return conversion.tensor(value, tuple(range(len(shape))))  # LiteRT lays axes side by side from the last
    array = conversion.constant(value)
    wide = (1,) * missing + shape
    if array is not None and value is not None:
        conversion.dtype(value)
        return conversion.network.constant(str(value.name), array.reshape(wide).transpose(order))
    own = tuple(axis - missing for axis in order if axis >= missing)
    place = conversion.tensor(value, own)
    return conversion.reshaped(place, [wide[axis] for axis in order])


def _divide(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a quotient; whole numbers are divided in 32 bits, where LiteRT cuts off as ONNX does."""
    if conversion.dtype(step.outputs[0]) == "float32":
        _binary("DIV")(conversion, step)
        return
    _require_divisor(conversion, step)
    if conversion.dtype(step.outputs[0]) == "int64" and not _is_place(conversion, step.inputs[0]):
        raise conversion.refuse(step.node, "of 64-bit whole numbers that are no indices")
    order = order_of_all(conversion, step.inputs, step.outputs[0])
    places = [_in_type(conversion, in_rank(conversion, value, order), "int32") for value in step.inputs]
    shape = conversion.stored_shape(step.outputs[0], order)
    made = _in_type(conversion, conversion.apply("DIV", places, shape), conversion.dtype(step.outputs[0]))
    conversion.set(step.outputs[0], made, order)


def _require_divisor(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Refuse a divisor that is computed, 0 or -1: of the least number it ends the process. Raises UnsupportedError."""
    divisor = conversion.numbers(step.node, 1)
    if divisor is None or np.isin(divisor, (0, -1)).any():
        raise conversion.refuse(step.node, "by 0 or -1")


_MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather", "GatherElements", "Transpose", "Identity", "Mod")


def _is_place(conversion: TfliteConversion, value: Value | None) -> bool:
    """Whether a tensor holds places in another, which fit in 32 bits."""
    node = conversion.graph.producer(value)
    if node is None:
        return False
    if node.op_type in _MOVES:
        return _is_place(conversion, node.inputs[0])
    return node.op_type in ("TopK", "ArgMax", "ArgMin")


def _in_type(conversion: TfliteConversion, place: int, dtype: str) -> int:
    """Return a tensor in another type; itself where it has it."""
    before = conversion.network.tensors[place]
    if before.dtype == dtype:
        return place
    if before.data is not None:
        return conversion.network.constant(before.name, before.data.astype(dtype))
    made = conversion.network.tensor(f"{before.name}_{dtype}", before.shape, dtype)
    names = {"inDataType": type_name(before.dtype), "outDataType": type_name(dtype)}
    conversion.network.add("CAST", [place], [made], **names)
    return made


def _remainder(conversion: TfliteConversion, step: TfliteStep) -> None:
    if step.attribute("fmod", 0) or conversion.dtype(step.outputs[0]) == "float32":
        raise conversion.refuse(step.node, "of floats")
    _require_divisor(conversion, step)
    _binary("FLOOR_MOD")(conversion, step)


def _power(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a power; LiteRT wants the exponent in the base's type."""
    order = order_of_all(conversion, step.inputs, step.outputs[0])
    base, exponent = (in_rank(conversion, value, order) for value in step.inputs)
    made = conversion.new(step.outputs[0], order)
    conversion.network.add("POW", [base, _in_type(conversion, exponent, "float32")], [made])


def _is_nan(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write what is true of a NaN alone: it is not equal to itself."""
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    conversion.network.add("NOT_EQUAL", [place, place], [conversion.new(step.outputs[0], order)])


def _where(conversion: TfliteConversion, step: TfliteStep) -> None:
    order = order_of_all(conversion, step.inputs, step.outputs[0])
    places = [in_rank(conversion, value, order) for value in step.inputs]
    conversion.network.add("SELECT_V2", places, [conversion.new(step.outputs[0], order)])


OPS = {
    "Add": _binary("ADD"),
    "Sum": _binary("ADD"),
    "Sub": _binary("SUB"),
    "Mul": _binary("MUL"),
    "Div": _divide,
    "Mod": _remainder,
    "Pow": _power,
    "Max": _binary("MAXIMUM"),
    "Min": _binary("MINIMUM"),
    "Greater": _binary("GREATER"),
    "GreaterOrEqual": _binary("GREATER_EQUAL"),
    "Less": _binary("LESS"),
    "LessOrEqual": _binary("LESS_EQUAL"),
    "Equal": _binary("EQUAL"),
    "And": _binary("LOGICAL_AND"),
    "Or": _binary("LOGICAL_OR"),
    "Xor": _binary("NOT_EQUAL"),
    "Where": _where,
    "IsNaN": _is_nan,
}
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
OTHER_TYPES = dict.fromkeys((*_COMPARISONS, "And", "Or", "Xor", "Where", "IsNaN"), WHOLE_NUMBERS)
OTHER_TYPES |= dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod"), WHOLE_NUMBERS - {"bool"})
ON_INTEGERS = {"Add": any_grids, "Sub": any_grids, "Mul": any_grids}
