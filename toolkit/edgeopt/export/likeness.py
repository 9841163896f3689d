"""Whether an exported model answers as the framework does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.export.network import Network
from edgeopt.export.to_onnx import Axes, flat_outputs
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors

TOLERANCE = 1e-3
"""Error over signal, root mean square; an export in float32 stays below 1e-5."""
SAMPLES = 4
"""Inputs on which both are asked: of even seeds from 0 to 1, of odd ones normal."""
_FREE_SIZES = (0, 1, 2, -1)
"""Entries that a free axis has beyond the network's own shape, a number for each sample; the axis keeps at least 1. A
model whose axis was fixed by mistake would not run."""


@dataclass(frozen=True, slots=True)
class OutputDrift:
    """How far an output lies from the framework's, the worst of all samples."""

    name: str
    shape: tuple[int, ...]
    """Shape of the first sample."""
    drift: Drift


def compare_with_framework(
    network: Network, model: Model, outputs: Sequence[str], dynamic: Axes
) -> tuple[OutputDrift, ...]:
    """Ask the framework and ONNX Runtime the same, and return how far each output lies apart.

    Raises:
        UnsupportedError: If one lies further apart than `TOLERANCE`, or ONNX Runtime does not run the model.
    """
    asked = [_draw(network, dynamic, seed) for seed in range(SAMPLES)]
    expected = [_of_framework(network, arrays) for arrays in asked]
    session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    try:
        known = {spec.name for spec in session.inputs}  # what no output depends on is left out by the exporter
        found = [session.run({name: value for name, value in arrays.items() if name in known}) for arrays in asked]
    finally:
        session.close()
    drifts = tuple(
        OutputDrift(
            name,
            expected[0][i].shape,
            worst_drift(measure_drift({name: theirs[i]}, ours) for theirs, ours in zip(expected, found, strict=True)),
        )
        for i, name in enumerate(outputs)
    )
    for drift in drifts:
        if not drift.drift.is_within(TOLERANCE):
            raise UnsupportedError(
                f"the export of {network.name} answers differently than {network.framework}: output {drift.name} with "
                f"{drift.drift.worst_db:.0f} dB signal to noise, 60 are asked",
                remedy="make the module answer the same twice: no dropout, no random numbers, no state that stays",
            )
    return drifts


def _draw(network: Network, dynamic: Axes, seed: int) -> Tensors:
    drawn = {}
    for input_ in network.inputs:
        free = {axis: max(input_.shape[axis] + _FREE_SIZES[seed], 1) for axis in dynamic.get(input_.name, ())}
        drawn[input_.name] = input_.draw(seed, free)
    return drawn


def _of_framework(network: Network, arrays: Tensors) -> list[NDArray[Any]]:
    import torch

    try:
        with torch.no_grad():
            answer = network.module(*(torch.from_numpy(arrays[input_.name]) for input_ in network.inputs))
    except Exception as error:
        shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in arrays.items())
        lines = str(error).strip().splitlines()
        raise UnsupportedError(
            f"{network.name} does not run on inputs {shapes}: {lines[-1][:300] if lines else type(error).__name__}",
            remedy="correct --input (order, shapes, types such as ids=1x128:int64) and --dynamic",
        ) from error
    return [np.asarray(flat_output.detach().cpu()) for flat_output in flat_outputs(torch, answer)[1]]


def names_of_outputs(network: Network) -> tuple[str, ...]:
    """Return names for what the network returns: those it was given, or the answer's own.

    Raises:
        UnsupportedError: If it does not run, or returns other things than tensors.
    """
    import torch

    arrays = _draw(network, {}, 0)
    if network.outputs:
        _of_framework(network, arrays)
        return network.outputs
    _of_framework(network, arrays)
    with torch.no_grad():
        answer = network.module(*(torch.from_numpy(arrays[input_.name]) for input_ in network.inputs))
    taken = {input_.name for input_ in network.inputs}
    return tuple(f"{name}_out" if name in taken else name for name in flat_outputs(torch, answer)[0])
