"""Choose the layers that are faster in float, borders counted.

Every layer is on one of two sides, integers with channels last or float with channels second. A layer costs its
measured time on its side; a tensor between two sides costs a change of layout, once. The cheapest assignment is
a minimum cut. What lies between layers costs the same on both sides: elementwise ops go with what they read, and
an op of several tensors can only be on the integer side where all it reads is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Set
from typing import TypeVar

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime
from edgeopt.steps.quantize.patterns import WEIGHTED, has_weights, key, name_of
from edgeopt.steps.quantize.scheme import data_inputs

T = TypeVar("T", bound=Hashable)


def minimum_cut(capacities: Mapping[tuple[T, T], int], source: T, sink: T) -> set[T]:
    """Return the nodes on the source's side of a cheapest cut.

    Args:
        capacities: (from, to) -> what it costs to have `from` on the source's side and `to` on the sink's, not
            below 0.
        source: A node on the one side.
        sink: A node on the other.
    """
    left: dict[T, dict[T, int]] = {source: {}, sink: {}}
    for (start, end), capacity in capacities.items():
        left.setdefault(start, {})[end] = left.get(start, {}).get(end, 0) + capacity
        left.setdefault(end, {}).setdefault(start, 0)
    while (came_from := _reached(left, source)).get(sink) is not None:
        path, node = [], sink
        while (before := came_from[node]) is not None:
            path.append((before, node))
            node = before
        flow = min(left[start][end] for start, end in path)
        for start, end in path:
            left[start][end] -= flow
            left[end][start] += flow
    return set(came_from)


def _reached(left: Mapping[T, Mapping[T, int]], source: T) -> dict[T, T | None]:
    """Return the nodes that the source still reaches, and from where; shortest ways first."""
    came_from: dict[T, T | None] = {source: None}
    ahead = deque([source])
    while ahead:
        node = ahead.popleft()
        for end, capacity in left[node].items():
            if capacity > 0 and end not in came_from:
                came_from[end] = node
                ahead.append(end)
    return came_from


_FLOAT, _INTEGER = "(float)", "(integer)"
_NEVER = 10**15
_NOT_FOLDED = 2
"""Passes that a change of layout costs where several layers read it: ONNX Runtime folds a Transpose into the
convolution behind it only if that reads it alone, so a pass stands between them (`forms.Forms.nchw`)."""
_WORTH = 0.01
"""Share of the integer layers' time that float layers must save together: the profile is no finer."""


def fastest_float(graph: Graph, times: Mapping[str, LayerTime], border: BorderTime) -> tuple[set[Node], int]:
    """Return the weighted nodes that are cheapest in float, and the nanoseconds saved against all integers.

    Args:
        graph: The float model, with shapes.
        times: Both times of each layer, by key; layers without one follow their neighbours.
        border: What a change of layout costs.
    """
    costs = _costs(graph, times, border)
    float_side = minimum_cut(costs, _FLOAT, _INTEGER)
    all_integer = _cost(costs, {_FLOAT, *(name_of(value) for value in graph.inputs)})
    saved = all_integer - _cost(costs, float_side)
    chosen = {node for node in graph.nodes(*WEIGHTED) if key(node) in float_side and has_weights(graph, node)}
    return (chosen, saved) if saved > _WORTH * all_integer else (set(), 0)


def _cost(costs: Mapping[tuple[str, str], int], side: Set[str]) -> int:
    return sum(cost for (start, end), cost in costs.items() if start in side and end not in side)


def _costs(graph: Graph, times: Mapping[str, LayerTime], border: BorderTime) -> dict[tuple[str, str], int]:
    costs: dict[tuple[str, str], int] = {}
    for value in graph.inputs:
        costs[_FLOAT, name_of(value)] = _NEVER
    for node in graph.nodes():
        name, layer_time = key(node), times.get(key(node))
        if layer_time is not None:
            costs[_FLOAT, name] = layer_time.integer_ns  # paid where the layer is on the integer side
            costs[name, _INTEGER] = layer_time.float_ns
        for value in data_inputs(graph, node) if node.op_type in WEIGHTED else _read(graph, node):
            _connect(graph, costs, node, value, border)
    return costs


def _read(graph: Graph, node: Node) -> list[Value]:
    return [input_ for input_ in node.inputs if input_ is not None and graph.constant(input_) is None]


def _connect(graph: Graph, costs: dict[tuple[str, str], int], node: Node, value: Value, border: BorderTime) -> None:
    """Let a border before `node` cost what moving `value` costs, once for all of its readers."""
    maker = graph.producer(value)
    made, name = (key(maker) if maker is not None else name_of(value)), key(node)
    if node.op_type not in WEIGHTED:
        costs[made, name] = _NEVER  # a float part makes the whole float
        if len(_read(graph, node)) == 1:
            costs[name, made] = _NEVER
            return
    cost = border.of(graph.shape(value))
    several = sum(reader.op_type in WEIGHTED for reader in graph.consumers(value)) > 1
    into_integers, into_float = f"{name_of(value)} (last)", f"{name_of(value)} (second)"
    costs[made, into_integers] = cost
    costs[into_float, made] = cost * (_NOT_FOLDED if several else 1)
    costs.setdefault((into_integers, name), _NEVER)
    costs.setdefault((name, into_float), _NEVER)


# Choose the layers at the entrance of a model that are faster in float.
#
# A layer in float amid integers pays two borders. A run of layers from the input on pays one only, so the best run is
# the prefix whose saved time is largest.

_FRONT_WORTH = 0.02
"""Share of the integer layers' time that a longer front must save: the profile is no finer."""


def fastest_front(graph: Graph, times: Mapping[str, LayerTime]) -> tuple[set[Node], int]:
    """Return the weighted nodes of the best prefix, and the nanoseconds that it saves.

    Args:
        graph: The float model.
        times: Both times of each layer, by key; layers without one count as equal.
    """
    saved, best, length = 0, 0, 0
    order = graph.nodes(*WEIGHTED)
    least = int(_FRONT_WORTH * sum(time.integer_ns for time in times.values()))
    for i, node in enumerate(order):
        layer_time = times.get(key(node))
        saved += layer_time.integer_ns - layer_time.float_ns if layer_time is not None else 0
        if saved > max(best, least):
            best, length = saved, i + 1
    return set(order[:length]), best
