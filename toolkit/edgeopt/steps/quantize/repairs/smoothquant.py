"""Move scale from the channels of a normalised activation into the matrices that read it (SmoothQuant).

For y = LN(x; g, b) W with a scale s > 0 for each channel: y = LN(x; g / s, b / s) (diag(s) W), exactly. With a_j the
largest activation of channel j and w_j the largest weight that reads it,

    s_j = a_j^alpha / w_j^(1 - alpha)

alpha = 1/2 gives both the same range, a larger one leaves more of the difference to the weights, which have a grid
for each output channel. Changed is only what matrices alone read: a LayerNormalization, a Mul by constants, or that
and an Add of constants, the end of a normalisation in parts.
Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models,
ICML 2023, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.formats.matmul_integer import plain_products
from edgeopt.steps.quantize.patterns import name_of, reads_along
from edgeopt.steps.quantize.repairs import ModelRepair, Search, Setting

ALPHAS = (0.5, 0.25, 0.75)
"""Exponents in the order in which they are worth trying."""
_MOST = 2.0**10
"""A channel is scaled by at most this factor, so that a channel of almost nothing is not blown up to noise."""


def smooth(graph: Graph, seen: Mapping[str, Observation], alpha: float) -> int:
    """Smooth every activation that allows it, in place, and return how many.

    Args:
        graph: The float model; its outputs stay the same but for rounding.
        seen: What calibration saw of these activations, by name; those without it are left alone.
        alpha: From 0, where weights become alike, to 1, where activations do.
    """
    done = 0
    for node, readers in smoothable(graph).items():
        observation = seen.get(name_of(node.outputs[0]))
        if observation is None or not all(reads_along(graph, reader, observation.axis) for reader in readers):
            continue
        largest = np.maximum(np.abs(observation.low), np.abs(observation.high)).astype(np.float64)
        reading = np.max([np.abs(_rows(graph, reader)).max(axis=1) for reader in readers], axis=0).astype(np.float64)
        _scale(graph, node, readers, smoothing(largest, reading, alpha).astype(np.float32))
        done += 1
    return done


def smoothable(graph: Graph) -> dict[Node, list[Node]]:
    """Return the nodes whose channels can be scaled, each with the matrix products that alone read it."""
    products = set(plain_products(graph))
    result: dict[Node, list[Node]] = {}
    for node in graph.nodes("LayerNormalization", "Mul", "Add"):
        readers = graph.consumers(node.outputs[0])
        alone = readers and not graph.is_output(node.outputs[0]) and all(_reads(reader, node) for reader in readers)
        if alone and products.issuperset(readers) and _constants(graph, node):
            result[node] = readers
    return result


def smoothing(largest: NDArray[np.float64], reading: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return the scale of each channel, 1 in the geometric mean; silent and unread channels keep 1.

    Args:
        largest: Largest magnitude of each channel's activation.
        reading: Largest magnitude of the weights that read it.
        alpha: See `smooth`.
    """
    live = (largest > 0) & (reading > 0)
    scale = np.ones_like(largest)
    if live.any():
        logs = alpha * np.log(largest[live]) - (1 - alpha) * np.log(reading[live])
        limit = np.log(_MOST)
        scale[live] = np.exp(np.clip(logs - logs.mean(), -limit, limit))
    return scale


def _reads(product: Node, node: Node) -> bool:
    """Whether a product multiplies what `node` makes by a matrix, and does nothing else with it."""
    return [input_ is node.outputs[0] for input_ in product.inputs] == [True, *[False] * (len(product.inputs) - 1)]


def _constants(graph: Graph, node: Node) -> list[tuple[Node, int]]:
    """Return the inputs, one number for each channel of the last axis, that scale all that a node makes."""
    if node.op_type == "LayerNormalization":
        last = attribute(node, "axis", -1) in (-1, (graph.rank(node.inputs[0]) or 0) - 1)
        places = [(node, i) for i in range(1, len(node.inputs)) if node.inputs[i] is not None]
        return places if last and all(_is_a_channel_each(graph, other.inputs[i]) for other, i in places) else []
    split = graph.split(node)
    if split is None or not _is_a_channel_each(graph, node.inputs[split[2]]):
        return []
    if node.op_type == "Mul":
        return [(node, split[2])]
    before = graph.sole_producer(
        split[0], "Mul"
    )  # a shift alone cannot be scaled: what it is added to would have to be
    result = _constants(graph, before) if before is not None else []
    return [*result, (node, split[2])] if result else []


def _is_a_channel_each(graph: Graph, value: Value | None) -> bool:
    numbers = graph.constant(value)
    return numbers is not None and numbers.ndim == 1 and numbers.dtype == np.float32


def _rows(graph: Graph, product: Node) -> NDArray[np.float32]:
    """Return the matrix with one row for each channel that it reads."""
    weight = graph.constant(product.inputs[1])
    assert weight is not None
    return weight.T if attribute(product, "transB", 0) else weight


def _scale(graph: Graph, node: Node, readers: list[Node], scale: NDArray[np.float32]) -> None:
    for holder, place in _constants(graph, node):
        numbers = graph.constant(holder.inputs[place])
        assert numbers is not None
        graph.set_input(holder, place, numbers / scale)
    for product in readers:
        scaled = _rows(graph, product) * scale.reshape(-1, 1)
        graph.set_input(product, 1, scaled.T if attribute(product, "transB", 0) else scaled)


class SmoothQuant(ModelRepair):
    """Normalised activations are smoothed by the alpha in the setting."""

    order: ClassVar[int] = 20
    tries_first_form: ClassVar[bool] = True

    def told(self, setting: Setting) -> str:
        """Return alpha."""
        return f"smoothed by {_alpha(setting):g}"

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield each alpha: layers may leave their islands, so all are timed."""
        if smoothable(search.graph()):
            yield from ALPHAS

    def by_rule(self, search: Search) -> Setting:
        """Return the first alpha where something can be smoothed."""
        return ALPHAS[0] if smoothable(search.graph()) else False

    def edit(self, graph: Graph, seen: Mapping[str, Observation], setting: Setting, prepared: Any) -> int:
        """Smooth every activation that allows it."""
        return smooth(graph, seen, _alpha(setting))


def _alpha(setting: Setting) -> float:
    return setting if isinstance(setting, float) else 0.0


REPAIR = SmoothQuant()
