"""How a session runs a model fastest: on how many threads, and whether every tensor has a buffer of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns, thread_time_ns

import numpy as np

from edgeopt.executors import Session
from edgeopt.executors.onnxruntime import MEMORY_REUSE
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.interleaved import compare_calls
from edgeopt.runtime.opening import opening_for
from edgeopt.system.target import Target

_THREADS_SECONDS = 1.0
_THREADS_WORTH = 1.05
"""All cores must be so many times as fast as one thread."""
_BUFFERS_SECONDS = 2.0
_BUFFERS_WORTH = 1.01
"""Buffers of their own must be proven so many times as fast: noise decides nothing."""
_APART: Mapping[str, str] = {MEMORY_REUSE: "0"}


def choose_threads(model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], cores: int) -> int:
    """Return `cores`, or 1 where they are not faster than one thread.

    Args:
        model: As it came.
        target: Its providers and options.
        shapes: Static shape of each input.
        cores: Physical cores that this process may use.
    """
    if cores < 2:
        return 1
    inputs = {one.name: np.full(shapes[one.name], 0.5).astype(one.dtype) for one in model.inputs}
    sessions = {count: opening_for(target, target.float_precision, count).open(model.data) for count in (1, cores)}
    runs = {str(count): _caller(session, inputs) for count, session in sessions.items()}
    ratio = compare_calls(runs, baseline="1", seconds=_THREADS_SECONDS, block=10)[str(cores)]
    for session in sessions.values():
        session.close()
    return cores if ratio.speedup >= _THREADS_WORTH else 1


def _caller(session: Session, inputs: Tensors) -> Callable[[int], None]:
    def call(_: int) -> None:
        session.run(inputs)

    return call


class Buffers:
    """The session entries with which a search opens its models: chosen by its first one, the same for all."""

    def __init__(self, target: Target, threads: int, inputs: Tensors) -> None:
        self._target, self._threads, self._inputs = target, threads, inputs
        self._chosen: Mapping[str, str] | None = None

    @property
    def entries(self) -> Mapping[str, str]:
        """What was chosen; nothing before the first model."""
        return self._chosen or {}

    def choose(self, model: Model) -> None:
        """Choose by this model, unless one came before it."""
        if self._chosen is None:
            self._chosen = choose_buffers(model, self._target, self._threads, self._inputs)


def choose_buffers(model: Model, target: Target, threads: int, inputs: Tensors) -> Mapping[str, str]:
    """Return the session entries with which the model is faster: none, or those that give each tensor a buffer.

    ONNX Runtime reuses buffers of tensors that are no longer read. On some models that costs more than it saves: what
    is written last is then often what must leave the cache first.

    Args:
        model: Any that ONNX Runtime runs.
        target: Its providers and options; of another executor or device nothing is chosen.
        threads: Of the engine.
        inputs: Real ones.
    """
    if target.executor != "onnxruntime" or target.device != "cpu" or MEMORY_REUSE in target.options:
        return {}
    shared = opening_for(target, target.float_precision, threads)
    openings = {"shared": shared, "apart": shared.with_entries(_APART)}
    sessions = {name: one.open(model.data) for name, one in openings.items()}
    runs = {name: _caller(session, inputs) for name, session in sessions.items()}
    clock = thread_time_ns if threads == 1 else perf_counter_ns
    ratio = compare_calls(runs, baseline="shared", seconds=_BUFFERS_SECONDS, block=3, clock=clock)["apart"]
    for session in sessions.values():
        session.close()
    return _APART if ratio.low >= _BUFFERS_WORTH else {}
