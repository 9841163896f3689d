"""Ignore errors that the next activation erases: both the dense output and the pruned one clip to the same value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from edgeopt.graph.model import Model
from edgeopt.steps.prune.repair._fit import Goal

Rows = NDArray[np.float32]
_STEEPEST = 1.21
"""The greatest square of the slope of x * sigmoid(x)."""


def relu(fitted: Rows, dense: Rows) -> Rows:
    """Return the dense outputs; where they are below zero, what was fitted, if that is too."""
    return np.where(dense > 0, dense, np.minimum(fitted, 0))


def silu(fitted: Rows, dense: Rows) -> Rows:
    """Return what was fitted, one step of steepest descent closer to the dense outputs behind x * sigmoid(x)."""
    gate, dense_gate = (1 / (1 + np.exp(-np.clip(array, -60, 60))) for array in (fitted, dense))
    slope = gate * (1 + fitted * (1 - gate))
    return np.asarray(fitted - slope * (fitted * gate - dense * dense_gate) / _STEEPEST, np.float32)


def goals_of(model: Model) -> Mapping[str, Goal]:
    """Return what to fit, by the name of a tensor that nothing but an activation reads: Relu, or Sigmoid and Mul."""
    readers: dict[str, list[NodeProto]] = {}
    for node in model.proto.graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    outputs = {value_info.name for value_info in model.proto.graph.output}
    goals: dict[str, Goal] = {}
    for name, nodes in readers.items():
        ops = sorted(other.op_type for other in nodes)
        if name in outputs:
            continue
        if ops == ["Relu"]:
            goals[name] = relu
        elif ops == ["Mul", "Sigmoid"]:
            product, gate = sorted(nodes, key=lambda other: other.op_type)
            if gate.output[0] in product.input and len(readers[gate.output[0]]) == 1:
                goals[name] = silu
    return goals
