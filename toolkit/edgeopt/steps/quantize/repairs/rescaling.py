"""Divide a tensor that one grid cannot hold by a scale for each channel, and keep the scales in the weights.

For any tensor t and any s > 0, whatever activation lies before or behind it:

    read by convolutions     W t = (W S)(S^-1 t)                   a Mul by 1 / s before them, S in all their weights
    made by a convolution    W x + b = S (S^-1 W x + S^-1 b)       S^-1 in weights and bias, a Mul by s behind it

What is rounded then is S^-1 t, whose channels are alike. Equalization needs no Mul, but an activation that lets a
scale pass; SiLU does not. A QuantizeLinear with a scale for each channel would need no Mul either, but ONNX Runtime
runs it a hundred times slower once its layout is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.patterns import channel_axis, has_weights, name_of
from edgeopt.steps.quantize.repairs import ModelRepair, Search, Setting
from edgeopt.steps.quantize.repairs.equalization import factors
from edgeopt.system.text import plural

_MOST = 2.0**12
"""Between the largest and the mean channel; a channel of almost nothing is not blown up to noise."""


def rescale(graph: Graph, seen: Mapping[str, Observation], names: Iterable[str]) -> int:
    """Rescale every named tensor that allows it, in place, and return how many.

    Args:
        graph: The float model; its outputs stay the same but for rounding.
        seen: What calibration saw of these tensors.
        names: Of tensors that one grid cannot hold.
    """
    done = 0
    for name in names:
        value = graph.value(name)
        if value is None or name not in seen or not _is_picture(graph, value) or seen[name].axis % 4 != 1:
            continue
        largest = np.maximum(np.abs(seen[name].low), np.abs(seen[name].high)).astype(np.float64)
        if readers := _readers(graph, value):
            _before_readers(graph, value, readers, largest)
        elif (maker := _maker(graph, value)) is not None:
            _behind_maker(graph, value, maker, largest)
        else:
            continue
        done += 1
    return done


def is_rescalable(graph: Graph, name: str) -> bool:
    """Whether convolutions alone read the tensor, or a convolution makes it."""
    value = graph.value(name)
    if value is None or not _is_picture(graph, value):
        return False
    return bool(_readers(graph, value)) or _maker(graph, value) is not None


def _is_picture(graph: Graph, value: Value) -> bool:
    """Whether a tensor between nodes has channels second: matrix products read them last."""
    return graph.rank(value) == 4 and not graph.is_output(value) and channel_axis(graph, value) % 4 == 1


def _readers(graph: Graph, value: Value) -> list[Node]:
    """Return the convolutions that read a tensor if nothing else does."""
    readers = graph.consumers(value)
    return readers if readers and all(_is_simple(graph, reader) for reader in readers) else []


def _is_simple(graph: Graph, node: Node) -> bool:
    if node.op_type != "Conv" or not has_weights(graph, node):
        return False
    return attribute(node, "group", 1) == 1 or _is_depthwise(graph, node)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    weight, groups = graph.constant(node.inputs[1]), attribute(node, "group", 1)
    return weight is not None and groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1


def _maker(graph: Graph, value: Value) -> Node | None:
    maker = graph.producer(value)
    return maker if maker is not None and maker.op_type == "Conv" and has_weights(graph, maker) else None


def _before_readers(graph: Graph, value: Value, readers: list[Node], largest: NDArray[np.float64]) -> None:
    """Divide before the readers; dense weights share the spread, as they have one scale for all they read."""
    dense = [graph.constant(reader.inputs[1]) for reader in readers if not _is_depthwise(graph, reader)]
    if dense:
        reading = np.max([np.abs(array).max(axis=(0, 2, 3)) for array in dense if array is not None], axis=0)
        scale = factors(largest, reading.astype(np.float64)).astype(np.float32)
    else:
        scale = channel_scales(largest)
    product = graph.insert(
        "Mul", [value, _stored(graph, value, np.float32(1) / scale)], name=f"{name_of(value)}_rescaled"
    )
    for node in readers:
        weight = graph.constant(node.inputs[1])
        assert weight is not None
        shape = (-1, 1, 1, 1) if _is_depthwise(graph, node) else (1, -1, 1, 1)
        graph.set_input(node, 1, weight * scale.reshape(shape))
        graph.set_input(node, 0, product.outputs[0])


def _behind_maker(graph: Graph, value: Value, maker: Node, largest: NDArray[np.float64]) -> None:
    scale, readers = channel_scales(largest), graph.consumers(value)
    weight = graph.constant(maker.inputs[1])
    bias = graph.constant(maker.inputs[2]) if len(maker.inputs) > 2 else None
    assert weight is not None
    graph.set_input(maker, 1, weight / scale.reshape(-1, 1, 1, 1))
    if bias is not None:
        graph.set_input(maker, 2, bias / scale)
    product = graph.insert("Mul", [value, _stored(graph, value, scale)], name=f"{name_of(value)}_restored")
    for node in readers:
        for i, input_ in enumerate(node.inputs):
            if input_ is value:
                graph.set_input(node, i, product.outputs[0])


def channel_scales(largest: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the scale of each channel that gives all the same range, 1 in the geometric mean; silent ones keep 1."""
    live = largest > 0
    scale = np.ones_like(largest)
    if live.any():
        logs = np.log(largest[live])
        scale[live] = np.exp(np.clip(logs - logs.mean(), -np.log(_MOST), np.log(_MOST)))
    return scale.astype(np.float32)


def _stored(graph: Graph, value: Value, numbers: NDArray[np.float32]) -> Value:
    return graph.add_initializer(f"{name_of(value)}_channels", numbers.astype(np.float32).reshape(1, -1, 1, 1))


class Rescaling(ModelRepair):
    """Channels of the tensors in the setting are scaled alike."""

    order: ClassVar[int] = 10

    def told(self, setting: Setting) -> str:
        """Return how many tensors."""
        return f"{plural(len(_names(setting)), 'tensor')} rescaled"

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield the tensors that the best variant keeps in float though rescaling would let a grid hold them."""
        if search.has_time("rescaled tensors"):
            graph = search.best_graph()
            yield frozenset(name for name in search.unheld() if is_rescalable(graph, name))

    def edit(self, graph: Graph, seen: Mapping[str, Observation], setting: Setting, prepared: Any) -> int:
        """Rescale the tensors in the setting."""
        return rescale(graph, seen, sorted(_names(setting)))


def _names(setting: Setting) -> frozenset[str]:
    return setting if isinstance(setting, frozenset) else frozenset()


REPAIR = Rescaling()
