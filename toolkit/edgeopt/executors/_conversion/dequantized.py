"""Constants that a model stores in integers behind a DequantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Value, attribute


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Weights in 8-bit integers: number = scale * (integer - zero)."""

    integers: NDArray[np.int8] | NDArray[np.uint8]
    scale: NDArray[np.float32]
    """One, or one for each place of `axis`."""
    zero: NDArray[np.int8] | NDArray[np.uint8]
    """As many as scales, in the type of the integers."""
    axis: int


def stored_weights(graph: Graph, value: Value | None) -> StoredTable | None:
    """Return a constant behind a DequantizeLinear as it is stored; None where it is no table of 8-bit integers."""
    node = graph.producer(value, "DequantizeLinear")
    parts = graph.constants(node.inputs) if node is not None else None
    if node is None or parts is None or attribute(node, "block_size", 0) or parts[1].ndim > 1:
        return None
    integers, scale = parts[0], parts[1].astype(np.float32).reshape(-1)
    if integers.dtype not in (np.int8, np.uint8) or not integers.ndim:
        return None
    zero = parts[2].reshape(-1) if len(parts) > 2 else np.zeros(1, integers.dtype)
    if not np.isfinite(scale).all():
        return None
    axis = attribute(node, "axis", 1) % integers.ndim if scale.size > 1 else 0
    return StoredTable(integers, scale, np.broadcast_to(zero, scale.shape).astype(integers.dtype), axis)


def dequantized(graph: Graph, value: Value | None) -> NDArray[Any] | None:
    """Return the numbers of a constant behind a DequantizeLinear; None where it is computed, or stored in blocks."""
    node = graph.producer(value, "DequantizeLinear")
    parts = graph.constants(node.inputs) if node is not None else None
    if node is None or parts is None:
        return None
    shape = [1] * parts[0].ndim
    if parts[1].size > 1:
        if attribute(node, "block_size", 0) or parts[1].ndim != 1:
            return None
        shape[attribute(node, "axis", 1)] = parts[1].size
    zero = parts[2].astype(np.int64).reshape(-1) if len(parts) > 2 else np.zeros(1, np.int64)
    zero = zero.reshape(shape) if zero.size > 1 else zero.reshape(())
    scale = parts[1].reshape(shape) if parts[1].size > 1 else parts[1].reshape(())
    result: NDArray[Any] = ((parts[0].astype(np.int64) - zero).astype(np.float32) * scale).astype(np.float32)
    return result
