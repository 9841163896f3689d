"""Where an engine, or ONNX Runtime's optimizer, first computes something else than the model as it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors._child import CHILD, ChildLostError
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors

_MOST_BYTES = 256 << 20
"""A larger model is not looked into: all its tensors would be held at once."""


def first_difference(model: Model, sample: Tensors, options: SessionOptions, tolerance: float) -> str:
    """Return words for the first node of the model whose result differs; empty: none could be told.

    Args:
        model: As it is written.
        sample: Its inputs.
        options: With which it is optimized.
        tolerance: Error over signal, root mean square, that still counts as the same.
    """
    if model.size_bytes > _MOST_BYTES:
        return ""
    try:
        with tempfile.TemporaryDirectory(prefix="edgeopt-optimized-") as folder:
            file = Path(folder) / "optimized.onnx"
            CHILD.open("writing", "onnxruntime", model.data, replace(options, save_optimized_to=str(file)), keeps=False)
            optimized = load_model(file)
        makers = {name: node for node in model.proto.graph.node for name in node.output if name}
        shared = [name for node in optimized.proto.graph.node for name in node.output if name in makers]
        right, wrong = (_tensors(other, shared, sample, options) for other in (model, optimized))
    except (EdgeoptError, ChildLostError):  # an optimized graph may hold what only its own session reads
        return ""
    return _first_of(shared, right, wrong, makers, tolerance)


def first_difference_of_engine(
    model: Model, sample: Tensors, executor: str, options: SessionOptions, tolerance: float
) -> str:
    """Return words for the first node whose result another engine changes; empty: none could be told.

    Args:
        model: As it is written.
        sample: Its inputs.
        executor: The engine's name.
        options: How it is opened.
        tolerance: Error over signal, root mean square, that still counts as the same.
    """
    if model.size_bytes > _MOST_BYTES:
        return ""
    makers = {name: node for node in model.proto.graph.node for name in node.output if name}
    try:
        in_order = _floats(model, makers)
        right = _tensors(model, in_order, sample, SessionOptions(threads=options.threads))
        shown = _with_outputs(model, in_order)
        if CHILD.open("tensors", executor, shown.data, options).refusal:
            return ""
        wrong = CHILD.run("tensors", executor, sample, wants_outputs=True).outputs
    except (EdgeoptError, ChildLostError, ValueError, RuntimeError):  # what it cannot show, it cannot tell
        return ""
    return _first_of(in_order, right, wrong, makers, tolerance)


def _floats(model: Model, makers: Mapping[str, onnx.NodeProto]) -> list[str]:
    """Return the float tensors that nodes make, in their order: engines show no others."""
    inferred = onnx.shape_inference.infer_shapes(model.proto).graph
    typed = {info.name: info.type.tensor_type.elem_type for info in (*inferred.value_info, *inferred.output)}
    return [name for name in makers if typed.get(name) == onnx.TensorProto.FLOAT]


def _first_of(
    names: Sequence[str], right: Tensors, wrong: Tensors, makers: Mapping[str, onnx.NodeProto], tolerance: float
) -> str:
    """Return words for the maker of the first of some tensors that differ; empty: none does."""
    for name in names:
        if name in right and name in wrong and not measure_drift({name: right[name]}, wrong).is_within(tolerance):
            node = makers[name]
            return f"{node.op_type} node {node.name!r}" if node.name else f"the {node.op_type} node that makes {name!r}"
    return ""


def _with_outputs(model: Model, names: Sequence[str]) -> Model:
    """Return a model that also returns tensors between its nodes."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = {value_info.name for value_info in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return Model(proto, model.name)


def _tensors(model: Model, names: Sequence[str], sample: Tensors, options: SessionOptions) -> Tensors:
    """Return what a model makes of `names` where nothing is optimized."""
    as_written = replace(options, entries={**options.entries, **UNOPTIMIZED})
    CHILD.open("tensors", "onnxruntime", _with_outputs(model, names).data, as_written)
    return CHILD.run("tensors", "onnxruntime", sample, wants_outputs=True).outputs
