"""How much the answer suffers from one tensor alone on its grid, for a few tensors.

Local scores order tensors without running anything; this runs the float model once for each tensor, with that
tensor rounded and all else exact, so it is asked of the worst only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.keep_float.scores import sqnr_db


def sensitivities_db(
    model: Model, names: Iterable[str], affines: Mapping[str, Affine], frames: Sequence[Tensors]
) -> dict[str, float]:
    """Return the answer's SQNR with one tensor quantized at a time, worst first.

    Args:
        model: The float model, opset 13 or later.
        names: Tensors to try; those that no node reads are left out.
        affines: The grid of each.
        frames: A few real inputs.
    """
    expected = _answers(model, frames)
    result = {}
    for name in names:
        rounded = _with_one_rounded(model, name, affines[name])
        if rounded is not None:
            result[name] = sqnr_db(expected, _answers(rounded, frames) - expected)
    return dict(sorted(result.items(), key=lambda item: (item[1], item[0])))


def _with_one_rounded(model: Model, name: str, grid: Affine) -> Model | None:
    graph = Graph.from_model(model)
    value = graph.value(name)
    readers = graph.consumers(value) if value is not None else []
    if value is None or not readers:
        return None
    scale = graph.add_initializer("sensitivity_scale", np.array(grid.scale, np.float32))
    zero = graph.add_initializer("sensitivity_zero_point", np.array(grid.zero_point, grid.dtype))
    integers = graph.insert("QuantizeLinear", [value, scale, zero]).outputs[0]
    real = graph.insert("DequantizeLinear", [integers, scale, zero]).outputs[0]
    for node in readers:
        for i, input_ in enumerate(node.inputs):
            if input_ is value:
                graph.set_input(node, i, real)
    return graph.to_model()


def _answers(model: Model, frames: Sequence[Tensors]) -> NDArray[np.float32]:
    session = EXECUTOR.open(model.source, SessionOptions())
    try:
        rows = [np.asarray(value, np.float32).ravel() for frame in frames for value in session.run(frame).values()]
    finally:
        session.close()
    numbers = np.concatenate(rows)
    return np.where(np.isfinite(numbers), numbers, np.float32(0))
