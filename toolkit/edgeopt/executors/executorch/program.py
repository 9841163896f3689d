"""A model as an ExecuTorch program, by torch's exporter and the partitioner of XNNPACK.

It needs torch and minutes rather than seconds, and its libraries print as they like: a child process does it, see
`executors/_worker/executorch.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.fx.experimental.proxy_tensor import make_fx

from edgeopt.errors import ELSEWHERE, InvalidFileError, UnsupportedError
from edgeopt.executors._conversion.folding import fold, join_gelus
from edgeopt.executors._conversion.found_grids import FoundProduct
from edgeopt.executors._torch.ops import known_ops
from edgeopt.executors._torch.ops._node import node_of, op_name, tensor_of
from edgeopt.executors._torch.plan import ComputationPlan, NodeStep, run, try_out
from edgeopt.executors.executorch.file import METHOD
from edgeopt.executors.executorch.found_grids import OPS as FOUND_GRIDS
from edgeopt.executors.executorch.found_grids import found_products
from edgeopt.executors.executorch.quantized import for_xnnpack
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model

_QUANTIZERS = ("choose_qparams", "quantize_per_tensor", "dequantize_per_tensor", "dequantize_per_channel")
_DELEGATE = "executorch_call_delegate"
_TAKEN_IN = ("relu", "hardtanh")
"""Activations that the layer before them computes."""


def to_pte(model: Model) -> bytes:
    """Return a model as an ExecuTorch program.

    Args:
        model: Every shape known; pairs of QuantizeLinear and DequantizeLinear on 8-bit integers become XNNPACK's
            integer kernels with these very scales where it has them.

    Raises:
        UnsupportedError: If a node, a type or a shape cannot be computed.
        InvalidFileError: If the model makes nothing.
    """
    graph = Graph.from_model(model)
    if not graph.outputs:
        raise InvalidFileError("the model has no outputs", remedy="export the model again")
    for spec in model.inputs:
        if not spec.is_static:
            raise UnsupportedError(
                f"executorch needs every shape in numbers, and {spec.name!r} is {spec}",
                remedy="give --shape, or export the model with fixed shapes",
            )
        if not isinstance(getattr(torch, spec.dtype, None), torch.dtype):
            raise UnsupportedError(f"executorch is given numbers, and {spec.name!r} is {spec}", remedy=ELSEWHERE)
    fold(graph)
    join_gelus(graph)
    products = found_products(graph)
    model = graph.to_model()
    inputs = {spec.name: torch.zeros(_sizes(spec.shape), dtype=getattr(torch, spec.dtype)) for spec in model.inputs}
    outputs = [spec.name for spec in model.outputs]
    with torch.no_grad():
        network = _Network(_plan(model, inputs, outputs, products), tuple(inputs), outputs)
        traced = make_fx(network, pre_dispatch=True)(*inputs.values())
        exported = torch.export.export(traced, tuple(inputs.values()))
    facts: dict[str, Any] = {
        "inputs": [[spec.name, spec.dtype, list(_sizes(spec.shape))] for spec in model.inputs],
        "outputs": [[name, str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in network.made],
    }
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], constant_methods={METHOD: ""})
    facts["layers"] = [*_layers(lowered.exported_program().graph_module)]
    lowered._config_methods[METHOD] = json.dumps(facts)  # only what was lowered tells its layers
    return bytes(lowered.to_executorch().buffer)


class _Network(torch.nn.Module):
    """A plan with positional inputs and outputs, as programs have them."""

    def __init__(self, plan: ComputationPlan, inputs: tuple[str, ...], outputs: list[str]) -> None:
        super().__init__()
        self._plan, self._inputs, self._outputs = plan, inputs, outputs
        self.made: list[tuple[str, torch.Tensor]] = []

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs in order; what leaves the model twice, or as it came, is a copy."""
        named = dict(zip(self._inputs, values, strict=True))
        made = {**named, **run(self._plan, named, frozenset(self._outputs))}
        taken, result = [*values, *self._plan.known.values()], list[torch.Tensor]()
        for name in self._outputs:
            result.append(made[name].clone() if any(made[name] is other for other in taken) else made[name])
            taken.append(made[name])
        self.made = [(name, value) for name, value in zip(self._outputs, result, strict=True)]
        return tuple(result)


def _sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)


def _plan(
    model: Model, inputs: Mapping[str, torch.Tensor], outputs: list[str], products: Mapping[str, FoundProduct]
) -> ComputationPlan:
    """Return the nodes that are left to compute for inputs of these shapes.

    Raises:
        UnsupportedError: If there is no such op here.
    """
    ops = {**known_ops(), **FOUND_GRIDS}
    constants = {constant.name: tensor_of(constant) for constant in model.proto.graph.initializer}
    steps = list[NodeStep]()
    for proto in model.proto.graph.node:
        name = op_name(proto)
        if name not in ops:
            raise UnsupportedError(
                f"executorch is given no {name}, which node {proto.name or proto.output[0]!r} is",
                remedy=ELSEWHERE,
            )
        steps.append(NodeStep(node_of(proto, model.opset), ops[name], tuple(proto.input), tuple(proto.output)))
    steps, constants, frozen = for_xnnpack(steps, constants, outputs, products)
    plan = try_out(steps, {**constants, **inputs}, frozen, frozenset(outputs), lambda _name, _value: None)
    return replace(plan, known={**plan.known, **{name: constants[name] for name in constants.keys() - frozen}})


def _layers(module: torch.fx.GraphModule) -> Iterable[tuple[str, str, str]]:
    """Yield name, op and arithmetic of each node: of XNNPACK's, and of those that its partitioner leaves alone."""
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if _DELEGATE in str(node.target):
            lowered = getattr(module, node.args[0].name)
            for inner in lowered.original_module.graph.nodes:
                if inner.op == "call_function" and not _is_quantizer(inner) and "getitem" not in str(inner.target):
                    yield inner.name, _title(inner), _arithmetic(inner)
        elif "getitem" not in str(node.target):
            yield node.name, _title(node), "fp32, not by XNNPACK"


def _title(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[-2 if "." in str(node.target) else -1]


def _is_quantizer(node: torch.fx.Node) -> bool:
    return any(name in str(node.target) for name in _QUANTIZERS)


def _arithmetic(node: torch.fx.Node) -> str:
    """Return `int8`, `dynamic int8`, of floats that XNNPACK rounds to grids of its own, or `fp32`."""
    sources = [source for source in node.all_input_nodes if _is_quantizer(source) and len(source.args) > 1]
    if any(isinstance(source.args[1], torch.fx.Node) and "per_tensor" in str(source.target) for source in sources):
        return "dynamic int8"
    return "int8" if _is_on_integers(node) else "fp32"


def _is_on_integers(node: torch.fx.Node) -> bool:
    """Whether a node reads what is dequantized and its result is quantized, with an activation between at most."""
    if _title(node) in _TAKEN_IN and not any(map(_is_quantizer, node.all_input_nodes)):
        return any(_is_on_integers(source) for source in node.all_input_nodes if source.op == "call_function")
    made = node
    for _ in range(2):
        readers = [*made.users]
        if len(readers) != 1:
            return False
        if _is_quantizer(readers[0]):
            return any(_is_quantizer(source) for source in node.all_input_nodes)
        made = readers[0]
    return False
