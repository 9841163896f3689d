"""What a model is, and where a target's engine puts its nodes. It changes and times nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from edgeopt.devices import find_device
from edgeopt.errors import EdgeoptError
from edgeopt.model import Model, find_model, load_model
from edgeopt.placement import Partition, explain_placement
from edgeopt.recognise import choose_recipe
from edgeopt.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts of one model."""

    name: str
    size_bytes: int
    opset: int
    parameters: int
    multiply_adds: int | None
    """None where a shape is free."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ops: Mapping[str, int]
    recipe: str
    target: str = ""
    partition: Partition | None = None
    """Where the target puts the nodes; None without a target."""

    @property
    def verdict(self) -> str:
        """Where the nodes run, in one line."""
        if self.partition is None or not self.partition.nodes:
            return "the engine does not say where nodes run"
        return self.partition.verdict


def inspect(model: str, *, target: str | None = None, recipe: str | None = None) -> Inspection:
    """Return the facts of a model, with a target also where its nodes run.

    Raises:
        EdgeoptError: If the model, the target or the recipe asked for cannot be read.
    """
    path = find_model(model)
    loaded = load_model(path)
    try:
        choice = choose_recipe(recipe, path, loaded.inputs, loaded.outputs, loaded.metadata)
        chosen = f"{choice.recipe.name}: {choice.reason}"
    except EdgeoptError as error:
        if recipe is not None:
            raise
        chosen = f"none: {error.problem}"
    device = find_device(target) if target else None
    return Inspection(
        name=loaded.name,
        size_bytes=loaded.size_bytes,
        opset=loaded.opset,
        parameters=sum(math.prod(one.dims) for one in loaded.proto.graph.initializer),
        multiply_adds=count_multiply_adds(loaded),
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        ops=loaded.op_counts,
        recipe=chosen,
        target=device.name if device else "",
        partition=explain_placement(loaded, device) if device else None,
    )


def count_multiply_adds(model: Model) -> int | None:
    """Return the multiply-adds of convolutions and matrix products for one run; None where a shape is free."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model.proto, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    graph = inferred.graph
    shapes = {one.name: tuple(one.dims) for one in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        sizes = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        shapes.setdefault(value.name, sizes)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(node.attribute[0].t).shape)
    total = 0
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
            work = _work_of(node, shapes)
            if not work:
                return None
            total += work
    return total


def _work_of(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the multiply-adds of one node, 0 when a shape is unknown."""
    data, weight, out = (shapes.get(name, ()) for name in (node.input[0], node.input[1], node.output[0]))
    if node.op_type == "Conv":
        return math.prod(out) * math.prod(weight[1:]) if out and weight else 0
    if node.op_type == "ConvTranspose":
        return math.prod(data) * math.prod(weight[1:]) if data and weight else 0
    transposed = any(one.name == "transA" and one.i for one in node.attribute)
    return math.prod(out) * (data[-2] if transposed else data[-1]) if out and data else 0
