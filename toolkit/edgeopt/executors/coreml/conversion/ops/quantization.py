"""QuantizeLinear and DequantizeLinear between nodes: rounded as the model says, or only limited as its integers are."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt.executors.coreml.conversion.conversion import MilConversion, MilGrid
from edgeopt.executors.coreml.conversion.ops.activations import limited
from edgeopt.graph.graph import Node, attribute

_NEVER_BELOW_ZERO = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs")


def _grid(conversion: MilConversion, node: Node) -> MilGrid:
    parts = conversion.graph.constants(node.inputs[1:])
    if parts is None or attribute(node, "block_size", 0) or parts[0].ndim > 1:
        raise conversion.refuse(node, "in blocks, or by a scale that is computed")
    stored = conversion.graph.dtype(node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0])
    scale = parts[0].astype(np.float32).reshape(-1)
    zero = parts[1].reshape(-1) if len(parts) > 1 else np.zeros(1, np.uint8 if stored is None else stored)
    if zero.dtype not in (np.int8, np.uint8) or not (np.isfinite(scale) & (scale >= np.finfo(np.float32).tiny)).all():
        raise conversion.refuse(node, "to other than 8 bits, or by a scale that is not above zero")
    zero = np.broadcast_to(zero, scale.shape).astype(zero.dtype)
    return MilGrid(scale, zero, attribute(node, "axis", 1) if scale.size > 1 else None)


def _quantize(conversion: MilConversion, node: Node) -> None:
    """Write the rounding to integers and back: what follows reads the floats that the integers stand for."""
    grid, x = _grid(conversion, node), conversion.var(node.inputs[0])
    conversion.set_grid(node.outputs[0], grid)
    if not conversion.rounds:
        conversion.set(node.outputs[0], _limited(conversion, node, grid, x))
        return
    options: dict[str, Any] = {"scale": grid.scale, "zero_point": grid.zero}
    if grid.axis is None:
        options = {key: array.reshape(())[()] for key, array in options.items()}
    else:
        options["axis"] = np.int32(grid.axis)
    whole = conversion.mb.quantize(input=x, output_dtype=grid.zero.dtype.name, **options)
    conversion.set(node.outputs[0], conversion.mb.dequantize(input=whole, **options))


def _limited(conversion: MilConversion, node: Node, grid: MilGrid, x: Any) -> Any:
    """Return a tensor between the limits that a Relu may have left to its integers; others cut off what is rare."""
    if grid.axis is not None:
        return x
    info, zero, source = np.iinfo(grid.zero.dtype), int(grid.zero[0]), conversion.graph.producer(node.inputs[0])
    if zero == info.min and (source is None or source.op_type not in _NEVER_BELOW_ZERO):
        return limited(conversion, x, 0.0, np.inf)
    return limited(conversion, x, -np.inf, 0.0) if zero == info.max else x


def _dequantize(conversion: MilConversion, node: Node) -> None:
    known = conversion.grid(node.inputs[0])
    if known is None or not known.is_like(_grid(conversion, node)):
        raise conversion.refuse(node, "of integers that no QuantizeLinear makes, or of another grid")
    conversion.set(node.outputs[0], conversion.var(node.inputs[0]))


OPS = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
