"""The parent's side of the conversion: one child holds torch's exporter, which takes seconds to import, for all."""

from __future__ import annotations

import threading
from time import monotonic

import numpy as np

from edgeopt.executors._conversion.child import ConversionChild
from edgeopt.executors.executorch.kept import keep_program, kept_program
from edgeopt.graph.model import Model
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import close_at_exit

TITLE = "executorch"
_MODULE = "edgeopt.executors._worker.executorch"
_LONGEST_S = 900.0
"""A network of 100 MB on a slow machine; what takes longer hangs."""
_START_S, _NODE_S = 8.0, 0.12
"""Seconds of a child's start, which imports torch's exporter, and of each node: ten of timm's networks took 0.08 to
0.16 s a node on a busy machine."""


class _Converter:
    """Safe in threads: conversions take turns."""

    def __init__(self) -> None:
        self._child = ConversionChild(_MODULE, TITLE, "executorch")
        self._turn = threading.Lock()
        self._pace = 1.0
        """Time of the last conversion over what was expected of it."""

    def expected_s(self, model: Model) -> float:
        """Return how long the conversion of a model is expected to take here, by those before it."""
        start_s = 0.0 if self._child.is_started else _START_S
        return self._pace * (start_s + _NODE_S * len(model.proto.graph.node))

    def convert(self, model: Model) -> bytes:
        """Return a model as an ExecuTorch program. Raises as `to_program`."""
        with self._turn:
            began_s, expected_s = monotonic(), self.expected_s(model)
            # over the pipe: a file would stay behind where this process is killed
            message = Message({"do": "convert"}, {"model": np.frombuffer(model.data, np.uint8)})
            program = self._child.ask(message, longest_s=_LONGEST_S).arrays["program"].tobytes()
            self._pace *= (monotonic() - began_s) / max(expected_s, _NODE_S)
            return program

    def close(self) -> None:
        """End the child."""
        with self._turn:
            self._child.end()


_CONVERTER = _Converter()
"""The one of this process."""
close_at_exit(_CONVERTER.close)


def expected_s(model: Model) -> float:
    """Return how long a conversion is expected to take, by the model's nodes and the last one of this process."""
    return _CONVERTER.expected_s(model)


def to_program(model: Model) -> bytes:
    """Return a model as an ExecuTorch program, converted in a child, unless it was before.

    Raises:
        UnsupportedError: If it cannot be held, or its conversion hangs or dies.
        MissingDependencyError: If torch or executorch is not installed.
    """
    key = model.proto.SerializeToString(deterministic=True)
    program = kept_program(key)
    if program is None:
        program = _CONVERTER.convert(model)
        keep_program(key, program)
    return program
