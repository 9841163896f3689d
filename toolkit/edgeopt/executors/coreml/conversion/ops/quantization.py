"""QuantizeLinear and DequantizeLinear between nodes: rounded as the model says, or only limited as its integers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.executors.coreml.conversion.ops.activations import limited
from edgeopt.graph.graph import Node, attribute

_NEVER_BELOW_ZERO = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs")


@dataclass(frozen=True, slots=True)
class _Grid:
    scale: NDArray[np.float32]
    zero: NDArray[Any]
    axis: int | None

    @property
    def options(self) -> dict[str, Any]:
        """As MIL's ops take them: numbers for a tensor, rows for an axis."""
        if self.axis is None:
            return {"scale": self.scale.reshape(())[()], "zero_point": self.zero.reshape(())[()]}
        return {"scale": self.scale, "zero_point": self.zero, "axis": np.int32(self.axis)}


def _grid(conversion: MilConversion, node: Node) -> _Grid:
    parts = conversion.graph.constants(node.inputs[1:])
    if parts is None or attribute(node, "block_size", 0) or parts[0].ndim > 1:
        raise conversion.refuse(node, "in blocks, or by a scale that is computed")
    stored = conversion.graph.dtype(node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0])
    scale = parts[0].astype(np.float32).reshape(-1)
    zero = parts[1].reshape(-1) if len(parts) > 1 else np.zeros(1, np.uint8 if stored is None else stored)
    if zero.dtype not in (np.int8, np.uint8) or not (np.isfinite(scale) & (scale >= np.finfo(np.float32).tiny)).all():
        raise conversion.refuse(node, "to other than 8 bits, or by a scale that is not above zero")
    zero = np.broadcast_to(zero, scale.shape).astype(zero.dtype)
    return _Grid(scale, zero, attribute(node, "axis", 1) if scale.size > 1 else None)


def _quantize(conversion: MilConversion, node: Node) -> None:
    made = node.outputs[0]
    others = [reader for reader in conversion.graph.consumers(made) if reader.op_type != "DequantizeLinear"]
    if others or conversion.graph.is_output(made):
        raise conversion.refuse(node, "whose integers other nodes than DequantizeLinear read")
    grid, x = _grid(conversion, node), conversion.var(node.inputs[0])
    if conversion.rounds:
        conversion.set(made, conversion.mb.quantize(input=x, output_dtype=grid.zero.dtype.name, **grid.options))
        return
    if grid.axis is not None:
        raise conversion.refuse(node, "by channels")
    info, zero = np.iinfo(grid.zero.dtype), int(grid.zero[0])
    source = conversion.graph.producer(node.inputs[0])
    if zero == info.min and (source is None or source.op_type not in _NEVER_BELOW_ZERO):
        x = limited(conversion, x, 0.0, np.inf)  # a Relu may lie in the limit; others cut what calibration calls rare
    elif zero == info.max:
        x = limited(conversion, x, -np.inf, 0.0)
    conversion.set(made, x)


def _dequantize(conversion: MilConversion, node: Node) -> None:
    grid, value = _grid(conversion, node), node.inputs[0]
    if conversion.graph.producer(value, "QuantizeLinear") is None:
        raise conversion.refuse(node, "of integers that no QuantizeLinear makes")
    x = conversion.var(value)
    conversion.set(node.outputs[0], conversion.mb.dequantize(input=x, **grid.options) if conversion.rounds else x)


OPS = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
