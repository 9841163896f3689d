"""Which nodes run on integers, and on which grids; a form says how they are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.weights import QuantizedWeight, quantize_weight
from edgeopt.steps.quantize.patterns import (
    COMPANIONS,
    LIMITERS,
    SAME_GRID,
    key,
    limits,
    name_of,
    takes_integers,
    weight_axis,
)
from edgeopt.steps.quantize.spatial import moves_pixels
from edgeopt.system.declared.target import Granularity, Int8Rules

_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""


@dataclass(frozen=True, slots=True)
class NhwcOptions:
    """The ways in which ONNX Runtime's own integer ops may be written; the search measures which is faster."""

    integer_silu: bool = False
    """SiLU as QLinearSigmoid and QLinearMul; otherwise as QuickGelu in float."""
    direct_up_to: int = 0
    """1x1 convolutions with at most so many sums go straight to float, without a grid for them. It costs
    little where there are few, and loses less."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Integer nodes by key, and the grid of each tensor that may be quantized."""

    integer: Set[str]
    affines: Mapping[str, Affine]
    rules: Int8Rules = field(default_factory=Int8Rules)
    weights: Mapping[str, QuantizedWeight] = field(default_factory=dict)
    """Weights that were rounded otherwise than to nearest, by the key of their node."""

    biases: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Corrected biases, by the key of their node."""

    bad_db: Mapping[str, float] = field(default_factory=dict)
    """Score of each tensor kept in float because of it, worst first."""

    options: NhwcOptions = NhwcOptions()
    """How the NHWC form is written."""

    float_sums: Set[str] = frozenset()
    """Keys of further 1x1 convolutions that read integers in the NHWC form and make floats."""

    def quantized_weight(
        self, graph: Graph, node: Node, smallest: NDArray[np.float32] | None = None
    ) -> QuantizedWeight:
        """Return a node's weight on integers: as a repair rounded it, otherwise rounded to nearest.

        Args:
            graph: The float model.
            node: With constant weights.
            smallest: Least scale of each output channel; None: any.
        """
        value, weight = node.inputs[1], graph.constant(node.inputs[1])
        assert value is not None
        assert weight is not None
        return self.weights.get(key(node)) or quantize_weight(
            name_of(value),
            weight,
            weight_axis(node) % weight.ndim,
            reduce_range=self.reduces_range(graph, node),
            per_channel=self.rules.weight_granularity is Granularity.PER_CHANNEL,
            power_of_two=self.rules.power_of_two_scales,
            smallest=smallest,
        )

    def reduces_range(self, graph: Graph, node: Node) -> bool:
        """Whether two products of a layer could saturate: kernels of one input channel an output sum in 32 bits."""
        weight = graph.constant(node.inputs[1])
        group = attribute(node, "group", 1)
        alone = node.op_type == "Conv" and weight is not None and weight.shape[:2] == (group, 1) and group > 1
        return self.rules.reduce_range and not alone

    def is_integer(self, node: Node | None) -> bool:
        """Whether the node runs on integers."""
        return node is not None and key(node) in self.integer


def open_graph(model: Model) -> Graph:
    """Return a copy of the model to work on, its shapes known.

    Raises:
        UnsupportedError: If the opset is too old for scales per channel.
    """
    if model.opset < _OPSET:
        raise UnsupportedError(
            f"{model.name} has opset {model.opset}; INT8 with a scale per channel needs {_OPSET} or later",
            remedy="let the step simplify run first: it upgrades the opset",
        )
    graph = Graph.from_model(model)
    graph.infer_shapes()
    return graph


def data_inputs(graph: Graph, node: Node) -> list[Value]:
    """Return the activations that a node reads: no constants, no shapes, no sizes."""
    several = {"Concat": len(node.inputs), "Mul": 2, "Add": 2, "MatMul": 2}.get(node.op_type, 1)
    return [input_ for input_ in node.inputs[:several] if input_ is not None and graph.constant(input_) is None]


def candidates(graph: Graph, rules: Int8Rules) -> list[Node]:
    """Return the weighted nodes that could run on integers: the rules name the op, the weights are constant."""
    weighted = [node for node in graph.nodes(*rules.ops) if takes_integers(graph, node) and data_inputs(graph, node)]
    return [node for node in weighted if node.op_type != "ConvTranspose" and not _is_narrow(graph, node, rules)]


def _is_narrow(graph: Graph, node: Node, rules: Int8Rules) -> bool:
    """Whether a convolution has fewer channels than integers pay for; those of a group count together."""
    weight = graph.constant(node.inputs[1])
    if node.op_type != "Conv" or weight is None:
        return False
    narrowest: int = min(weight.shape[0], weight.shape[1] * attribute(node, "group", 1))
    return narrowest < rules.narrow_channels


def integer_nodes(graph: Graph, rules: Int8Rules, kept_float: Set[Node]) -> frozenset[str]:
    """Return the keys of the weighted nodes outside `kept_float`, and of the companions between them.

    A companion runs on integers only where all it reads comes from integer nodes and some reader is one:
    elsewhere it would cost a border and gain nothing.
    """
    companions = {node for node in graph.nodes(*COMPANIONS, *LIMITERS) if _can_be_integer(graph, node)} - kept_float
    integer = (set(candidates(graph, rules)) | companions) - kept_float
    while True:
        lone = {node for node in companions if not _is_between(graph, node, integer)}
        if not lone:
            return frozenset(key(node) for node in integer)
        companions -= lone
        integer -= lone


def _is_between(graph: Graph, node: Node, integer: Set[Node]) -> bool:
    fed = all(graph.producer(data_input) in integer for data_input in data_inputs(graph, node))
    moves = node.op_type in SAME_GRID  # ONNX Runtime moves a QuantizeLinear before it, whether we do or not
    return (fed or moves) and (
        any(reader in integer for reader in node.successors()) or _is_absorbed(graph, node, integer)
    )


def _is_absorbed(graph: Graph, node: Node, integer: Set[Node]) -> bool:
    """Whether a limiter right behind a weighted integer node costs nothing."""
    source = graph.sole_producer(node.inputs[0])
    return node.op_type in LIMITERS and source in integer and source is not None and source.op_type == "Conv"


def _is_float(graph: Graph, value: Value) -> bool:
    """Whether the tensor holds floats, as far as is known: sizes and indices have no grid."""
    return graph.dtype(value) is None or graph.dtype(value) == "float32"


def _can_be_integer(graph: Graph, node: Node) -> bool:
    if not all(_is_float(graph, data_input) for data_input in (*data_inputs(graph, node), node.outputs[0])):
        return False
    if node.op_type == "Resize":
        return moves_pixels(node)
    if node.op_type in ("Mul", "Add"):
        return len(data_inputs(graph, node)) == 2
    if node.op_type == "Concat":
        return len(data_inputs(graph, node)) == len(node.inputs)
    if node.op_type == "Clip":
        return limits(graph, node) not in (None, (-math.inf, math.inf))
    return bool(data_inputs(graph, node))


def absorbs(graph: Graph, node: Node | None, affine: Affine) -> bool:
    """Whether saturation on `affine` already does what this Relu or Clip does, so that it disappears."""
    if node is None or node.op_type not in LIMITERS:
        return False
    known = limits(graph, node)
    if known is None:
        return False
    low, high = known
    return affine.low >= low - affine.scale / 2 and affine.high <= high + affine.scale / 2


def watched(graph: Graph, rules: Int8Rules) -> dict[str, Value]:
    """Return all tensors that any scheme might quantize, in order."""
    values: dict[str, Value] = {}
    nodes = [*candidates(graph, rules), *(n for n in graph.nodes(*COMPANIONS, *LIMITERS) if _can_be_integer(graph, n))]
    order = {node: i for i, node in enumerate(graph.nodes())}
    for node in sorted(nodes, key=order.__getitem__):
        for value in (*data_inputs(graph, node), node.outputs[0]):
            if _is_float(graph, value):
                values.setdefault(name_of(value), value)
    return values
