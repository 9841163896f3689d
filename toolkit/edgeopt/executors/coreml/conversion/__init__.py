"""An ONNX model written as a Core ML package (an ML program), op by op, with our own scales where it holds integers.

A model that cannot be written so is refused with the node at fault, and nothing is believed: callers compare numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors._conversion.folding import fold, join_gelus
from edgeopt.executors._conversion.integer_ops import split_integer_ops
from edgeopt.executors.coreml.conversion.conversion import REMEDY, MilConversion
from edgeopt.executors.coreml.conversion.ops import known_ops
from edgeopt.executors.coreml.loading import OPENS_ON, PURPOSE, coremltools, target
from edgeopt.executors.coreml.package import Package, packed
from edgeopt.graph.graph import Graph, Node, Value, op_name
from edgeopt.graph.model import Model
from edgeopt.system.declared.optional import require


@dataclass(frozen=True, slots=True)
class PackageForm:
    """How a model is written."""

    file: str
    """Name of the package."""
    precision: str
    """Type in which floats are stored and computed: `fp16` or `fp32`."""
    weights: str
    """Type in which weights are stored, in a word."""
    between: str
    """Type of the values between layers, in a few words."""
    rounds: bool = True
    """Pairs between nodes round as the model says; otherwise weights alone are integers."""


FLOAT_FORMS = (
    PackageForm("model_float16.mlpackage", "fp16", "float16", "float16"),
    PackageForm("model_float32.mlpackage", "fp32", "float32", "float32"),
)
INTEGER_FORMS = (
    PackageForm("model_int8.mlpackage", "fp16", "int8", "8-bit integers where the model rounds, float16 elsewhere"),
    PackageForm("model_weights8.mlpackage", "fp16", "int8", "float16", rounds=False),
)


def facts_of(file: str) -> dict[str, str]:
    """Return what a package of this name stores and hands on, and what opens it; nothing where no form is called so."""
    for form in (*FLOAT_FORMS, *INTEGER_FORMS):
        if form.file == file:
            return {"weights": form.weights, "between_layers": form.between, "opens_on": OPENS_ON}
    return {}


_IN_ANY_ORDER = frozenset(
    {"Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus", "Mish", "Gelu"}
    | {"com.microsoft.Gelu", "Clip", "Abs", "Neg", "Sqrt", "Exp", "Log", "Erf", "Reciprocal", "Identity", "Dropout"}
    | {"Add", "Sub", "Mul", "Div", "Max", "Min", "Concat", "QuantizeLinear", "DequantizeLinear"}
)
"""Ops that compute the same in whatever order axes lie."""
_MOVES = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather", "Pad", "Expand", "Tile"}
    | {"MaxPool", "Resize", "DepthToSpace", "SpaceToDepth", "Identity"}
)
"""Ops that move integers, or choose among them."""


def forms_of(model: Model) -> tuple[PackageForm, ...]:
    """Return the forms that a model is written in: whether it holds 8-bit integers decides."""
    ops = {node.op_type for node in model.proto.graph.node}
    return INTEGER_FORMS if ops & {"QuantizeLinear", "DequantizeLinear", "QLinearConv"} else FLOAT_FORMS


def to_package(model: Model, form: PackageForm) -> Package:
    """Return a model as a Core ML package.

    Args:
        model: Every shape known; pairs of QuantizeLinear and DequantizeLinear are on 8-bit integers.
        form: How it is written.

    Raises:
        UnsupportedError: If Core ML lacks a node, a type or a shape; it names the first.
        InvalidFileError: If the model makes nothing, or a node is not as ONNX defines it.
        MissingDependencyError: If coremltools is not installed.
    """
    graph = Graph.from_model(model)
    if not graph.outputs:
        raise InvalidFileError("the model has no outputs", remedy="export the model again")
    split_integer_ops(graph)
    fold(graph)
    join_gelus(graph)
    precision = coremltools().precision
    mil = require("coremltools.converters.mil.mil", extra="coreml", purpose=PURPOSE)
    names = _known_names([str(value.name) for value in (*graph.inputs, *graph.outputs)])
    reads, makes = names[: len(graph.inputs)], names[len(graph.inputs) :]
    state = MilConversion(graph, rounds=form.rounds)
    placeholders = [_placeholder(mil, state, value) for value in graph.inputs]
    program = mil.Program()
    with mil.Function(dict(zip(reads, placeholders, strict=True)), opset_version=target()) as function:
        for value, name in zip(graph.inputs, reads, strict=True):
            state.set(value, function.inputs[name])
        _write_nodes(state, graph)
        function.set_outputs([_output(state, value, name) for value, name in zip(graph.outputs, makes, strict=True)])
    program.add_function("main", function)
    return packed(
        program,
        precision.FLOAT16 if form.precision == "fp16" else precision.FLOAT32,
        dict(zip(names, (str(value.name) for value in (*graph.inputs, *graph.outputs)), strict=True)),
    )


def _placeholder(mil: Any, state: MilConversion, value: Value) -> Any:
    shape, dtype = state.shape(value), state.dtype(value)
    if not shape or dtype == "bool":
        raise UnsupportedError(
            f"Core ML takes no numbers without axes and no truths, and the input {value.name!r} is such", remedy=REMEDY
        )
    return state.mb.placeholder(shape=shape, dtype=getattr(mil.types, dtype))


def _output(state: MilConversion, value: Value, name: str) -> Any:
    if not state.shape(value):
        raise UnsupportedError(f"Core ML has no outputs without axes, as {value.name!r} is", remedy=REMEDY)
    if state.grid(value) is not None:
        raise UnsupportedError(f"Core ML has no outputs of 8-bit integers, as {value.name!r} is", remedy=REMEDY)
    var = state.var(value)
    if state.dtype(value) == "bool":
        var = state.mb.cast(x=var, dtype="int32")
    return state.mb.identity(x=var, name=name)


def _known_names(names: Sequence[str]) -> list[str]:
    """Return names for the package, no two alike: letters, digits and underscores, no digit first."""
    made = list[str]()
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = f"_{plain}" if plain[:1].isdigit() or not plain else plain
        free = (
            other for count in itertools.count(1) if (other := f"{plain}_{count}" if count > 1 else plain) not in made
        )
        made.append(next(free))
    return made


def _write_nodes(state: MilConversion, graph: Graph) -> None:
    ops = known_ops()
    for node in graph.nodes():
        name = op_name(node)
        if name == "Constant" or all(state.constant(value) is not None for value in node.outputs):
            continue
        if name not in ops:
            raise state.refuse(node, "")
        for value in node.outputs:
            if value.name and (value.consumers() or graph.is_output(value)):
                state.shape(value)
        state.order = state.common_order(node) if name in _IN_ANY_ORDER else None
        try:
            ops[name](state, node)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise _as_refused(node, error) from error
        finally:
            state.order = None
        _hand_on_grid(state, node)


def _hand_on_grid(state: MilConversion, node: Node) -> None:
    """Let what a node makes of integers be integers of the same grid.

    Raises:
        UnsupportedError: If it reads integers and does more than to move them.
    """
    if node.op_type in ("QuantizeLinear", "DequantizeLinear", "Transpose"):
        return
    grids = [grid for value in node.inputs if (grid := state.grid(value)) is not None]
    if not grids:
        return
    if node.op_type not in _MOVES or not all(grid.is_like(grids[0]) and grid.axis is None for grid in grids):
        raise state.refuse(node, "of 8-bit integers")
    for value in node.outputs:
        state.set_grid(value, grids[0])


def _as_refused(node: Node, error: Exception) -> UnsupportedError:
    reason = " ".join(str(error).split())[:200]
    return UnsupportedError(
        f"Core ML does not take the {op_name(node)} node {node.name!r}: {reason or type(error).__name__}", remedy=REMEDY
    )
