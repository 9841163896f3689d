"""The nodes of a decoder whose matrices lie in blocks: products, and rows that are looked up.

Source: com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized of ONNX Runtime 1.32 (specification).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgeopt.export.decoder.packed import PackedMatrix
from edgeopt.graph.files.large_constants import proto_of

_MICROSOFT = "com.microsoft"
_LOWER_HALF = 0xFFFF
_IN_FLOATS = 1
"""`accuracy_level` with which a kernel leaves its inputs in floats."""


class PackedNodes:
    """Writes nodes, and what several of them share only once."""

    def __init__(self, constant: Callable[[str, Any], str], node: Callable[..., str]) -> None:
        """Write into a graph.

        Args:
            constant: Adds a constant, an array or a tensor of ONNX, under a name, which it returns.
            node: Adds a node of an op, inputs, an output, a domain and attributes, and returns the output.
        """
        self._constant, self._node = constant, node
        self._written = set[str]()
        self._made = dict[tuple[str, str], str]()
        self._stored = dict[int, tuple[PackedMatrix, list[str]]]()

    def product(self, x: str, matrix: PackedMatrix, mine: str) -> str:
        """Return x times a matrix.

        Args:
            x: (batch, sequence, inputs).
            matrix: Its constants are written once, however often it is read.
            mine: Name of the product.
        """
        blocks = matrix.blocks
        if matrix.order is not None:
            x = self._ordered(x, matrix.order, mine)
        sizes = {"K": matrix.inputs, "N": matrix.outputs, "bits": blocks.bits, "block_size": blocks.block}
        inputs = [x, *self._constants(matrix, mine)]
        if matrix.low is None:
            return self._node("MatMulNBits", inputs, mine, _MICROSOFT, **sizes, accuracy_level=_IN_FLOATS)
        made = self._node("MatMulNBits", inputs, f"{mine}.steps", _MICROSOFT, **sizes, accuracy_level=_IN_FLOATS)
        low = self._constant(f"{mine}.low", np.ascontiguousarray(matrix.low.T))
        sums = self._sums(x, blocks.block, matrix.low.shape[1])
        return self._node("Add", [made, self._node("MatMul", [sums, low], f"{mine}.rest")], mine)

    def lookup(self, matrix: PackedMatrix, ids: str, mine: str) -> str:
        """Return the rows that ids name, (batch, sequence, inputs) in floats.

        Args:
            matrix: A row for each token, its inputs in order and a multiple of its blocks.
            ids: (batch, sequence).
            mine: Name of the rows.
        """
        blocks = matrix.blocks
        data, *rest = self._constants(matrix, mine)
        shape = self._constant(f"{mine}.shape", np.array([matrix.outputs, -1], np.int64))
        flat = self._node("Reshape", [data, shape], f"{mine}.table")
        sizes = {"bits": blocks.bits, "block_size": blocks.block, "quantize_axis": 1, "gather_axis": 0}
        inputs = [flat, ids, *rest]
        if matrix.low is None:
            return self._node("GatherBlockQuantized", inputs, mine, _MICROSOFT, **sizes)
        steps = self._node("GatherBlockQuantized", inputs, f"{mine}.steps", _MICROSOFT, **sizes)
        low = self._constant(f"{mine}.low", matrix.low[..., None])
        apart = self._reshaped(steps, [0, 0, matrix.low.shape[1], blocks.block], f"{mine}.apart")
        total = self._node("Add", [apart, self._node("Gather", [low, ids], f"{mine}.rest")], f"{mine}.total")
        return self._reshaped(total, [0, 0, matrix.inputs], mine)

    def product_of_halves(self, x: str, rows: NDArray[np.float32], stored: str, mine: str) -> str:
        """Return x times a matrix in floats, which the file keeps in 16 bits where they hold it exactly.

        Args:
            x: (batch, sequence, inputs).
            rows: (outputs, inputs).
            stored: Name of its constant, which is written once.
            mine: Name of the product.
        """
        if not self._halves(rows, stored):
            return self._node("MatMul", [x, self._constant(f"{mine}.weight", np.ascontiguousarray(rows.T))], mine)
        wide = self._node("Cast", [stored], f"{mine}.rows", to=TensorProto.FLOAT)
        return self._node("MatMul", [x, self._node("Transpose", [wide], f"{mine}.columns", perm=[1, 0])], mine)

    def lookup_of_halves(self, rows: NDArray[np.float32], stored: str, ids: str, mine: str) -> str:
        """Return the rows that ids name, of a table in floats, as `product_of_halves` keeps it."""
        if not self._halves(rows, stored):
            return self._node("Gather", [self._constant(stored, rows), ids], mine)
        return self._node("Cast", [self._node("Gather", [stored, ids], f"{mine}.half")], mine, to=TensorProto.FLOAT)

    def _halves(self, rows: NDArray[np.float32], stored: str) -> bool:
        """Write floats in 16 bits, unless they are there already; return whether 16 bits hold them."""
        if stored in self._written:
            return True
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        if np.array_equal(half.astype(np.float32), rows):
            self._constant(stored, half)
        elif not (rows.view(np.uint32) & _LOWER_HALF).any():
            upper = proto_of((rows.view(np.uint32) >> 16).astype("<u2"), stored)
            upper.data_type = TensorProto.BFLOAT16
            self._constant(stored, upper)
        else:
            return False
        self._written.add(stored)
        return True

    def _constants(self, matrix: PackedMatrix, mine: str) -> list[str]:
        if id(matrix) not in self._stored:
            blocks = matrix.blocks
            names = [
                self._constant(f"{mine}.weight", blocks.packed()),
                self._constant(f"{mine}.scale", blocks.scale),
            ]
            zero = blocks.packed_zero()
            if zero is not None:
                names.append(self._constant(f"{mine}.zero", zero))
            self._stored[id(matrix)] = matrix, names  # held, so that no other gets its id
        return self._stored[id(matrix)][1]

    def _ordered(self, x: str, order: NDArray[np.int64], mine: str) -> str:
        key = x, f"order {order.tobytes().hex()}"
        if key not in self._made:
            places = self._constant(f"{mine}.order", order)
            self._made[key] = self._node("Gather", [x, places], f"{mine}.ordered", axis=2)
        return self._made[key]

    def _sums(self, x: str, block: int, count: int) -> str:
        """Return the sum of each block of x, (batch, sequence, blocks)."""
        key = x, f"sums of {block}"
        if key not in self._made:
            apart = self._reshaped(x, [0, 0, count, block], f"{x}.by_{block}")
            axes = self._constant(f"{x}.last_of_{block}", np.array([-1], np.int64))
            self._made[key] = self._node("ReduceSum", [apart, axes], f"{x}.sums_of_{block}", keepdims=0)
        return self._made[key]

    def _reshaped(self, x: str, shape: list[int], mine: str) -> str:
        sides = self._constant(f"{mine}.sides", np.array(shape, np.int64))
        return self._node("Reshape", [x, sides], mine)
