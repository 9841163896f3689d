"""An ONNX model rewritten so that MNN's converter gets it right, and converted in a child.

The converter is wrong without a word on some graphs, and ends the process on others. So it is given only ops of which
tests know that they come out right, in forms that leave it nothing to derive: shapes in numbers, axes, steps and
padding written out, no broadcasting where it errs. A model that cannot be written so is refused with the node at fault,
and nothing is believed: callers compare numbers.
"""

from __future__ import annotations

from typing import Any

from onnx import version_converter

from edgeopt.errors import ELSEWHERE, InvalidFileError, UnsupportedError
from edgeopt.executors._conversion.folding import fold, join_gelus
from edgeopt.executors._conversion.integer_ops import split_integer_ops
from edgeopt.executors.mnn.conversion.converter import converted_network
from edgeopt.executors.mnn.conversion.ops import FLOATS, known_ops, other_types
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.executors.mnn.file import RESULTS, MnnFile
from edgeopt.graph.graph import Graph, Node, op_name
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import TensorSpec

_OPSETS = (13, 20)
"""The least and the most that the converter is given: before them axes are implied, behind them forms are untried."""
_WRITTEN = 17


def to_mnn(model: Model) -> MnnFile:
    """Return a model as MNN loads it. Raises as `for_converter` and `converted_network`."""
    written = for_converter(model)
    inputs, outputs = (tuple(map(_fixed, specs)) for specs in (written.inputs, written.outputs))
    return MnnFile(converted_network(written), inputs, outputs)


def for_converter(model: Model) -> Model:
    """Return a model that computes the same, in the forms that MNN's converter reads rightly.

    Args:
        model: Every shape known, float32 inputs; weights may be stored in integers, which become floats.

    Raises:
        UnsupportedError: If MNN lacks a node, a type or a shape; it names the first.
        InvalidFileError: If the model makes nothing, or a node is not as ONNX defines it.
    """
    graph = Graph.from_model(_in_opset(model))
    if not graph.outputs:
        raise InvalidFileError("the model has no outputs", remedy="export the model again")
    fold(graph)
    split_integer_ops(graph)
    join_gelus(graph)
    network, ops, types = MnnGraph(graph), known_ops(), other_types()
    for value in graph.inputs:
        network.shape(value)
        network.require_type(value, FLOATS)
    for node in graph.nodes():
        name = op_name(node)
        if name == "Constant" or node.graph is None:
            continue
        if name not in ops:
            raise network.refuse(node, "")
        for value in node.outputs:
            if value.uses() or graph.is_output(value):
                network.shape(value)
        network.require_types(node, types.get(name, FLOATS))
        _rewrite(network, node)
    graph.remove_unused()
    for value in graph.outputs:
        network.require_type(value, RESULTS)
        if graph.constant(value) is not None:
            raise UnsupportedError(f"MNN hands out no constant, which {value.name!r} is", remedy=ELSEWHERE)
    return graph.to_model()


def _rewrite(network: MnnGraph, node: Node) -> None:
    try:
        known_ops()[op_name(node)](network, node)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise InvalidFileError(
            f"the {op_name(node)} node {node.name!r} is not as ONNX defines it",
            remedy="check the model with edgeopt inspect, or export it again",
        ) from error


def _in_opset(model: Model) -> Model:
    """Return a model in an operator set that is written for MNN.

    Raises:
        UnsupportedError: If onnx does not bring it there.
    """
    least, most = _OPSETS
    if least <= model.opset <= most:
        return model
    try:
        proto = Graph.from_model(model).to_model().proto  # the converter keeps constants that are inputs as inputs
        return Model(version_converter.convert_version(proto, _WRITTEN), model.name)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(
            f"MNN is given models of the opsets {least} to {most}, and onnx does not bring this one, "
            f"of opset {model.opset}, there",
            remedy=f"export the model with opset {_WRITTEN}, or {ELSEWHERE}",
        ) from error


def _fixed(spec: TensorSpec) -> TensorSpec:
    shape: list[Any] = [*spec.shape]
    return TensorSpec(spec.name, spec.dtype, tuple(map(int, shape)))
