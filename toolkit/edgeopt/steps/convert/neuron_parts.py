"""Compute wide layers of neurons in parts: what stands between two products then fits into a processor's own cache.

    down(act(gate(x)) * up(x))   ->   sum over parts of down_i(act(gate_i(x)) * up_i(x))

Each neuron goes its own way from its column of the first matrices to its row of the last one, so the numbers are those
of the whole but for the order of a sum. Where activations are rounded as they come, each part has a grid of its own,
and loses less. It pays where a layer is much wider than what it reads: elsewhere products take nearly all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome

WIDTH = 2048
"""Neurons of a part: of 128 tokens they take 1 MiB in float, which is what a core has for itself."""
_STEP = 64
"""Parts begin at multiples of it, as kernels read whole lines."""
_MATRIX = 2
_ALONE = ("Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Erf", "Relu", "Gelu", "FastGelu", "QuickGelu", "Pow")
"""Ops that compute a neuron from the same neuron."""


def split_neurons(model: Model, width: int = WIDTH, least_ratio: int = 0) -> Outcome:
    """Return the model with its wide layers in parts.

    Args:
        model: In floats.
        width: Neurons of a part, 64 or more; a part may have 64 more or less.
        least_ratio: Layers with fewer neurons than so many times what they read stay whole.
    """
    graph = Graph.from_model(model)
    split = 0
    for node in graph.nodes("MatMul"):
        rows = graph.constant(node.inputs[1])
        if rows is None or rows.ndim != _MATRIX or len(rows) <= width:
            continue
        layer = _layer_before(graph, node, len(rows))
        if layer and len(rows) >= least_ratio * _read(graph, layer, len(rows)):
            _split(graph, node, layer, width)
            split += 1
    graph.remove_unused()
    return Outcome(graph.to_model(), {"layers in parts": split}) if split else Outcome(model, {})


def _layer_before(graph: Graph, last: Node, count: int) -> list[Node]:
    """Return the nodes that make the neurons that `last` reads, first ones first; none where others take part."""
    seen, waiting = dict[Node, None](), [last.inputs[0]]
    while waiting:
        node = graph.producer(waiting.pop())
        if node is None or len(node.outputs) != 1:
            return []
        seen.pop(node, None)
        seen[node] = None
        if _makes_neurons(graph, node, count):
            continue
        inputs = [input_ for input_ in node.inputs if input_ is not None and graph.constant(input_) is None]
        stored = graph.constants(input_ for input_ in node.inputs if input_ not in inputs)
        if (
            node.op_type not in _ALONE
            or not inputs
            or stored is None
            or not all(_is_part(array, count) for array in stored)
        ):
            return []
        waiting += inputs
    layer = list(reversed(seen))
    readers = {consumer for node in layer for consumer in graph.consumers(node.outputs[0])}
    is_closed = readers <= {*layer, last} and not any(graph.is_output(node.outputs[0]) for node in layer)
    return layer if is_closed and any(_makes_neurons(graph, node, count) for node in layer) else []


def _makes_neurons(graph: Graph, node: Node, count: int) -> bool:
    columns = graph.constant(node.inputs[1]) if node.op_type == "MatMul" else None
    return columns is not None and columns.ndim == _MATRIX and columns.shape[1] == count


def _read(graph: Graph, layer: Sequence[Node], count: int) -> int:
    """Return how many numbers of a token the neurons read."""
    columns = next(graph.constant(node.inputs[1]) for node in layer if _makes_neurons(graph, node, count))
    assert columns is not None
    return len(columns)


def _is_part(stored: Array, count: int) -> bool:
    """Whether a constant is one number, or one for each neuron."""
    return stored.size == 1 or (stored.size == count and stored.shape[-1] == count)


def _split(graph: Graph, last: Node, layer: Sequence[Node], width: int) -> None:
    rows = graph.constant(last.inputs[1])
    assert rows is not None
    count = -(-len(rows) // width)
    limits = [round(i * len(rows) / count / _STEP) * _STEP for i in range(count)] + [len(rows)]
    total: Value | None = None
    for start, after in pairwise(limits):
        made = dict[Value, Value]()
        for node in (*layer, last):
            inputs: list[Value | None] = []
            for input_ in node.inputs:
                stored = graph.constant(input_)
                if input_ is None or stored is None:
                    inputs.append(made.get(input_, input_) if input_ is not None else None)
                else:
                    inputs.append(_cut(graph, input_, stored, start, after, by_row=node is last))
            attributes = {name: input_.value for name, input_ in node.attributes.items()}
            new = graph.insert(node.op_type, inputs, attributes, domain=node.domain, before=last, name=f"{node.name}")
            made[node.outputs[0]] = new.outputs[0]
        part = made[last.outputs[0]]
        added = None if total is None else graph.insert("Add", [total, part], before=last, name=f"{last.name}_sum")
        total = part if added is None else added.outputs[0]
    assert total is not None
    graph.replace(last.outputs[0], total, keep_name=True)


def _cut(graph: Graph, value: Value, stored: Array, start: int, after: int, *, by_row: bool) -> Value:
    """Return the rows, or the columns, of the neurons of a part; one number for all stays as it is."""
    if stored.size == 1:
        return value
    part = stored[start:after] if by_row else stored[..., start:after]
    return graph.add_initializer(f"{value.name}_{start}", np.ascontiguousarray(part))
