"""How long layers take on an engine, by their shape: measured when first asked for, many in one model.

Each layer is a branch of one model that the engine runs under its own profile, so that what is counted is the layer's
kernels and not the changes of layout around a layer that stands alone. Whatever else the machine does only adds time:
the least of the runs counts, and a restless machine gets more of them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime import EXECUTOR as ONNXRUNTIME
from edgeopt.executors.openvino import EXECUTOR as OPENVINO
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._context import Engine
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.steps.prune.integer_layers import integer_layers
from edgeopt.steps.prune.network.layer_shapes import Branch, LayerShape, model_of

Stopwatch: TypeAlias = Callable[[Sequence[LayerShape]], Sequence[float]]
"""Times layers, in milliseconds each."""
NodeTime: TypeAlias = tuple[str, str, float]
"""Name, op and milliseconds of a node of the engine's own graph."""

_RUNS = 8
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 5
_ALIKE, _GRAIN_MS, _CALM = 0.05, 0.001, 0.9
"""A time is believed where the two least are so alike; rounds go on until so many layers' times are."""
_MOST_BYTES = 2**28
"""Most bytes of the numbers that one model of branches reads, makes and holds."""
_PREFIX, _KERNEL = "L", "_kernel_time"


class LatencyTable:
    """Milliseconds of layers by their shape."""

    def __init__(self, stopwatch: Stopwatch, known: Mapping[str, float] | None = None) -> None:
        """Open a table.

        Args:
            stopwatch: Asked for shapes that are not known yet.
            known: Milliseconds by key; see `LayerShape.key`.
        """
        self._stopwatch = stopwatch
        self._known = dict(known or {})

    @property
    def known(self) -> Mapping[str, float]:
        """The measurements so far, in milliseconds by key."""
        return self._known

    def prepare(self, shapes: Iterable[LayerShape]) -> None:
        """Measure all shapes that are not known, together."""
        missing = {shape.key: shape for shape in shapes if shape.key not in self._known}
        if missing:
            times = self._stopwatch([*missing.values()])
            self._known.update(zip(missing, times, strict=True))

    def ms(self, shape: LayerShape) -> float:
        """Return one layer's time, in milliseconds."""
        self.prepare([shape])
        return self._known[shape.key]


def multiply_adds(shapes: Sequence[LayerShape]) -> Sequence[float]:
    """Return the layers' multiply-adds in millions: what stands for time where the target is not here."""
    return [shape.multiply_adds / 1e6 for shape in shapes]


def profiled_runs(model: Model, inputs: Tensors, engine: Engine, precision: str) -> Sequence[Sequence[NodeTime]]:
    """Return what an engine tells of each node, run by run, the first one to warm up.

    Args:
        model: With weights and shapes.
        inputs: Of each run.
        engine: One that `can_time`.
        precision: In which it is opened.
    """
    return _RUNNERS[engine.target.executor](model, inputs, engine, precision)


def can_time(engine: Engine) -> bool:
    """Whether an engine tells the times of single layers: on a GPU those of its queue are told."""
    return engine.target.executor in _RUNNERS and engine.target.device == "cpu"


def predicted_stopwatch(predictor: Predictor) -> Stopwatch:
    """Return what tells layers' times, in milliseconds, as those of a device that is not here predict them."""
    return lambda shapes: [predictor.layer_ms(shape) for shape in shapes]


def stopwatch_of(engine: Engine, precision: str) -> Stopwatch:
    """Return what times layers on an engine.

    Args:
        engine: One that runs here, and `can_time`.
        precision: In which the model will run: `w8a8` times layers on integers, by the target's rules.
    """
    runner = _RUNNERS[engine.target.executor]

    def times(shapes: Sequence[LayerShape]) -> list[float]:
        return [time for some in _portions(shapes) for time in _times(some, engine, precision, runner)]

    return times


_Runner: TypeAlias = Callable[[Model, Tensors, Engine, str], Sequence[Sequence[NodeTime]]]
"""Returns what an engine tells of each node, run by run."""


def _times(shapes: Sequence[LayerShape], engine: Engine, precision: str, runner: _Runner) -> list[float]:
    """Return the layers' times; one that the engine does not take alone counts nothing."""
    try:
        return _together(shapes, engine, precision, runner)
    except EdgeoptError:
        if len(shapes) == 1:
            return [0.0]
        half = len(shapes) // 2
        return [ms for some in (shapes[:half], shapes[half:]) for ms in _times(some, engine, precision, runner)]


