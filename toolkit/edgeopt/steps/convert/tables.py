"""Store tables of which rows are looked up, the embedding of a language model for one, in blocks of integers.

A table that is the matrix of a product in 8 bits too, as a tied head is, is stored once: both read the same integers.
Source: com.microsoft.GatherBlockQuantized of ONNX Runtime, integers as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.convert.blocks import Blocks, k_quant

BITS, BLOCK = 8, 32
"""Bits and block of a table of its own: a row that is looked up costs no time, and its errors reach every layer."""
LEAST_BYTES = 1 << 14
"""A smaller table is left as it is."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix that lies in the graph as blocks."""

    columns: NDArray[np.float32]
    """(outputs, inputs) as it was."""
    blocks: Blocks
    data: Value
    scale: Value
    zero: Value | None


def place(graph: Graph, name: str, columns: NDArray[np.float32], blocks: Blocks) -> StoredBlocks:
    """Return the blocks of a matrix as constants of the graph."""
    zero = blocks.packed_zero()
    return StoredBlocks(
        columns,
        blocks,
        graph.add_initializer(f"{name}_blocks", blocks.packed()),
        graph.add_initializer(f"{name}_scales", blocks.scale),
        None if zero is None else graph.add_initializer(f"{name}_zeros", zero),
    )


def store_tables(graph: Graph, known: Sequence[StoredBlocks]) -> int:
    """Rewrite the look-ups of large constant tables, in place; return how many.

    Args:
        graph: The model.
        known: Matrices that are stored already.
    """
    made = dict[Value, StoredBlocks]()
    nodes = [node for node in graph.nodes("Gather") if _is_large_table(graph, node)]
    for node in nodes:
        table = node.inputs[0]
        rows = graph.constant(table)
        assert table is not None
        assert rows is not None
        if table not in made:
            alike = (stored for stored in known if _is_same(stored, rows))
            made[table] = next(alike, None) or place(graph, table.name or "", rows, k_quant("", rows, BITS, BLOCK))
        _rewrite(graph, node, made[table])
    return len(nodes)


def _is_large_table(graph: Graph, node: Node) -> bool:
    rows = graph.constant(node.inputs[0])
    return (
        rows is not None
        and rows.dtype == np.float32
        and rows.ndim == 2
        and attribute(node, "axis", 0) == 0
        and rows.nbytes >= LEAST_BYTES
        and rows.shape[1] % BLOCK == 0
        and bool(np.isfinite(rows).all())
        and graph.constant(node.inputs[1]) is None
    )


def _is_same(stored: StoredBlocks, rows: NDArray[np.float32]) -> bool:
    fits = stored.blocks.bits == BITS and rows.shape[1] % stored.blocks.block == 0
    return fits and np.array_equal(stored.columns, rows)


def _rewrite(graph: Graph, node: Node, stored: StoredBlocks) -> None:
    data, blocks = stored.data, stored.blocks
    # a constant of its own is mapped, and only rows that are looked up are read; a Reshape makes a copy in memory
    flat = graph.add_view(f"{node.name}_rows", data, (len(blocks.integers), blocks.row_bytes))
    if flat is None:
        shape = graph.add_initializer(f"{node.name}_shape", np.array([len(blocks.integers), -1], np.int64))
        flat = graph.insert("Reshape", [data, shape], name=f"{node.name}_rows").outputs[0]
    inputs: list[Value | None] = [flat, node.inputs[1], stored.scale]
    if stored.zero is not None:
        inputs.append(stored.zero)
    sizes = {"bits": blocks.bits, "block_size": blocks.block, "quantize_axis": 1, "gather_axis": 0}
    made = graph.insert(
        "GatherBlockQuantized", inputs, sizes, domain="com.microsoft", name=f"{node.name}_GatherBlockQuantized"
    )
    graph.replace(node.outputs[0], made.outputs[0])
