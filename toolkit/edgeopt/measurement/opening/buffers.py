"""Whether a session is faster where every tensor has a buffer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns, thread_time_ns

from edgeopt.executors.onnxruntime import MEMORY_REUSE
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import Target

_SECONDS = 2.0
_WORTH = 1.01
"""Buffers of their own must be proven so many times as fast: noise decides nothing."""
_APART: Mapping[str, str] = {MEMORY_REUSE: "0"}


class Buffers:
    """The session entries with which a search opens its models: chosen by its first one, the same for all."""

    def __init__(self, target: Target, threads: int, inputs: Tensors) -> None:
        self._target, self._threads, self._inputs = target, threads, inputs
        self._chosen: Mapping[str, str] | None = None

    @property
    def entries(self) -> Mapping[str, str]:
        """The chosen entries; nothing before the first model."""
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
        model: Any that ONNX Runtime runs; for one whose weights lie outside nothing is chosen, as memory holds one
            session at a time.
        target: Its providers and options; of another executor or device nothing is chosen.
        threads: Of the engine.
        inputs: Real ones.
    """
    if model.is_outside or target.executor != "onnxruntime" or target.device != "cpu" or MEMORY_REUSE in target.options:
        return {}
    shared = opening_for(target, target.float_precision, threads)
    openings = {"shared": shared, "apart": shared.with_entries(_APART)}
    sessions = {name: opening.open(model.source) for name, opening in openings.items()}
    runs = {name: call_of(session, inputs) for name, session in sessions.items()}
    clock = thread_time_ns if threads == 1 else perf_counter_ns
    ratio = compare_calls(runs, baseline="shared", seconds=_SECONDS, block=3, clock=clock)["apart"]
    for session in sessions.values():
        session.close()
    return _APART if ratio.low >= _WORTH else {}