def _together(shapes: Sequence[LayerShape], engine: Engine, precision: str, runner: _Runner) -> list[float]:
    """Return the layers' times together; for INT8 of each the faster form, as a search leaves slower ones in float."""
    if not precision.startswith("w8a8"):
        return _measured(shapes, engine, precision, runner)
    ways = [_measured(shapes, engine, name, runner) for name in (precision, engine.target.float_precision)]
    return [min(pair) for pair in zip(*ways, strict=True)]


def _measured(shapes: Sequence[LayerShape], engine: Engine, precision: str, runner: _Runner) -> list[float]:
    branches = [shape.branch(f"{_PREFIX}{i}/") for i, shape in enumerate(shapes)]
    model, inputs = model_of(branches, shapes[0].opset), _inputs(branches)
    if precision.startswith("w8a8"):
        model = integer_layers(model, engine.target)
    rows = list[list[float]]()
    for done in range(1, _MOST_ROUNDS + 1):
        rows += [_of_branches(run, shapes) for run in runner(model, inputs, engine, precision)[1:]]
        least = np.sort(np.array(rows), axis=0)
        is_calm = least[1] <= least[0] * (1 + _ALIKE) + _GRAIN_MS
        if done >= _LEAST_ROUNDS and is_calm.mean() >= _CALM:
            break
    return [float(value) for value in least[0]]


def _inputs(branches: Sequence[Branch]) -> Tensors:
    chance = np.random.default_rng(0)
    sizes = {name: shape for branch in branches for name, shape in branch.inputs.items()}
    return {name: chance.standard_normal(shape, np.float32) for name, shape in sizes.items()}


def _portions(shapes: Sequence[LayerShape]) -> Iterator[Sequence[LayerShape]]:
    """Yield the shapes in parts whose models fit into memory."""
    portion, held = list[LayerShape](), 0
    for shape in shapes:
        if portion and held + shape.bytes > _MOST_BYTES:
            yield portion
            portion, held = [], 0
        portion.append(shape)
        held += shape.bytes
    if portion:
        yield portion


def _in_onnxruntime(model: Model, inputs: Tensors, engine: Engine, precision: str) -> list[list[NodeTime]]:
    """Return the nodes' times of each run, from ONNX Runtime's profile."""
    options = engine.opening(precision).with_entries(engine.entries).options
    with tempfile.TemporaryDirectory() as folder:
        session = ONNXRUNTIME.open(model.source, replace(options, profile_to=str(Path(folder) / "layers")))
        try:
            for _ in range(_RUNS + 1):
                session.run(inputs)
            events = json.loads(session.end_profiling().read_text("utf-8"))
        finally:
            session.close()
    runs: list[list[NodeTime]] = [[] for _ in range(_RUNS + 1)]
    seen: Counter[str] = Counter()
    for event in events:
        name = str(event["name"])
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            runs[seen[name]].append((name.removesuffix(_KERNEL), str(event["args"]["op_name"]), event["dur"] / 1e3))
            seen[name] += 1
    return runs


def _in_openvino(model: Model, inputs: Tensors, engine: Engine, precision: str) -> list[list[NodeTime]]:
    """Return the nodes' times of each run, as OpenVINO counts them."""
    opening = engine.opening(precision).with_entries({**engine.entries, "PERF_COUNT": "YES"})
    session = OPENVINO.open(model.source, opening.options)
    runs = list[list[NodeTime]]()
    try:
        for _ in range(_RUNS + 1):
            session.run(inputs)
            runs.append([(node_time.name, node_time.op, node_time.time_ns / 1e6) for node_time in session.node_times()])
    finally:
        session.close()
    return runs


_RUNNERS: Mapping[str, _Runner] = {"onnxruntime": _in_onnxruntime, "openvino": _in_openvino}
_BORDERS = frozenset({"ReorderInput", "ReorderOutput", "Reorder", "QuantizeLinear", "DequantizeLinear", "FakeQuantize"})
"""Ops that only change what lies at a layer's ends: in a whole model layers hand over as they compute."""
_TURNS = "Transpose"
"""The same, unless the layer itself is such an op: integer forms compute with channels last."""


def _of_branches(run: Sequence[NodeTime], shapes: Sequence[LayerShape]) -> list[float]:
    """Return the milliseconds of the branches in one run, without what happens at their ends."""
    of_branches = [0.0] * len(shapes)
    for name, op, took_ms in run:
        place, _, rest = name.removeprefix(_PREFIX).partition("/")
        if not (name.startswith(_PREFIX) and rest and place.isdecimal()) or op in _BORDERS:
            continue
        if op != _TURNS or shapes[int(place)].layer.nodes[0].op_type == _TURNS:
            of_branches[int(place)] += took_ms
    return of_branches
