"""Functions of each number, of one tensor or of two."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, Read, onnx_type


def _unary(name: str) -> Read:
    return lambda reading, op: reading.add(name, [op.tensor("x")])


def _binary(name: str) -> Read:
    return lambda reading, op: reading.add(name, [op.tensor("x"), op.tensor("y")])


def _with_numbers(name: str, *keys: str) -> Read:
    """Return what reads an op whose options are attributes of that name in ONNX."""

    def read(reading: MilReading, op: MilOp) -> str:
        options: dict[str, Any] = {key: float(op.number(key)) for key in keys}
        made: str = reading.add(name, [op.tensor("x")], **options)
        return made

    return read


def _not_equal(reading: MilReading, op: MilOp) -> str:
    name: str = reading.add("Not", [reading.add("Equal", [op.tensor("x"), op.tensor("y")])])
    return name


def _floor_div(reading: MilReading, op: MilOp) -> str:
    wide = [reading.add("Cast", [op.tensor(key)], to=TensorProto.DOUBLE) for key in ("x", "y")]
    floor = reading.add("Floor", [reading.add("Div", wide)])
    name: str = reading.add("Cast", [floor], to=onnx_type(op.result))
    return name


def _mod(reading: MilReading, op: MilOp) -> str:
    """Read x - y * floor(x / y)."""
    if onnx_type(op.result) == TensorProto.FLOAT:
        raise op.refuse("of floats")
    name: str = reading.add("Mod", [op.tensor("x"), op.tensor("y")])
    return name


def _clip(reading: MilReading, op: MilOp) -> str:
    bounds = [reading.const(op.number(key), np.float32) for key in ("alpha", "beta")]
    name: str = reading.add("Clip", [op.tensor("x"), *bounds])
    return name


def _relu6(reading: MilReading, op: MilOp) -> str:
    bounds = [reading.const(number, np.float32) for number in (0, 6)]
    name: str = reading.add("Clip", [op.tensor("x"), *bounds])
    return name


def _silu(reading: MilReading, op: MilOp) -> str:
    name: str = reading.add("Mul", [op.tensor("x"), reading.add("Sigmoid", [op.tensor("x")])])
    return name


def _gelu(reading: MilReading, op: MilOp) -> str:
    """Read x * (1 + erf(x / sqrt 2)) / 2, or its approximation by a tanh or a sigmoid."""
    x, mode = op.tensor("x"), op.number("mode") if op.has("mode") else "EXACT"
    if mode == "SIGMOID_APPROXIMATION":
        scaled = reading.add("Mul", [x, reading.const(1.702, np.float32)])
        sigmoid: str = reading.add("Mul", [x, reading.add("Sigmoid", [scaled])])
        return sigmoid
    name: str = reading.add("Gelu", [x], approximate="tanh" if mode == "TANH_APPROXIMATION" else "none")
    return name


def _prelu(reading: MilReading, op: MilOp) -> str:
    shape = (-1, *(1,) * (len(op.shape("x")) - 2))
    name: str = reading.add("PRelu", [op.tensor("x"), reading.const(op.value("alpha").reshape(shape))])
    return name


def _with_epsilon(*names: str) -> Read:
    """Return what reads functions of x + epsilon, the first innermost."""

    def read(reading: MilReading, op: MilOp) -> str:
        made: str = reading.add("Add", [op.tensor("x"), reading.const(op.number("epsilon"), np.float32)])
        for name in names:
            made = reading.add(name, [made])
        return made

    return read


def _cast(reading: MilReading, op: MilOp) -> str:
    name: str = reading.add("Cast", [op.tensor("x")], to=onnx_type(op.result))
    return name


def _square(reading: MilReading, op: MilOp) -> str:
    name: str = reading.add("Mul", [op.tensor("x"), op.tensor("x")])
    return name


def _select(reading: MilReading, op: MilOp) -> str:
    name: str = reading.add("Where", [op.tensor("cond"), op.tensor("a"), op.tensor("b")])
    return name


OPS = {
    "identity": _unary("Identity"),
    "relu": _unary("Relu"),
    "sigmoid": _unary("Sigmoid"),
    "tanh": _unary("Tanh"),
    "softplus": _unary("Softplus"),
    "abs": _unary("Abs"),
    "floor": _unary("Floor"),
    "ceil": _unary("Ceil"),
    "round": _unary("Round"),
    "sqrt": _unary("Sqrt"),
    "exp": _unary("Exp"),
    "erf": _unary("Erf"),
    "sin": _unary("Sin"),
    "cos": _unary("Cos"),
    "sign": _unary("Sign"),
    "logical_not": _unary("Not"),
    "square": _square,
    "log": _with_epsilon("Log"),
    "inverse": _with_epsilon("Reciprocal"),
    "rsqrt": _with_epsilon("Sqrt", "Reciprocal"),
    "relu6": _relu6,
    "clip": _clip,
    "silu": _silu,
    "gelu": _gelu,
    "prelu": _prelu,
    "leaky_relu": _with_numbers("LeakyRelu", "alpha"),
    "elu": _with_numbers("Elu", "alpha"),
    "sigmoid_hard": _with_numbers("HardSigmoid", "alpha", "beta"),
    "cast": _cast,
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "mul": _binary("Mul"),
    "real_div": _binary("Div"),
    "floor_div": _floor_div,
    "mod": _mod,
    "pow": _binary("Pow"),
    "maximum": _binary("Max"),
    "minimum": _binary("Min"),
    "greater": _binary("Greater"),
    "greater_equal": _binary("GreaterOrEqual"),
    "less": _binary("Less"),
    "less_equal": _binary("LessOrEqual"),
    "equal": _binary("Equal"),
    "not_equal": _not_equal,
    "logical_and": _binary("And"),
    "logical_or": _binary("Or"),
    "logical_xor": _binary("Xor"),
    "select": _select,
}
