"""Numbers that are put into a tensor at coordinates."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep


def _scatter_nd(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write sums over zeros at known coordinates, and a choice between them and the tensor."""
    reduction = step.attribute("reduction", "none")
    numbers = conversion.numbers(step.node, 1)
    assert numbers is not None
    shape = conversion.shape(step.inputs[0])
    sizes = np.array(shape[: numbers.shape[-1]])
    if ((numbers < -sizes) | (numbers >= sizes)).any():
        raise conversion.refuse(step.node, "of places beyond its input")
    numbers = (numbers % sizes).astype(np.int32)
    rows = numbers.reshape(-1, numbers.shape[-1])
    if reduction not in ("none", "add") or (reduction == "none" and len(np.unique(rows, axis=0)) < len(rows)):
        raise conversion.refuse(step.node, f"with reduction {reduction}, or at one place twice")
    plain = tuple(range(len(shape)))
    data = conversion.tensor(step.inputs[0], plain)
    updates = conversion.tensor(step.inputs[2], tuple(range(len(conversion.shape(step.inputs[2])))))
    places = conversion.network.constant("coordinates", numbers)
    spread = conversion.network.like(data, f"{step.outputs[0].name}_spread", shape)
    conversion.network.add("SCATTER_ND", [places, updates, conversion.integers(shape)], [spread])
    if reduction == "add":
        conversion.network.add("ADD", [data, spread], [conversion.new(step.outputs[0], plain)])
        return
    written = np.zeros(shape, bool)
    written[tuple(rows.T)] = True
    mask = conversion.network.constant(f"{step.node.name}_written", written)
    conversion.network.add("SELECT_V2", [mask, spread, data], [conversion.new(step.outputs[0], plain)])


OPS = {"ScatterND": _scatter_nd}
