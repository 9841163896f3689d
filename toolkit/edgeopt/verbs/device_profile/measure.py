"""The times of a network's layers on an engine, each as it runs inside its network, and the time of the whole.

A layer that runs alone has cold caches and other layouts at its ends; inside its network it has what it has in a model
of the user's. The engine's own profile tells the time of each node; nodes that the engine added belong to the layer
before them. What profiling itself costs a node is taken off, and the layers of a network are brought to add up to the
time of the whole, which is measured without a profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import onnx

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._checked import probe
from edgeopt.steps._context import Engine
from edgeopt.steps._device_times.features import BORDERS, LayerFeatures, border_of, features_of
from edgeopt.steps._device_times.forms import FormLayers, layers_of_form
from edgeopt.steps._device_times.prediction import model_shapes
from edgeopt.steps.prune.integer_layers import integer_model
from edgeopt.steps.prune.latency_table import NodeTime, profiled_runs
from edgeopt.steps.quantize.judges import own_clock

INTEGERS = "w8a8"
_WARM_RUNS, _LEAST_RUNS, _SECONDS = 2, 5, 0.25
_TENSOR = re.compile(r"(?<![A-Za-z0-9])[tx]\d+")
"""A name of `with_plain_names`, after which engines call what they make of a node."""
_PROFILING_US = tuple(step / 4 for step in range(33))
"""Microseconds that profiling may cost a node, up to 8."""
_LEAST_SHARE = 0.1
"""Share of a profiled time that is left at least, whatever profiling costs."""
_LEAST_MS = 2e-5


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """A layer inside its network."""

    features: LayerFeatures
    profiled_ms: float
    nodes: int
    """Nodes of the engine that compute it."""
    is_kept: bool = True
    """Whether its time is one of the precision: a layer of an INT8 form that stays in float is not."""

    def ms(self, profiling_ms: float) -> float:
        """Return its time where profiling costs a node so much."""
        least_ms = max(_LEAST_SHARE * self.profiled_ms, _LEAST_MS)
        return max(self.profiled_ms - profiling_ms * self.nodes, least_ms)


@dataclass(frozen=True, slots=True)
class ProfiledNetwork:
    """A network that ran."""

    name: str
    layers: tuple[ProfiledLayer, ...]
    """Those of an INT8 form come with the passes between them."""
    form: FormLayers | None
    """Its layers as its graph tells them without a run; None: it is in float, and they are those that ran."""
    whole_ms: float
    """Median of whole runs, without a profile."""

    def scaled(self, profiling_ms: float) -> list[tuple[LayerFeatures, float]]:
        """Return features and milliseconds of each layer of the precision; all together take as long as the whole."""
        times = [layer.ms(profiling_ms) for layer in self.layers]
        factor = self.whole_ms / math.fsum(times)
        timed = zip(self.layers, times, strict=True)
        return [(layer.features, took_ms * factor) for layer, took_ms in timed if layer.is_kept]


def profile_network(model: Model, engine: Engine, precision: str) -> ProfiledNetwork:
    """Return the times of a network's layers.

    Args:
        model: With fixed shapes and the names of `with_plain_names`.
        engine: One whose profile tells the times of nodes.
        precision: `w8a8` runs the first INT8 form by the target's rules, its grids fitted to random numbers.

    Raises:
        EdgeoptError: If the engine does not run it.
    """
    shapes, inputs = model_shapes(model), probe(model.inputs)
    form = integer_model(model, [inputs], engine.target) if precision.startswith(INTEGERS) else model
    owners = {node.output[0]: place for place, shape in enumerate(shapes) for node in shape.layer.nodes}
    own_turns = {node.output[0] for shape in shapes for node in shape.layer.nodes if node.op_type == "Transpose"}
    elements = {name: math.prod(sizes) for shape in shapes for name, sizes in shape.sizes.items()}
    times, nodes, last, borders = [0.0] * len(shapes), [0] * len(shapes), 0, list[ProfiledLayer]()
    for name, op, took_ms in _least(profiled_runs(form, inputs, engine, precision)):
        match = _TENSOR.search(name)
        tensor = match[0] if match else ""
        if form is not model and op in BORDERS and tensor in elements and tensor not in own_turns:
            borders.append(ProfiledLayer(border_of(op, elements[tensor]), took_ms, 1))
            continue
        last = owners.get(tensor, last)
        times[last] += took_ms
        nodes[last] += 1
    parts = layers_of_form(shapes, form) if form is not model else None
    in_float = parts.float_places if parts else frozenset[int]()
    layers = [
        ProfiledLayer(features_of(shape), times[place], nodes[place], place not in in_float)
        for place, shape in enumerate(shapes)
    ]
    return ProfiledNetwork(model.name, (*layers, *borders), parts, whole_ms(form, inputs, engine, precision))


def whole_ms(model: Model, inputs: Tensors, engine: Engine, precision: str) -> float:
    """Return the median time of a run."""
    session, clock = engine.open(model, precision), own_clock(engine.target, engine.threads)
    try:
        for _ in range(_WARM_RUNS):
            session.run(inputs)
        took_ns, begun_ns = list[int](), clock()
        while len(took_ns) < _LEAST_RUNS or clock() - begun_ns < _SECONDS * 1e9:
            before_ns = clock()
            session.run(inputs)
            took_ns.append(clock() - before_ns)
    finally:
        session.close()
    return median(took_ns) / 1e6


def profiling_ms(networks: Sequence[ProfiledNetwork]) -> float:
    """Return what profiling costs a node: with it off, layers add up to wholes most evenly."""

    def unevenness(cost_us: float) -> float:
        sums = [math.fsum(layer.ms(cost_us / 1e3) for layer in network.layers) for network in networks]
        return float(np.std([math.log(network.whole_ms / ms) for network, ms in zip(networks, sums, strict=True)]))

    return min(_PROFILING_US, key=unevenness) / 1e3


def with_plain_names(model: Model) -> Model:
    """Return a model whose tensors are called by number, so that a profile tells which layer a node belongs to.

    Raises:
        UnsupportedError: If it has branches or loops.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph, names = proto.graph, {"": ""}
    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        raise UnsupportedError(f"{model.name} has branches or loops", remedy="leave it out")
    names |= {each.name: f"c{place}" for place, each in enumerate(graph.initializer)}
    names |= {each.name: f"x{place}" for place, each in enumerate(graph.input) if each.name not in names}
    for node in graph.node:
        names |= {name: f"t{len(names) + place}" for place, name in enumerate(node.output) if name}
        if node.output:
            node.name = names[node.output[0]]
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    for each in (*graph.initializer, *graph.input, *graph.output):
        each.name = names[each.name]
    del graph.value_info[:]
    return Model(proto, model.name)


def _least(runs: Sequence[Sequence[NodeTime]]) -> list[NodeTime]:
    """Return each node with its least time, in the order in which they ran; the first run warms up."""
    later = [run for run in runs[1:] if len(run) == len(runs[1])]
    least = np.array([[took_ms for _, _, took_ms in run] for run in later]).min(axis=0)
    return [(name, op, float(took_ms)) for (name, op, _), took_ms in zip(later[0], least, strict=True)]
