"""The grids of a quantized model: which integers are weights and biases, which scales belong together.

A model has pairs of QuantizeLinear and DequantizeLinear at activations, and a DequantizeLinear behind each stored
constant, as edgeopt's own `quantize` writes them for every target that reads pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt.executors._torch.ops._node import op_name
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.grids.weights import MOST, MOST_OF_TWO, choose_scale
from edgeopt.steps.quantize.patterns import WEIGHTED

_QUANTIZE = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_DEQUANTIZE = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
_DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
_MOVES = frozenset(
    {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Resize", "Slice"}
    | {"Split", "Gather", "DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Concat", "Pad"}
)
"""Ops that move values: engines run them on integers only where both sides have one grid."""
_FIXED = ("Sigmoid", "Softmax", "Tanh")
"""Ops whose output has a fixed power of two as its scale on some devices."""
_MOST = {"int8": MOST}
"""Largest magnitude where the type has one more below zero."""


@dataclass(frozen=True, slots=True)
class StoredIntegers:
    """A constant of integers and the DequantizeLinear that makes floats of it."""

    integers: str
    scale: str
    made: str
    """Name of the floats."""
    zero: int
    dtype: str
    axis: int
    low: int
    """Smallest integer less the zero point."""
    high: int
    output_axis: int = 0
    """Output axis of a weight: what counts output channels."""
    keeps_pairs: bool = False
    """Whether two neighbours must not saturate 16 bits; see `edgeopt.steps.quantize.grids.weights`."""
    factors: tuple[str, ...] = ()
    """Factors of a bias: the scales of input and weight, whose product its scale is."""


@dataclass(frozen=True, slots=True)
class Grids:
    """The trainable parts of a quantized model besides its floats."""

    stored: tuple[StoredIntegers, ...] = ()
    """Weights, then biases."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Scales of activations and weights that may change -> the one that stands for it; several are one grid."""


def grids_of(model: Model) -> Grids:
    """Read the grids of a model; nothing of a float one."""
    reading = _Reading(model)
    if not reading.nodes:
        return Grids()
    weights = reading.weights()
    kept = _keep_pairs(reading, weights)
    weights = [replace(weight, keeps_pairs=weight.made in kept) for weight in weights]
    return Grids((*weights, *reading.biases(weights)), reading.scales(weights))


