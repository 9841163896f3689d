"""Functions of each number, and ops that only hand their input on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeopt.executors.litert.conversion.conversion import ANY_TYPE, TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import fixed, one_grid
from edgeopt.executors.litert.conversion.network import type_name


def _plain(code: str) -> Callable[[TfliteConversion, TfliteStep], None]:
    def convert(conversion: TfliteConversion, step: TfliteStep) -> None:
        _write(conversion, step, code)

    return convert


def _write(conversion: TfliteConversion, step: TfliteStep, code: str, **options: float | bool) -> None:
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    conversion.network.add(code, [place], [conversion.new(step.outputs[0], order)], **options)


def _chain(conversion: TfliteConversion, step: TfliteStep, *codes: tuple[str, float | None]) -> int:
    """Return what operators make of the input, each of the result before and a number, or of that result alone."""
    place = conversion.tensor(step.inputs[0], conversion.order(step.inputs[0]))
    for code, number in codes:
        places = [place] if number is None else [place, conversion.number(number)]
        place = conversion.apply(code, places, conversion.shown(place))
    return place


def _reciprocal(conversion: TfliteConversion, step: TfliteStep) -> None:
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    conversion.network.add("DIV", [conversion.number(1.0), place], [conversion.new(step.outputs[0], order)])


def _leaky(conversion: TfliteConversion, step: TfliteStep) -> None:
    _write(conversion, step, "LEAKY_RELU", alpha=step.attribute("alpha", 0.01))


def _elu(conversion: TfliteConversion, step: TfliteStep) -> None:
    if step.attribute("alpha", 1.0) != 1:
        raise conversion.refuse(step.node, "with another alpha than 1")
    _write(conversion, step, "ELU")


def _gelu(conversion: TfliteConversion, step: TfliteStep) -> None:
    _write(conversion, step, "GELU", approximate=step.attribute("approximate", "none") == "tanh")


def _hard_sigmoid(conversion: TfliteConversion, step: TfliteStep) -> None:
    alpha, beta = step.attribute("alpha", 0.2), step.attribute("beta", 0.5)
    made = _chain(conversion, step, ("MUL", alpha), ("ADD", beta), ("MAXIMUM", 0.0), ("MINIMUM", 1.0))
    conversion.set(step.outputs[0], made, conversion.order(step.inputs[0]))


def _softplus_of(conversion: TfliteConversion, place: int) -> int:
    """Return max(x, 0) + log(1 + exp(-|x|)), which overflows nowhere."""
    shape = conversion.shown(place)
    small = conversion.apply("ABS", [place], shape)
    for code in ("NEG", "EXP"):
        small = conversion.apply(code, [small], shape)
    small = conversion.apply("ADD", [small, conversion.number(1.0)], shape)
    small = conversion.apply("LOG", [small], shape)
    return conversion.apply("ADD", [conversion.apply("RELU", [place], shape), small], shape)


def _softplus(conversion: TfliteConversion, step: TfliteStep) -> None:
    order = conversion.order(step.inputs[0])
    conversion.set(step.outputs[0], _softplus_of(conversion, conversion.tensor(step.inputs[0], order)), order)


def _mish(conversion: TfliteConversion, step: TfliteStep) -> None:
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    shape = conversion.shown(place)
    factor = conversion.apply("TANH", [_softplus_of(conversion, place)], shape)
    conversion.set(step.outputs[0], conversion.apply("MUL", [place, factor], shape), order)


def _prelu(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write slopes in the input's order of axes; LiteRT's slopes lack the axis of pictures."""
    slope = conversion.numbers(step.node, 1)
    assert slope is not None
    shape, order = conversion.shape(step.inputs[0]), conversion.order(step.inputs[0])
    wide = slope.reshape((1,) * (len(shape) - slope.ndim) + slope.shape)
    if wide.shape[0] != 1 or order[0] != 0:
        raise conversion.refuse(step.node, "with slopes of each picture")
    stored = wide.transpose(order)[0].astype(np.float32)
    place = conversion.network.constant(f"{step.node.name}_slope", stored)
    made = conversion.new(step.outputs[0], order)
    conversion.network.add("PRELU", [conversion.tensor(step.inputs[0], order), place], [made])


