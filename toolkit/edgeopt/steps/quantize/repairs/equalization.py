"""Move scale from the channels of an activation into the weights behind it, so that one grid suits all.

For y = W2 f(W1 x + b1) and any s > 0 with f(s a) = s f(a): y = (W2 S) f(S^-1 W1 x + S^-1 b1), exactly. ReLU,
LeakyReLU and no activation allow it; SiLU, sigmoid and hard-swish do not. With a_i the largest activation of
channel i and w_i the largest weight that reads it, s_i = sqrt(a_i / w_i) gives both the same range.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction, ICCV 2019,
equation 11, with the activation's range in place of the weight's as in SmoothQuant (Xiao et al., ICML 2023,
equation 4, alpha = 1/2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.patterns import has_weights, name_of, reads_along
from edgeopt.steps.quantize.repairs import ModelRepair, Search, Setting

_HOMOGENEOUS = ("Relu", "LeakyRelu")
_MOST = 2.0**6
"""A channel is scaled by at most this factor, so that a channel of almost nothing is not blown up to noise."""


def equalize(graph: Graph, seen: Mapping[str, Observation]) -> int:
    """Equalize every pair of convolutions that allows it, in place, and return how many.

    Args:
        graph: The float model; its outputs stay the same but for rounding.
        seen: What calibration saw of the tensor between two convolutions; pairs without it are left alone.
    """
    done = 0
    for first in graph.nodes("Conv"):
        second = _partner(graph, first)
        observation = (
            seen.get(name_of(second.inputs[0])) if second is not None and second.inputs[0] is not None else None
        )
        if second is None or observation is None or not has_weights(graph, first):
            continue
        if not reads_along(graph, second, observation.axis):
            continue
        activation = np.maximum(np.abs(observation.low), np.abs(observation.high)).astype(np.float64)
        _scale_pair(graph, first, second, activation)
        done += 1
    return done


def _partner(graph: Graph, first: Node) -> Node | None:
    """Return the convolution that alone reads what `first` makes, directly or through a homogeneous activation."""
    reader = graph.sole_consumer(first.outputs[0])
    if reader is not None and reader.op_type in _HOMOGENEOUS and reader.domain in ("", "ai.onnx"):
        reader = graph.sole_consumer(reader.outputs[0])
    if reader is None or reader.op_type != "Conv" or not has_weights(graph, reader):
        return None
    weight = graph.constant(reader.inputs[1])
    groups = attribute(reader, "group", 1)
    depthwise = weight is not None and groups == weight.shape[0]
    return reader if groups == 1 or depthwise else None


def _scale_pair(graph: Graph, first: Node, second: Node, activation: NDArray[np.float64]) -> None:
    before, after = graph.constant(first.inputs[1]), graph.constant(second.inputs[1])
    assert before is not None
    assert after is not None
    axis = 0 if attribute(second, "group", 1) > 1 else 1
    reading = np.abs(after).max(axis=tuple(i for i in range(after.ndim) if i != axis)).astype(np.float64)
    scale = factors(activation, reading).astype(np.float32)
    graph.set_input(first, 1, before / scale.reshape(-1, *[1] * (before.ndim - 1)))
    bias = graph.constant(first.inputs[2]) if len(first.inputs) > 2 else None
    if bias is not None:
        graph.set_input(first, 2, bias / scale)
    graph.set_input(second, 1, after * scale.reshape([-1 if i == axis else 1 for i in range(after.ndim)]))


def factors(activation: NDArray[np.float64], reading: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factor of each channel, 1 in the geometric mean; silent and unread channels keep 1."""
    live = (activation > 0) & (reading > 0)
    result = np.ones_like(activation)
    if live.any():
        logs = (np.log(activation[live]) - np.log(reading[live])) / 2
        limit = np.log(_MOST)
        result[live] = np.exp(np.clip(logs - logs.mean(), -limit, limit))
    return result


class Equalization(ModelRepair):
    """Pairs of convolutions are equalized."""

    order: ClassVar[int] = 30
    keeps_operators: ClassVar[bool] = True

    def told(self, setting: Setting) -> str:
        """Return that it is."""
        return "equalized"

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield it where a pair allows it; a rescaled model has been mended already."""
        if search.has_time("equalized") and equalize(search.graph(), search.seen) and not search.setting("rescaling"):
            yield True

    def edit(self, graph: Graph, seen: Mapping[str, Observation], setting: Setting, prepared: Any) -> int:
        """Equalize every pair that allows it."""
        return equalize(graph, seen)


REPAIR = Equalization()