class _Reading:
    """A model's nodes and constants, as the questions below need them."""

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        self.graph = graph
        self.values = {constant.name: constant for constant in graph.initializer}
        self.nodes = [node for node in graph.node if op_name(node) in (*_QUANTIZE, *_DEQUANTIZE)]
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def array(self, name: str) -> NDArray[Any]:
        return np.asarray(numpy_helper.to_array(self.values[name]))

    def zero(self, node: onnx.NodeProto) -> NDArray[Any]:
        return self.array(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1, np.uint8)

    def constants(self) -> Iterable[StoredIntegers]:
        """Yield the stored constants that have one zero point and a type of 8, 16 or 32 bits."""
        for node in self.nodes:
            if op_name(node) not in _DEQUANTIZE or not {*node.input[:2]} <= self.values.keys():
                continue
            integers = self.array(node.input[0])
            dtype = str(integers.dtype)
            zeros = np.unique(self.zero(node)) if len(node.input) > 2 else np.zeros(1, np.int64)
            if (
                dtype not in ("int8", "uint8", "int16", "uint16", "int32")
                or len(zeros) > 1
                or _number(node, "block_size", 0)
            ):
                continue
            zero, info = int(zeros[0]), np.iinfo(dtype)
            least = -_MOST[dtype] if dtype in _MOST and integers.min(initial=0) > info.min else int(info.min)
            axis = _number(node, "axis", 1)
            yield StoredIntegers(
                node.input[0], node.input[1], node.output[0], zero, dtype, axis, least - zero, info.max - zero
            )

    def weights(self) -> list[StoredIntegers]:
        """Return the stored constants of 8 or 16 bits."""
        weights = []
        for constant in self.constants():
            nodes = self.multiplying(constant.made)
            axis = weight_axis(nodes[0]) % self.array(constant.integers).ndim if nodes else 0
            if constant.dtype != "int32":
                weights.append(replace(constant, output_axis=axis))
        return weights

    def multiplying(self, made: str) -> list[onnx.NodeProto]:
        """Return the weighted nodes whose weights are the floats of that name."""
        nodes = self.readers.get(made, [])
        return [node for node in nodes if node.op_type in WEIGHTED and list(node.input[1:2]) == [made]]

    def grid_behind(self) -> dict[str, frozenset[str]]:
        """Return the scales of the grids on which a tensor's values lie, also behind ops that move them."""
        result: dict[str, frozenset[str]] = {}
        for node in self.graph.node:
            if op_name(node) in _DEQUANTIZE and node.input[0] not in self.values:
                result[node.output[0]] = frozenset(node.input[1:2])
            elif node.op_type in _MOVES:
                data = node.input if node.op_type == "Concat" else node.input[:1]
                grids = frozenset[str]().union(*(result.get(name, frozenset()) for name in data))
                result |= dict.fromkeys(node.output, grids)
        return result

    def biases(self, weights: Iterable[StoredIntegers]) -> list[StoredIntegers]:
        """Return the biases whose scale is the product of two others."""
        behind, of_weight = self.grid_behind(), {stored.made: stored for stored in weights}
        biases = []
        for constant in self.constants():
            readers = [node for node in self.readers.get(constant.made, []) if list(node.input[2:3]) == [constant.made]]
            if constant.dtype != "int32" or len(readers) != 1 or len(self.readers[constant.made]) != 1:
                continue
            grids, weight = behind.get(readers[0].input[0], frozenset()), of_weight.get(readers[0].input[1])
            if len(grids) != 1 or weight is None:
                continue
            factors = (*grids, weight.scale)
            product = self.array(factors[0]) * self.array(factors[1])
            if np.allclose(self.array(constant.scale), product, rtol=1e-3, atol=0):
                biases.append(replace(constant, axis=0, factors=factors))
        return biases

    def scales(self, weights: Iterable[StoredIntegers]) -> dict[str, str]:
        """Return the scales that may change, each with the one of its grid that stands for it."""
        activations = {node.input[1]: node for node in self.nodes if node.input[0] not in self.values}
        names = [*dict.fromkeys([*activations, *(weight.scale for weight in weights)])]
        names = [name for name in names if name in self.values]
        if all(_is_power_of_two(self.array(name)) for name in names):
            return {}
        parents = {name: name for name in names}
        behind = self.grid_behind()
        for node in self.nodes:
            if op_name(node) in _QUANTIZE and node.input[1] in parents:
                for other in sorted(behind.get(node.input[0], frozenset()) & parents.keys()):
                    if np.array_equal(self.array(other), self.array(node.input[1])):
                        _join(parents, other, node.input[1])
        fixed = {_root(parents, name) for name, node in activations.items() if name in parents and self._is_fixed(node)}
        roots = {name: _root(parents, name) for name in names}
        return {name: root for name, root in roots.items() if root not in fixed}

    def _is_fixed(self, node: onnx.NodeProto) -> bool:
        maker = self.makers.get(node.input[0])
        while maker is not None and (op_name(maker) in _QUANTIZE or maker.op_type in _MOVES):
            maker = self.makers.get(maker.input[0])
        fixed = maker is not None and maker.op_type in _FIXED
        return self.array(node.input[1]).size > 1 or (fixed and _is_power_of_two(self.array(node.input[1])))


def _keep_pairs(reading: _Reading, weights: Iterable[StoredIntegers]) -> set[str]:
    """Return the weights (names of their floats) whose neighbours must not saturate: all, if none of them does now."""
    keep_pairs = set()
    for weight in weights:
        nodes, integers = reading.multiplying(weight.made), reading.array(weight.integers)
        if weight.dtype != "int8" or not nodes or integers.ndim < 2:
            continue
        group = _number(nodes[0], "group", 1)
        if nodes[0].op_type == "Conv" and group > 1 and integers.shape[:2] == (group, 1):
            continue  # kernels of one input channel add up in 32 bits
        if np.any(choose_scale(integers, weight.output_axis, reduce_range=True) * MOST > MOST_OF_TWO + 0.5):
            return set()
        keep_pairs.add(weight.made)
    return keep_pairs


def weight_axis(node: onnx.NodeProto) -> int:
    """Return the axis of the weight of a node that counts output channels."""
    if node.op_type == "Gemm":
        return 0 if _number(node, "transB", 0) else 1
    return {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, -1)


def _number(node: onnx.NodeProto, name: str, default: int) -> int:
    return next(
        (int(helper.get_attribute_value(attribute)) for attribute in node.attribute if attribute.name == name), default
    )


def _is_power_of_two(values: NDArray[Any]) -> bool:
    return bool(np.all(np.frexp(values)[0] == 0.5))


def _root(parents: Mapping[str, str], name: str) -> str:
    while parents[name] != name:
        name = parents[name]
    return name


def _join(parents: dict[str, str], name: str, other: str) -> None:
    first, second = sorted((_root(parents, name), _root(parents, other)))
    parents[second] = first
