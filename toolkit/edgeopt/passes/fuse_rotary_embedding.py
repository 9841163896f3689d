"""Make one RotaryEmbedding of the products with cosines and sines that turn queries and keys by their position.

    x * cos + Concat(-x[second half], x[first half]) * sin   ->   RotaryEmbedding(x, positions, cos table, sin table)

The tables hold the cosines and sines of all positions up to the context: they are what the graph itself computes for
them, so scaled angles stay what they are. The standard op, which takes cosines of the run's own positions, becomes the
same. Angles that change with the length of the text (another table for long texts) are left as they are.
Source: Su et al., 2021, arXiv:2104.09864; com.microsoft.RotaryEmbedding of ONNX Runtime.
"""

from __future__ import annotations

import numpy as np

from edgeopt.executors.onnxruntime.decoder import PAST, POSITIONS
from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase
from edgeopt.passes._decoder import MICROSOFT, computed, context_of, input_of, width_of

_SHORT, _BEHIND = 8, 5
_RANK = 4
_OPSET_OF_SHAPE_PARTS = 15


def fuse_rotary_embedding(graph: Graph) -> int:
    """Return how many turned tensors became one node."""
    tables = _Tables(graph)
    fused = sum(_fuse(graph, add, tables) for add in graph.nodes("Add"))
    fused += sum(_fuse_standard(graph, node, tables) for node in graph.nodes("RotaryEmbedding"))
    if fused:
        graph.remove_unused()
    return fused


class _Tables:
    """Cosines and sines of all positions, by the values that they were in the graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: dict[Value, Array | None] = {}
        self._stored: dict[bytes, Value] = {}
        self._needs = set[str]()

    def of(self, value: Value, name: str, halves: int) -> Value | None:
        """Return the table of a value as a constant; None where it has none, or its halves, if it has two, differ."""
        if value not in self._found:
            self._found[value] = self._computed(value)
        table = self._found[value]
        if table is None:
            return None
        first, *second = np.split(table, halves, axis=1) if table.shape[1] % halves == 0 else (table, -table)
        if second and not np.array_equal(first, second[0]):
            return None
        table = np.ascontiguousarray(first)
        key = name.encode() + table.tobytes()
        if key not in self._stored:
            self._stored[key] = self._graph.add_initializer(name, table)
        return self._stored[key]

    def positions(self) -> Value | None:
        """Return the positions of a run: the input, or how many tokens the cache holds."""
        if POSITIONS in self._needs:
            return input_of(self._graph, POSITIONS)
        past = next((input_ for input_ in self._graph.inputs if PAST.fullmatch(str(input_.name))), None)
        if past is None or self._graph.opset < _OPSET_OF_SHAPE_PARTS:
            return None
        return self._graph.insert("Shape", [past], {"start": 2, "end": 3}, name="past_length").outputs[0]

    def _computed(self, value: Value) -> Array | None:
        """Return (positions, numbers of a value at one position)."""
        whole = computed(self._graph, value, context_of(self._graph), 0)
        short = computed(self._graph, value, _SHORT, _BEHIND)
        if whole is None or short is None:
            return None
        table, part = (pair[0].reshape(-1, pair[0].shape[-1]).astype(np.float32) for pair in (whole, short))
        if len(table) != context_of(self._graph) or not np.allclose(
            table[_BEHIND : _BEHIND + len(part)], part, atol=1e-5
        ):
            return None
        self._needs |= whole[1]
        return table


def _fuse(graph: Graph, add: Node, tables: _Tables) -> bool:
    pairs = [_factors(graph, input_) for input_ in add.inputs]
    for straight, turned in (pairs, pairs[::-1]):
        for x, cos in straight:
            for half, sin in turned:
                if _half_turned(graph, half) is x:
                    return _write(graph, add, x, (cos, sin), tables, halves=2)
    return False


def _factors(graph: Graph, value: Value | None) -> list[tuple[Value, Value]]:
    """Return both orders of a product's factors."""
    product = graph.producer(value, "Mul")
    if product is None or any(input_ is None for input_ in product.inputs):
        return []
    a, b = product.inputs
    return [(a, b), (b, a)] if a is not None and b is not None else []


def _half_turned(graph: Graph, value: Value) -> Value | None:
    """Return x of Concat(-x[second half], x[first half])."""
    join = graph.producer(value, "Concat")
    if join is None or len(join.inputs) != 2 or attribute(join, "axis", 0) not in (-1, _RANK - 1):
        return None
    minus = graph.producer(join.inputs[0], "Neg")
    second, first = graph.producer(minus.inputs[0] if minus else None), graph.producer(join.inputs[1])
    if first is None or second is None or first.op_type != second.op_type or first.op_type not in ("Slice", "Split"):
        return None
    if first is second and minus is not None and list(first.outputs) != [join.inputs[1], minus.inputs[0]]:
        return None
    return first.inputs[0] if first.inputs[0] is second.inputs[0] else None


def _fuse_standard(graph: Graph, node: Node, tables: _Tables) -> bool:
    x, cos, sin = node.inputs[:3]
    is_plain = len([input_ for input_ in node.inputs if input_ is not None]) == 3 and not attribute(
        node, "interleaved", 0
    )
    if x is None or cos is None or sin is None or not is_plain or graph.rank(x) != _RANK:
        return False
    return _write(graph, node, x, (cos, sin), tables, halves=1)


def _write(graph: Graph, last: Node, x: Value, angles: tuple[Value, Value], tables: _Tables, halves: int) -> bool:
    made = list[Value]()
    for value, name in zip(angles, ("cos_cache", "sin_cache"), strict=True):
        table = tables.of(value, name, halves)
        if table is None:
            return False
        made.append(table)
    positions = tables.positions()
    if positions is None or width_of(x) != 2 * (width_of(made[0]) or 0):
        return False
    inputs, name = [x, positions, *made], f"{last.name}_rotary"
    new = graph.insert("RotaryEmbedding", inputs, {"interleaved": 0}, domain=MICROSOFT, before=last, name=name)
    return graph.replace(last.outputs[0], new.outputs[0])


PASS = Pass(fuse_rotary_embedding, Phase.DECODER)
