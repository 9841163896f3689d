"""Which weighted layers of a model run on integers already, and in which form, whoever wrote it."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from onnx import GraphProto, NodeProto

from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import subgraphs
from edgeopt.system.text import plural


class IntegerKind(StrEnum):
    """How integers are written into a graph."""

    QDQ = "QDQ"
    """Float ops between DequantizeLinear and QuantizeLinear; what quantization-aware training exports too."""
    QOPERATOR = "QOperator"
    """Integer ops on grids that are stored."""
    DYNAMIC = "dynamic"
    """Activations are rounded on grids that are found as the model runs."""
    WEIGHT_ONLY = "weight-only"
    """Weights are stored as integers, and multiplied in float."""
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Integers:
    """The weighted layers of a model: how many there are, and how many of each kind have integer weights."""

    layers: int
    by_kind: Mapping[IntegerKind, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many layers have integer weights."""
        return sum(self.by_kind.values())

    @property
    def kind(self) -> IntegerKind | None:
        """The only kind there is, or mixed; None for a model in float."""
        return None if not self.by_kind else next(iter(self.by_kind)) if len(self.by_kind) == 1 else IntegerKind.MIXED

    def __str__(self) -> str:
        share = f"{self.count} of {plural(self.layers, 'weighted layer')} in integers"
        if self.kind is not IntegerKind.MIXED:
            return f"{self.kind}, {share}" if self.kind else share
        return f"{self.kind}, {share} ({', '.join(f'{kind} {count}' for kind, count in self.by_kind.items())})"


def why_not_again(model: Model) -> str:
    """Return why a model must not be quantized; empty for one in float.

    What is left in float stays so: its ranges would be those of tensors that are rounded already, and whoever made the
    integers left it out for a reason.
    """
    integers = read_integers(model)
    return f"{model.name} is quantized already ({integers})" if integers.kind else ""


_FLOAT = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "FusedConv", "FusedMatMul"})
_STORED_GRIDS = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3, "QAttention": 1}
"""The place of the weights among the inputs; so below."""
_FOUND_GRIDS = {"DynamicQuantizeMatMul": 1, "DynamicQuantizeLSTM": 1}
_EITHER = {"ConvInteger": 1, "MatMulInteger": 1, "MatMulIntegerToFloat": 1}
_BLOCKS = {"MatMulNBits": 1, "MatMulBnb4": 1, "QMoE": 2}
_PLACES = {**dict.fromkeys(_FLOAT, 1), "MoE": 2, **_STORED_GRIDS, **_FOUND_GRIDS, **_EITHER, **_BLOCKS}
_MOVES = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather"})
_GRIDS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def read_integers(model: Model) -> Integers:
    """Return how many weighted layers a model has, those of subgraphs too, and how many are in integers."""
    kinds = Counter(_kinds(model.proto.graph, ChainMap(), frozenset()))
    return Integers(kinds.total(), {kind: kinds[kind] for kind in IntegerKind if kinds[kind]})


def _kinds(graph: GraphProto, outer: ChainMap[str, NodeProto], stored: frozenset[str]) -> Iterator[IntegerKind | None]:
    """Yield the kind of each weighted layer, None for one in float."""
    stored |= {subgraph.name for subgraph in (*graph.initializer, *(each.values for each in graph.sparse_initializer))}
    makers = outer.new_child({name: node for node in graph.node for name in node.output if name})
    for node in graph.node:
        place = _PLACES.get(node.op_type)
        if place is not None and place < len(node.input) and _is_stored(node.input[place], makers, stored):
            yield _kind(node, makers)
        for subgraph in subgraphs([node]):
            yield from _kinds(subgraph, makers, stored)


def _kind(node: NodeProto, makers: Mapping[str, NodeProto]) -> IntegerKind | None:
    if node.op_type in _BLOCKS:
        return IntegerKind.WEIGHT_ONLY
    if node.op_type in _FOUND_GRIDS:
        return IntegerKind.DYNAMIC
    data = _maker(node.input[0], makers)
    if node.op_type in _EITHER or node.op_type in _STORED_GRIDS:
        return (
            IntegerKind.DYNAMIC
            if data is not None and data.op_type == "DynamicQuantizeLinear"
            else IntegerKind.QOPERATOR
        )
    weight = _maker(node.input[_PLACES[node.op_type]], makers)
    if weight is None or weight.op_type != "DequantizeLinear":
        return None
    if data is None or data.op_type != "DequantizeLinear":
        return IntegerKind.WEIGHT_ONLY
    grid = _maker(data.input[0], makers)
    return IntegerKind.DYNAMIC if grid is not None and grid.op_type == "DynamicQuantizeLinear" else IntegerKind.QDQ


def _maker(name: str, makers: Mapping[str, NodeProto]) -> NodeProto | None:
    """Return the node that makes a tensor, behind those that move its values."""
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES and node.input:
        node = makers.get(node.input[0])
    return node


def _is_stored(name: str, makers: Mapping[str, NodeProto], stored: frozenset[str]) -> bool:
    """Whether a tensor is a constant, or made of one by rounding and moving alone."""
    while name not in stored:
        node = makers.get(name)
        if node is None or node.op_type == "Constant":
            return node is not None
        if node.op_type not in _MOVES | _GRIDS or not node.input:
            return False
        name = node.input[0]
    return True