def _clip(conversion: TfliteConversion, step: TfliteStep) -> None:
    if conversion.graph.opset < 11:  # since then limits are inputs
        least, most = step.attribute("min", None), step.attribute("max", None)
    else:
        bounds = [conversion.numbers(step.node, place) for place in (1, 2)]
        least, most = (None if bound is None else float(bound.reshape(())) for bound in bounds)
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    if conversion.network.tensors[place].dtype != "float32":
        raise conversion.refuse(step.node, "of integers")
    shape = conversion.shown(place)
    named = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, None): "RELU"}.get((least, most))
    if named:
        place = conversion.apply(named, [place], shape)
    else:
        for code, bound in (("MAXIMUM", least), ("MINIMUM", most)):
            if bound is not None and np.isfinite(bound):
                place = conversion.apply(code, [place, conversion.number(bound)], shape)
    conversion.set(step.outputs[0], place, order)


def _same(conversion: TfliteConversion, step: TfliteStep) -> None:
    if step.node.op_type == "Dropout" and (mode := conversion.numbers(step.node, 2)) is not None and mode.any():
        raise conversion.refuse(step.node, "in training mode")
    mask = step.node.outputs[1] if len(step.node.outputs) > 1 else None
    if mask is not None and (mask.consumers() or conversion.graph.is_output(mask)):
        raise conversion.refuse(step.node, "with its mask read")
    order = conversion.order(step.inputs[0])
    conversion.set(step.outputs[0], conversion.tensor(step.inputs[0], order), order)


def _cast(conversion: TfliteConversion, step: TfliteStep) -> None:
    order = conversion.order(step.inputs[0])
    place = conversion.tensor(step.inputs[0], order)
    before, after = conversion.network.tensors[place].dtype, conversion.dtype(step.outputs[0])
    if before == after:
        conversion.set(step.outputs[0], place, order)
        return
    made = conversion.new(step.outputs[0], order)
    names = {"inDataType": type_name(before), "outDataType": type_name(after)}
    conversion.network.add("CAST", [place], [made], **names)


def _softmax_in(code: str) -> Callable[[TfliteConversion, TfliteStep], None]:
    """Return what writes a softmax over one axis, since opset 13; before it over all axes from the named one."""

    def convert(conversion: TfliteConversion, step: TfliteStep) -> None:
        shape = conversion.shape(step.inputs[0])
        is_old = conversion.graph.opset < 13
        axis = step.attribute("axis", 1 if is_old else -1) % len(shape)
        options = {"beta": 1.0} if code == "SOFTMAX" else {}
        plain = tuple(range(len(shape)))
        behind = [size for size in shape[axis + 1 :] if size > 1]
        if is_old and behind:
            place = conversion.tensor(step.inputs[0], plain)
            flat = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
            made = conversion.apply(code, [conversion.reshaped(place, flat)], flat, **options)
            conversion.set(step.outputs[0], conversion.reshaped(made, shape), plain)
            return
        known = conversion.order(step.inputs[0])
        order = known if known[-1] == axis else (*(place for place in known if place != axis), axis)
        place = conversion.tensor(step.inputs[0], order)
        conversion.network.add(code, [place], [conversion.new(step.outputs[0], order)], **options)

    return convert


OPS = {
    "Relu": _plain("RELU"),
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Sigmoid": _plain("LOGISTIC"),
    "Tanh": _plain("TANH"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("HARD_SWISH"),
    "Softplus": _softplus,
    "Mish": _mish,
    "Gelu": _gelu,
    "com.microsoft.Gelu": _gelu,
    "Clip": _clip,
    "PRelu": _prelu,
    "Softmax": _softmax_in("SOFTMAX"),
    "LogSoftmax": _softmax_in("LOG_SOFTMAX"),
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "Abs": _plain("ABS"),
    "Neg": _plain("NEG"),
    "Floor": _plain("FLOOR"),
    "Ceil": _plain("CEIL"),
    "Round": _plain("ROUND"),
    "Sqrt": _plain("SQRT"),
    "Exp": _plain("EXP"),
    "Log": _plain("LOG"),
    "Sin": _plain("SIN"),
    "Cos": _plain("COS"),
    "Sign": _plain("SIGN"),
    "Not": _plain("LOGICAL_NOT"),
    "Reciprocal": _reciprocal,
}
OTHER_TYPES = dict.fromkeys(("Cast", "Identity", "Dropout", "Not"), ANY_TYPE)
ON_INTEGERS = {"Sigmoid": fixed(1 / 256, -128), "Tanh": fixed(1 / 128, 0), "Relu": one_grid, "Identity": one_grid}
"""XNNPACK has the others in float alone; LiteRT's own kernels on integers take 4 to 80 times as long (Softmax,
HardSwish, LeakyRelu; AMD EPYC, one thread)."""
