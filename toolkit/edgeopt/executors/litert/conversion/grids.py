"""Pairs of QuantizeLinear and DequantizeLinear: which nodes become operators on integers, with the pairs' own grids.

A node whose inputs come from DequantizeLinear nodes and whose results go to a QuantizeLinear alone is one integer
operator of LiteRT, if that rounds as the pairs do. All other pairs become QUANTIZE and DEQUANTIZE, and the nodes
between them compute in float: the model's own numbers, whatever of it runs on integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors._conversion.found_grids import is_step
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.network import Grid
from edgeopt.graph.graph import Node, Value, attribute, op_name

Fits: TypeAlias = Callable[[Sequence[Grid], Sequence[Grid]], bool]
"""Whether an operator computes what the pairs say, from the grids of its inputs and of its outputs."""
_SHIFT = 128
"""Difference of unsigned and signed 8-bit integers, zero points too: the numbers stay the same."""
_ONE_INPUT = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Ops whose further inputs are constants; two tensors of a MatMul are multiplied in float."""
_LIMITS = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
_TAKES_LIMIT = frozenset({"Conv", "Gemm", "MatMul", "Add", "Sub", "Mul"})
"""Ops whose operator computes a Relu behind them."""


def any_grids(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> bool:
    """An operator that takes each tensor on a grid of its own."""
    del inputs, outputs
    return True


def one_grid(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> bool:
    """An operator that moves integers, and rounds nothing."""
    return len({*inputs, *outputs}) == 1


def fixed(scale: float, zero: int) -> Fits:
    """An operator whose results have a grid that LiteRT prescribes."""

    def fits(inputs: Sequence[Grid], outputs: Sequence[Grid]) -> bool:
        del inputs
        return all(grid == Grid((scale,), (zero,)) for grid in outputs)

    return fits


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights that the model stores in 8-bit integers, without a zero point once they are signed."""

    integers: NDArray[np.int8]
    scale: NDArray[np.float32]
    """One, or one for each place of `axis`."""
    axis: int


def stored_weights(conversion: TfliteConversion, value: Value | None) -> StoredWeights | None:
    """Return a constant behind a DequantizeLinear as it is stored; None where LiteRT cannot take it so."""
    node = conversion.graph.producer(value, "DequantizeLinear")
    parts = conversion.graph.constants(node.inputs) if node is not None else None
    if node is None or parts is None or attribute(node, "block_size", 0) or parts[1].ndim > 1:
        return None
    integers, scale = parts[0], parts[1].astype(np.float32).reshape(-1)
    zero = parts[2].astype(np.int64) if len(parts) > 2 else np.zeros(1, np.int64)
    if integers.dtype == np.uint8:
        integers, zero = (integers.astype(np.int16) - _SHIFT).astype(np.int8), zero - _SHIFT
    if integers.dtype != np.int8 or zero.any() or not is_step(scale):
        return None
    return StoredWeights(integers, scale, attribute(node, "axis", 1) % max(integers.ndim, 1))


def bias_steps(bias: NDArray[np.float32], source: Grid, scale: NDArray[np.float32]) -> NDArray[np.int32] | None:
    """Return a bias in steps of the products; None where it does not fit in 32 bits."""
    steps = np.rint(bias.astype(np.float64) / (np.float64(source.scale[0]) * scale.astype(np.float64)))
    return steps.astype(np.int32) if (np.abs(steps) < 1 << 31).all() else None


def tensor_grid(conversion: TfliteConversion, node: Node) -> Grid | None:
    """Return the grid of a pair's tensor, in signed integers; None where LiteRT has none such.

    A scale that is zero, negative, subnormal or no number ends LiteRT's process.
    """
    parts = conversion.graph.constants(node.inputs[1:])
    if parts is None or parts[0].size != 1:
        return None
    stored = conversion.graph.dtype(node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0])
    zero = parts[1].reshape(-1) if len(parts) > 1 else np.zeros(1, np.uint8 if stored is None else stored)
    scale = np.float32(parts[0].reshape(()))
    if zero.dtype not in (np.int8, np.uint8) or zero.size != 1 or not is_step(scale):
        return None
    shift = _SHIFT if zero.dtype == np.uint8 else 0
    return Grid((float(scale),), (int(zero[0]) - shift,))


def integer_source(conversion: TfliteConversion, value: Value | None) -> Value | None:
    """Return the integers that a DequantizeLinear makes a tensor of, where LiteRT holds them; otherwise None."""
    node = conversion.graph.producer(value, "DequantizeLinear")
    if node is None or node.inputs[0] is None:
        return None
    known = conversion.grid(node.inputs[0])
    return node.inputs[0] if known is not None and known == tensor_grid(conversion, node) else None


def step_of(conversion: TfliteConversion, node: Node, fits: Fits | None) -> TfliteStep:
    """Return a node as it is to be written: on integers where `fits` says so, else as it is.

    Args:
        conversion: All nodes before it are written.
        node: The node.
        fits: Whether its operator computes what pairs of such grids say; None: it takes no integers.
    """
    plain = TfliteStep(node, tuple(node.inputs), tuple(node.outputs))
    if fits is None:
        return plain
    reads = [value for value in node.inputs if value is not None and conversion.constant(value) is None]
    if op_name(node) in _ONE_INPUT and (len(reads) != 1 or stored_weights(conversion, node.inputs[1]) is None):
        return plain
    if op_name(node) not in _ONE_INPUT and not _may_read_constants(node, reads):
        return plain
    sources = {value: integer_source(conversion, value) for value in reads}
    ends = [end for value in node.outputs if (end := _integer_end(conversion, node, value)) is not None]
    before = [grid for source in sources.values() if (grid := conversion.grid(source)) is not None]
    behind = [grid for end in ends if (grid := tensor_grid(conversion, end.quantize)) is not None]
    if len(before) < len(reads) or len(behind) < len(node.outputs) or not fits(before, behind):
        return plain
    outputs = tuple(end.quantize.outputs[0] for end in ends)
    for value, grid in zip(outputs, behind, strict=True):
        conversion.set_grid(value, grid)
    inputs = tuple(sources.get(value, value) if value is not None else None for value in node.inputs)
    return TfliteStep(node, inputs, outputs, True, ends[0].limit)


def _may_read_constants(node: Node, reads: Sequence[Value]) -> bool:
    """Whether constants among a node's inputs are none of its data: sizes, axes and the like."""
    if not reads or reads[0] is not node.inputs[0]:
        return False
    others = [value for value in node.inputs[1:] if value is not None]
    is_all_data = node.op_type in ("Add", "Sub", "Mul", "Concat")
    return not is_all_data or len(reads) == len(others) + 1


@dataclass(frozen=True, slots=True)
class _IntegerEnd:
    """Where a node's result becomes integers."""

    quantize: Node
    limit: str
    """The schema's name of what lies between; NONE: nothing."""


def _integer_end(conversion: TfliteConversion, node: Node, value: Value) -> _IntegerEnd | None:
    """Return the QuantizeLinear that alone reads a tensor, and the limit between; None where there is none."""
    limit, reader = "", conversion.graph.sole_consumer(value)
    if reader is not None and node.op_type in _TAKES_LIMIT and (limit := _limit(conversion, reader)):
        reader = conversion.graph.sole_consumer(reader.outputs[0])
    if reader is None or reader.op_type != "QuantizeLinear":
        return None
    return _IntegerEnd(reader, limit or "NONE")


def _limit(conversion: TfliteConversion, node: Node) -> str:
    """Return the schema's name of a Relu, or of a Clip between numbers that it has a name for; empty: it is neither."""
    if node.op_type == "Relu":
        return "RELU"
    if node.op_type != "Clip":
        return ""
    if len(node.inputs) > 1:
        bounds = [conversion.graph.constant(value) for value in node.inputs[1:]]
        numbers = tuple(float(bound.reshape(())) for bound in bounds if bound is not None)
    else:
        numbers = (float(attribute(node, "min", -np.inf)), float(attribute(node, "max", np.inf)))
    return _LIMITS.get(numbers, "") if len(numbers) == 2 else ""
