"""INT8 and INT16 as Qualcomm's HTP wants it: every tensor of the graph on a grid.

Activations are U8, or U16 in `wide` nodes; convolution weights S8 with a scale per channel; weights of matrix
products U8 with one scale. A tensor that crosses from one width to the other is converted on its way. Fixed
encodings are not a matter of taste: the library accepts others and returns garbage without an error.

Source: ONNX Runtime, `get_qnn_qdq_config`; the encodings of Sigmoid, Tanh and Softmax as QNN's op definitions
demand them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, UnsupportedError
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.calibrate import Calibration, calibrate
from edgeopt.steps.quantize.calibration.findings import Findings, grid_of, require_finite_weights
from edgeopt.steps.quantize.grids.affine import Affine, make_affine
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.grids.weights import quantize_bias, quantize_weight, smallest_scale_for_bias
from edgeopt.steps.quantize.keep_float.islands import branch_island
from edgeopt.steps.quantize.keep_float.scores import channel_sqnr_db, score_db
from edgeopt.steps.quantize.patterns import (
    LIMITERS,
    WEIGHTED,
    channel_axis,
    following_activation,
    head_tail,
    key,
    name_of,
)
from edgeopt.steps.quantize.scheme import absorbs, open_graph
from edgeopt.system.declared.target import Target

NARROW, WIDE = "uint8", "uint16"
_LEAST_RANGE = 1e-4
"""A smaller range makes scales that HTP rounds to zero (`MinimumRealRange` of ONNX Runtime's own recipe)."""
_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "MaxPool", "Slice", "Split"),
        *("Gather", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"),
    }
)
"""Ops that move values and make none: HTP wants one grid on both sides."""
_FIXED: Mapping[str, Mapping[str, Affine]] = {
    "Sigmoid": {NARROW: Affine(2.0**-8, 0, NARROW), WIDE: Affine(2.0**-16, 0, WIDE)},
    "Softmax": {NARROW: Affine(2.0**-8, 0, NARROW), WIDE: Affine(2.0**-16, 0, WIDE)},
    "Tanh": {NARROW: Affine(2.0**-7, 128, NARROW), WIDE: Affine(2.0**-15, 32768, WIDE)},
}
_PER_CHANNEL = {"Conv": 0, "ConvTranspose": 1}
_OPSET_OF_16_BITS = 21
"""Opset from which on QuantizeLinear knows UINT16; before, only Microsoft's own does."""


@dataclass(frozen=True, slots=True)
class HtpFindings:
    """The observations of every float tensor in one pass over the calibration images."""

    calibration: Calibration
    grids: Mapping[str, Mapping[str, Affine]]
    """Tensor -> element type -> grid."""
    scores_db: Mapping[str, float]
    """Per-channel-normalised SQNR of each tensor in 8 bits, behind the activation that follows."""
    notes: tuple[Note, ...] = ()


def study_htp(
    model: Model, frames: Iterable[Tensors], target: Target, *, progress: Callable[[int], None] | None = None
) -> HtpFindings:
    """Watch every float tensor while `frames` stream through the model, and choose both grids of each.

    Args:
        model: The float model with fixed shapes, opset 13 or later.
        frames: Real model inputs, one image each; read once.
        target: Its `int8` rules, `never_quantized` and `unified_scales`.
        progress: Called with the number of images done.

    Raises:
        UnsupportedError: If a weight or an activation is NaN or infinite.
        EdgeoptError: If there are no images.
    """
    graph = open_graph(model)
    nodes = quantized_nodes(graph, target)
    require_finite_weights([node for node in nodes if node.op_type in WEIGHTED], graph)
    values = {name_of(tensor): tensor for node in nodes for tensor in _tensors_of(graph, node)}
    calibration = calibrate(model, frames, {n: channel_axis(graph, v) for n, v in values.items()}, progress=progress)
    _require_grids(calibration)
    grids = {name: _grids(graph, values[name], calibration, target) for name in values}
    _share(graph, target, grids)
    scores = {name: _score_db(graph, values[name], calibration, grids[name][NARROW]) for name in values}
    notes = Findings(calibration, {}, {}).notes
    return HtpFindings(calibration, grids, scores, notes)


