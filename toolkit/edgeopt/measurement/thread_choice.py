"""How many threads a model is worth: on a small one a second thread costs more than it brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgeopt.executors import Session
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.interleaved import compare_calls
from edgeopt.runtime.opening import opening_for
from edgeopt.system.target import Target

_SECONDS = 1.0
_WORTH = 1.05
"""All cores must be so many times as fast as one thread."""


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
    ratio = compare_calls(runs, baseline="1", seconds=_SECONDS, block=10)[str(cores)]
    for session in sessions.values():
        session.close()
    return cores if ratio.speedup >= _WORTH else 1


def _caller(session: Session, inputs: Tensors) -> Callable[[int], None]:
    def call(_: int) -> None:
        session.run(inputs)

    return call
