"""How long each weighted layer takes in float and on integers.

The times come from operator profiles of two twins. Profiling slows every node by about a microsecond, so
these times rank layers; a candidate is judged by its own run.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.graph import Graph, Node
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.patterns import WEIGHTED, key, name_of
from edgeopt.steps.quantize.scheme import open_graph

_KERNEL = "_kernel_time"
_SUFFIXES = (_KERNEL, "_nchwc", "_QLinearConv", "_MatMulIntegerToFloat")
_RUNS, _ROUNDS = 8, 5
_CALL_NS, _ELEMENT_NS = 4000.0, 0.1
"""Time of a pass over a tensor, a call and an element, where a model has too few to fit: measured on a Zen 5 core under
the profiler."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer both ways, in nanoseconds; integers include what changes numbers at both its ends."""

    float_ns: int
    integer_ns: int


@dataclass(frozen=True, slots=True)
class BorderTime:
    """The cost of one more pass over a tensor: so much a call and so much an element, in nanoseconds."""

    call_ns: float
    element_ns: float

    def of(self, shape: tuple[int, ...] | None) -> int:
        """Return the time for a tensor; one of unknown shape costs a call."""
        return round(self.call_ns + self.element_ns * math.prod(shape or (0,)))


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """All layers of one model, by key, and the border between two of them."""

    layers: Mapping[str, LayerTime]
    border: BorderTime
    rounds: tuple[LayerTimes, ...] = ()
    """The same, each from one round of measuring alone: how far they differ is noise."""


LayerTimer: TypeAlias = Callable[[Model, Model, Tensors, int], LayerTimes]
"""Tells the times of layers, as `time_layers`."""


def profile_ns(model: Model, frame: Tensors, *, threads: int = 1, runs: int = _RUNS) -> dict[str, int]:
    """Return the time of each node of the engine's own graph, by its name: the least of `runs`.

    Whatever else the machine does only adds time.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = SessionOptions(threads=threads, profile_to=str(Path(folder) / "profile"))
        session = EXECUTOR.open(model.source, options)
        for _ in range(runs):
            session.run(frame)
        events = json.loads(session.end_profiling().read_text("utf-8"))
        session.close()
    times = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            times[event["name"]].append(int(event["dur"]) * 1000)
    return {name: min(each) for name, each in times.items()}


def time_layers(model: Model, twin: Model, frame: Tensors, threads: int) -> LayerTimes:
    """Return the time of each layer in float and on integers, and of a border between them.

    Args:
        model: The float model.
        twin: Its first NHWC variant.
        frame: One real input.
        threads: Of the engine.
    """
    graph, least = open_graph(model), [dict[str, int](), dict[str, int]()]
    rounds: list[LayerTimes] = []
    for _ in range(_ROUNDS):  # in turns, so that a slow minute of the machine hits both
        both = [profile_ns(other, frame, threads=threads) for other in (model, twin)]
        rounds.append(times_of_profiles(graph, *both))
        for known, times in zip(least, both, strict=True):
            known |= {name: min(took_ns, known.get(name, took_ns)) for name, took_ns in times.items()}
    return replace(times_of_profiles(graph, *least), rounds=tuple(rounds))


def times_of_profiles(graph: Graph, float_ns: Mapping[str, int], integer_ns: Mapping[str, int]) -> LayerTimes:
    """Return the times of layers and of a border, as `layer_times` and `border_time` read them of two profiles."""
    return LayerTimes(layer_times(graph, float_ns, integer_ns), border_time(graph, integer_ns))


def layer_times(graph: Graph, float_ns: Mapping[str, int], integer_ns: Mapping[str, int]) -> dict[str, LayerTime]:
    """Return the times of the weighted layers that both profiles show, by key.

    Args:
        graph: The float model.
        float_ns: Profile of the float model.
        integer_ns: Profile of its integer twin, as `place_nhwc` names the nodes.
    """
    plain, lowered = _by_layer(graph, float_ns), _by_layer(graph, integer_ns)
    result = {}
    for node in graph.nodes(*WEIGHTED):
        name = key(node)
        if name in plain and name in lowered:
            result[name] = LayerTime(plain[name], lowered[name] + _border_ns(graph, node, integer_ns))
    return result


def border_time(graph: Graph, integer_ns: Mapping[str, int]) -> BorderTime:
    """Return what one more pass over a tensor costs here, fitted to the QuantizeLinear nodes of a profile.

    Args:
        graph: The float model, with shapes.
        integer_ns: Profile of its integer twin, as `place_nhwc` names the nodes.
    """
    values = {name_of(value): value for node in graph.nodes() for value in node.outputs}
    seen = [
        (math.prod(shape), integer_ns[f"{name}_quantize{_KERNEL}"])
        for name, value in values.items()
        if f"{name}_quantize{_KERNEL}" in integer_ns and (shape := graph.shape(value)) is not None
    ]
    if len({size for size, _ in seen}) < 2:
        return BorderTime(_CALL_NS, _ELEMENT_NS)
    sizes, times = np.array(seen, np.float64).T
    slope = float(np.cov(sizes, times, ddof=0)[0, 1] / sizes.var())
    slope = max(slope, 0.0)
    return BorderTime(max(float(times.mean() - slope * sizes.mean()), 0.0), slope)


def border_profile(times_ns: Mapping[str, int]) -> dict[str, int]:
    """Return times of passes over tensors, by node as `place_nhwc` names them, as a profile would hold them."""
    return {f"{name}{_KERNEL}": time_ns for name, time_ns in times_ns.items()}


def _border_ns(graph: Graph, node: Node, times: Mapping[str, int]) -> int:
    """Return the time of the conversions that this layer causes; a shared input is shared out."""
    source, made = node.inputs[0], node.outputs[0]
    if source is None:
        return 0
    entering = times.get(f"{source.name}_quantize{_KERNEL}", 0) // max(1, len(graph.consumers(source)))
    return entering + times.get(f"{made.name}_dequantize{_KERNEL}", 0)


def _by_layer(graph: Graph, times: Mapping[str, int]) -> dict[str, int]:
    """Return times by layer key; an engine names a fused node after what it makes, or after the original node."""
    weighted = graph.nodes(*WEIGHTED)
    owners = {str(node.name): key(node) for node in weighted} | {key(node): key(node) for node in weighted}
    for node in weighted:
        follower = graph.sole_consumer(node.outputs[0])
        if follower is not None:
            owners.setdefault(key(follower), key(node))
    result = {}
    for name, time_ns in times.items():
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        if name in owners:
            result[owners[name]] = time_ns
    return result