def _require_grids(calibration: Calibration) -> None:
    """Raise where a tensor is NaN or infinite: the device computes all of them on integers."""
    for name, observation in calibration.observations.items():
        if observation.why_no_grid:
            raise UnsupportedError(
                f"tensor {name!r} {observation.why_no_grid}, and every tensor of this device needs a grid",
                remedy="export the model with a mask of finite numbers, -1e4 for one",
            )


def quantized_nodes(graph: Graph, target: Target) -> list[Node]:
    """Return the nodes that run on integers: those that compute with floats and may, and that no subgraph reads."""
    inside = branch_island(graph)
    return [
        node
        for node in graph.nodes()
        if node.op_type not in target.never_quantized
        and node not in inside
        and any(_is_real(graph, output) for output in node.outputs)
    ]


def _is_real(graph: Graph, value: Value | None) -> bool:
    return value is not None and graph.dtype(value) == np.float32


def _tensors_of(graph: Graph, node: Node) -> list[Value]:
    """Return the float tensors that a node reads and makes, without constants."""
    both = (*node.inputs, *node.outputs)
    return [value for value in both if value is not None and _is_real(graph, value) and graph.constant(value) is None]


def _grids(graph: Graph, value: Value, calibration: Calibration, target: Target) -> Mapping[str, Affine]:
    source = graph.producer(value)
    if source is not None and source.op_type in _FIXED:
        return _FIXED[source.op_type]
    seen = calibration.observations[name_of(value)]
    narrow = grid_of(graph, value, seen, target.int8, Method.MSE)
    wide = _make_grid(seen.histogram.low, seen.histogram.high, WIDE)
    return {NARROW: _make_grid(narrow.low, narrow.high, NARROW), WIDE: wide}


def _score_db(graph: Graph, value: Value, calibration: Calibration, grid: Affine) -> float:
    """Return the score behind the activation that follows: what a Relu cuts off is no loss."""
    samples = calibration.observations[name_of(value)].samples
    after = following_activation(graph, value)
    if after is None:
        return score_db(samples, grid)
    expected = np.asarray(after(samples), np.float32)
    return channel_sqnr_db(expected, np.asarray(after(grid.round_trip(samples)), np.float32) - expected)


def _make_grid(low: float, high: float, dtype: str) -> Affine:
    low, high = min(low, 0.0), max(high, 0.0)
    return make_affine(low, max(high, low + _LEAST_RANGE), dtype)


def _share(graph: Graph, target: Target, grids: dict[str, Mapping[str, Affine]]) -> None:
    """Give one grid to both sides of ops that move values, and to all sides of ops that the target unifies."""
    for node in graph.nodes():
        sides = [name_of(tensor) for tensor in _tensors_of(graph, node) if name_of(tensor) in grids]
        if node.op_type in target.unified_scales and len(sides) > 1:
            whole = {dtype: _union([grids[name][dtype] for name in sides]) for dtype in (NARROW, WIDE)}
            grids.update(dict.fromkeys(sides, whole))
    for node in graph.nodes(*_MOVES):
        sides = [name_of(tensor) for tensor in _tensors_of(graph, node) if name_of(tensor) in grids]
        grids.update(dict.fromkeys(sides[1:], grids[sides[0]]) if sides else {})


def _union(grids: list[Affine]) -> Affine:
    return make_affine(min(one.low for one in grids), max(one.high for one in grids), grids[0].dtype)


