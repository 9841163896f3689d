"""An ONNX model written as a `.tflite` file, operator by operator, with our own scales where it holds integers.

A model that cannot be written so is refused with the node at fault, and nothing is believed: callers compare numbers.
"""

from __future__ import annotations

from collections.abc import Collection

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors._conversion.folding import fold, join_gelus
from edgeopt.executors._conversion.found_grids import derive_shapes
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep, with_activations
from edgeopt.executors.litert.conversion.grids import step_of
from edgeopt.executors.litert.conversion.network import to_bytes, without_unused
from edgeopt.executors.litert.conversion.ops import FLOATS, Convert, integer_ops, known_ops, other_types
from edgeopt.graph.graph import Graph, Value, op_name
from edgeopt.graph.model import Model

_WRITER = "written by edgeopt"


def to_tflite(model: Model, *, pictures_last: bool = False) -> bytes:
    """Return a model as a `.tflite` file.

    Args:
        model: Every shape known; pairs of QuantizeLinear and DequantizeLinear on 8-bit integers become LiteRT's integer
            operators with these very scales where LiteRT has them, and products whose grids are found as the model runs
            become operators that find them by themselves.
        pictures_last: Inputs of four axes have their channels last, as apps for LiteRT have them; outputs keep the
            model's order.

    Raises:
        UnsupportedError: If LiteRT lacks a node, a type or a shape; it names the first.
        InvalidFileError: If the model makes nothing.
        MissingDependencyError: If LiteRT, whose schema writes the file, is not installed.
    """
    graph = Graph.from_model(model)
    if not graph.outputs:
        raise InvalidFileError("the model has no outputs", remedy="export the model again")
    derive_shapes(graph)
    fold(graph)
    join_gelus(graph)
    conversion = TfliteConversion(graph, pictures_last=pictures_last)
    ops, on_integers, types, limits = known_ops(), integer_ops(), other_types(), set[str]()
    for node in graph.nodes():
        name = op_name(node)
        if name == "Constant" or all(conversion.constant(value) is not None for value in node.outputs):
            continue
        if name not in ops:
            raise conversion.refuse(node, "")
        if str(node.name) in limits:
            continue
        step = step_of(conversion, node, on_integers.get(name))
        _require_types(conversion, step, types.get(name, FLOATS))
        try:
            _write(ops[name], conversion, step)
        except UnsupportedError:
            if not step.is_integer:
                raise
            conversion.forget(step.outputs)
            step = step_of(conversion, node, None)
            _write(ops[name], conversion, step)
        if step.activation != "NONE":
            limits.add(str(graph.consumers(node.outputs[0])[0].name))
    outputs = list[int]()
    for value in graph.outputs:
        outputs.append(_output(conversion, value, outputs))
    network = without_unused(with_activations(conversion.network, outputs), conversion.inputs, outputs)
    count = len(conversion.inputs)
    return to_bytes(network, range(count), range(count, count + len(outputs)), _WRITER)


def _write(write: Convert, conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write a step.

    Raises:
        InvalidFileError: If the node is not as ONNX defines it: axes that are not there, shapes that do not fit.
        UnsupportedError: If LiteRT lacks it.
    """
    try:
        write(conversion, step)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise InvalidFileError(
            f"the {op_name(step.node)} node {step.node.name!r} is not as ONNX defines it",
            remedy="check the model with edgeopt inspect, or export it again",
        ) from error


def _require_types(conversion: TfliteConversion, step: TfliteStep, types: Collection[str]) -> None:
    """Refuse types that an operator lacks: some of LiteRT's kernels end the process on them.

    Args:
        conversion: All nodes before the step are written.
        step: A node.
        types: What the tensors that it reads and makes may hold, beside integers of a grid; empty: the op looks itself.

    Raises:
        UnsupportedError: If a tensor is of another type.
    """
    if not types:
        return
    for value in (*step.inputs, *step.outputs[:1]):
        if value is None or conversion.grid(value) is not None or conversion.constant(value) is not None:
            continue
        if conversion.dtype(value) not in types:
            raise conversion.refuse(step.node, f"of {conversion.dtype(value)}")


def _output(conversion: TfliteConversion, value: Value, taken: Collection[int]) -> int:
    """Return the place of an output's own tensor, in the model's order of axes and under its name.

    Args:
        conversion: All nodes are written.
        value: The output.
        taken: Places of the outputs before it: a tensor leaves the model once, and an input or a constant never.
    """
    place = conversion.tensor(value, tuple(range(len(conversion.shape(value)))))
    if place in conversion.network.makers() and place not in taken:
        conversion.network.rename(place, str(value.name))
        return place
    made = conversion.network.like(place, str(value.name), conversion.shown(place))
    conversion.network.add("RESHAPE", [place, conversion.integers(conversion.shown(place))], [made])
    return made