@dataclass(slots=True)
class _Placing:
    """A graph on its way into integers."""

    graph: Graph
    grids: dict[str, Mapping[str, Affine]]
    """Tensor -> element type -> grid."""
    integer: dict[Node, str]
    """Nodes on integers, and the element type of their activations."""

    def grid(self, value: Value, dtype: str) -> Affine:
        """Return the grid of a tensor in one width."""
        return self.grids[name_of(value)][dtype]

    def quantize(self, value: Value, grid: Affine) -> Value:
        """Return `value` after QuantizeLinear and DequantizeLinear."""
        name, domain = f"{name_of(value)}_{grid.dtype}", self._domain(grid.dtype)
        sides = self._numbers(name, np.float32(grid.scale), grid.zero_point, grid.dtype)
        made = self.graph.insert("QuantizeLinear", [value, *sides], domain=domain, name=f"{name}_quantize").outputs[0]
        real = self.graph.insert("DequantizeLinear", [made, *sides], domain=domain, name=f"{name}_dequantize")
        return real.outputs[0]

    def store(self, name: str, integers: NDArray[Any], scale: Any, zero: int, axis: int | None = None) -> Value:
        """Return the float value of a stored integer constant."""
        stored = self.graph.add_initializer(f"{name}_quantized", integers)
        inputs = [stored, *self._numbers(name, np.asarray(scale, np.float32), zero, str(integers.dtype))]
        attributes = {} if axis is None else {"axis": axis}
        domain = self._domain(str(integers.dtype))
        node = self.graph.insert("DequantizeLinear", inputs, attributes, domain=domain, name=f"{name}_dequantize")
        return node.outputs[0]

    def _numbers(self, name: str, scale: Any, zero: int, dtype: str) -> list[Value]:
        scales = np.asarray(scale, np.float32)
        zeros = np.full(scales.shape, zero, dtype)
        return [
            self.graph.add_initializer(f"{name}_scale", scales),
            self.graph.add_initializer(f"{name}_zero_point", zeros),
        ]

    def _domain(self, dtype: str) -> str:
        return "com.microsoft" if dtype == WIDE and self.graph.opset < _OPSET_OF_16_BITS else ""


def place_htp(model: Model, findings: HtpFindings, target: Target, wide: Set[str] | None = frozenset()) -> Outcome:
    """Return the model with every tensor on a grid.

    Args:
        model: The float model that was studied.
        findings: What `study_htp` found.
        target: As for `study_htp`.
        wide: Keys (`structure.key`) of the nodes with U16 activations; None: all.
    """
    graph = open_graph(model)
    nodes = quantized_nodes(graph, target)
    integer = {node: WIDE if wide is None or key(node) in wide else NARROW for node in nodes}
    _settle_moves(graph, integer)
    placing = _Placing(graph, dict(findings.grids), integer)
    absorbed = _absorb(placing)
    for node in list(integer):
        if node.graph is not None:
            _store_constants(placing, node)
    _insert_pairs(placing)
    graph.remove_unused()
    counts = {
        "nodes on U8": sum(word == NARROW for word in integer.values()),
        "nodes on U16": sum(word == WIDE for word in integer.values()),
        "limiters absorbed": absorbed,
    }
    return Outcome(graph.to_model(), {name: count for name, count in counts.items() if count})


def _settle_moves(graph: Graph, integer: dict[Node, str]) -> None:
    """Let ops that move values keep the width of what they move."""
    for node in graph.nodes(*_MOVES):
        source = graph.producer(node.inputs[0])
        if node in integer and source in integer and source is not None:
            integer[node] = integer[source]


def _absorb(placing: _Placing) -> int:
    """Take out each Relu or Clip that the saturation of its producer's grid replaces."""
    graph, grids, absorbed = placing.graph, placing.grids, 0
    for node in graph.nodes(*LIMITERS):
        source = graph.sole_producer(node.inputs[0])
        if source is None or not {source, node} <= placing.integer.keys() or source.op_type in (*_FIXED, *_MOVES):
            continue
        grid = grids[key(node)]
        if absorbs(graph, node, grid[placing.integer[source]]) and graph.bypass(node):
            del placing.integer[node]
            grids[name_of(source.outputs[0])] = grid
            absorbed += 1
    return absorbed


def _store_constants(placing: _Placing, node: Node) -> None:
    """Store every float constant of a node as integers."""
    graph, dtype = placing.graph, placing.integer[node]
    weighted = node.op_type in (*_PER_CHANNEL, "MatMul", "Gemm")
    for index, value in enumerate(node.inputs):
        numbers = graph.constant(value)
        if value is None or numbers is None or numbers.dtype != np.float32 or not _is_operand(node, index):
            continue
        if weighted and index == 1:
            _store_weight(placing, node, numbers)
        elif not (weighted and index == 2 and _has_stored_weight(placing, node)):
            grid = _make_grid(float(numbers.min(initial=0)), float(numbers.max(initial=0)), dtype)
            real = placing.store(name_of(value), grid.quantize(numbers), grid.scale, grid.zero_point)
            graph.set_input(node, index, real)


def _is_operand(node: Node, index: int) -> bool:
    """Whether an input is computed with; limits, sizes and paddings are not."""
    first_only = ("Clip", "Resize", "Pad", "Upsample", "Gather", "Expand", "Tile", "Reshape", "Slice", "Split")
    return index == 0 or node.op_type not in first_only


def _has_stored_weight(placing: _Placing, node: Node) -> bool:
    source = placing.graph.producer(node.inputs[1])
    return source is not None and source.op_type == "DequantizeLinear"


def _store_weight(placing: _Placing, node: Node, weight: NDArray[np.float32]) -> None:
    graph, value = placing.graph, node.inputs[1]
    assert value is not None
    assert node.inputs[0] is not None
    name = name_of(value)
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    step = placing.grid(node.inputs[0], placing.integer[node]).scale
    axis = _PER_CHANNEL.get(node.op_type)
    if axis is None:
        grid = _make_grid(float(weight.min(initial=0)), float(weight.max(initial=0)), NARROW)
        scales: NDArray[np.float32] = np.full(1, grid.scale, np.float32)
        real = placing.store(name, grid.quantize(weight), grid.scale, grid.zero_point)
    else:
        least = smallest_scale_for_bias(bias, step) if bias is not None and bias.size == weight.shape[axis] else None
        per_channel = not (axis == 1 and attribute(node, "group", 1) > 1)
        made = quantize_weight(name, weight, axis, per_channel=per_channel, smallest=least)
        scales = made.scale
        real = placing.store(name, made.values, *((scales, 0, axis) if per_channel else (scales[0], 0)))
    graph.set_input(node, 1, real)
    if bias is not None:
        whole = np.float32(step) * scales
        kind = (whole, 0, 0) if whole.size > 1 else (whole[0], 0)
        graph.set_input(node, 2, placing.store(f"{name}_bias", quantize_bias(bias, step, scales), *kind))


def _insert_pairs(placing: _Placing) -> None:
    """Put each tensor on its producer's grid, and on another where a reader has another width."""
    graph, integer = placing.graph, placing.integer
    for value in [*graph.inputs, *(output for node in graph.nodes() for output in node.outputs)]:
        if name_of(value) not in placing.grids:
            continue
        readers = [
            (node, i) for node in graph.consumers(value) for i, input_ in enumerate(node.inputs) if input_ is value
        ]
        if readers and not any(_is_operand(*reader) for reader in readers) and not graph.is_output(value):
            continue  # sizes and limits are no operands
        source = graph.producer(value)
        made_in = integer.get(source) if source is not None else None
        base = value if made_in is None else _quantize_output(placing, value, made_in)
        sides = {} if made_in is None else {made_in: base}
        for node, index in readers:
            wanted = integer.get(node, made_in) if _is_operand(node, index) else None
            if wanted is not None and wanted not in sides:
                sides[wanted] = placing.quantize(base, placing.grid(value, wanted))
            graph.set_input(node, index, base if wanted is None else sides[wanted])


def _quantize_output(placing: _Placing, value: Value, dtype: str) -> Value:
    """Quantize what an integer node makes; an output of the model keeps its name behind the pair."""
    graph = placing.graph
    is_output = graph.is_output(value)
    real = placing.quantize(value, placing.grid(value, dtype))
    if is_output:
        pair = graph.producer(real)
        made = pair.inputs[0].producer() if pair is not None and pair.inputs[0] is not None else None
        assert made is not None
        graph.replace(value, real)
        graph.set_input(made, 0, value)
    return real


def wide_nodes(model: Model, findings: HtpFindings, target: Target, least_db: float) -> frozenset[str]:
    """Return the keys of the nodes that need U16: those at a tensor that U8 spoils, and the decoding tail.

    Args:
        model: The float model that was studied.
        findings: What `study_htp` found.
        target: As for `study_htp`.
        least_db: Tensors whose normalised SQNR is below it in U8.
    """
    graph = open_graph(model)
    tail = head_tail(graph)
    result = set()
    for node in quantized_nodes(graph, target):
        scores = [findings.scores_db.get(name_of(tensor), np.inf) for tensor in _tensors_of(graph, node)]
        if node in tail or min(scores, default=np.inf) < least_db:
            result.add(key(node))
    return frozenset(result)
