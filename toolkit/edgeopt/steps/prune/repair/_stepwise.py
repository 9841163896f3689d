"""Run a model over all pictures part by part, and change weights on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import subgraphs
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.network.layers import Layer
from edgeopt.steps.prune.network.weights import Array, with_weights
from edgeopt.steps.quantize.calibration.watching import shapes_of


def reads(node: onnx.NodeProto) -> set[str]:
    """Return what a node and the graphs inside it read."""
    inner = {name for graph in subgraphs([node]) for value in graph.node for name in reads(value)}
    return {name for name in node.input if name} | inner


def peak_bytes(model: Model, frame: Tensors) -> int:
    """Return the most bytes of one picture's activations that are alive between two nodes."""
    nodes = model.proto.graph.node
    shapes = shapes_of(model, [name for node in nodes for name in node.output if name], frame)
    sizes = {name: 4 * int(np.prod(shape, dtype=np.int64)) for name, shape in shapes.items()}
    last = last_reads(model)
    alive, most = dict[str, int](), 0
    for i, node in enumerate(nodes):
        alive |= {name: sizes[name] for name in node.output if name in sizes and name in last}
        most = max(most, sum(alive.values()))
        alive = {name: size for name, size in alive.items() if last[name] > i}
    return most


def last_reads(model: Model) -> dict[str, int]:
    """Return the number of the last node that reads a tensor, by name."""
    return {name: i for i, node in enumerate(model.proto.graph.node) for name in reads(node)}


class Stepwise:
    """A model on its way through all pictures at once; only what later nodes read is held."""

    def __init__(self, model: Model, stored: Mapping[str, Array], pictures: Sequence[Tensors]) -> None:
        """Begin before the first node.

        Args:
            model: Nodes in topological order.
            stored: Its constants.
            pictures: Its inputs.
        """
        self._model, self._stored = model, stored
        self._nodes = [node for node in model.proto.graph.node if node.output[0] not in stored]
        self._place = {node.output[0]: i for i, node in enumerate(self._nodes)}
        self._last = {name: i for i, node in enumerate(self._nodes) for name in reads(node) if name not in stored}
        self._held: list[dict[str, NDArray[Any]]] = [
            {name: value for name, value in picture.items() if name in self._last} for picture in pictures
        ]
        first = [node.output[0] for node in self._nodes]
        self._shapes = shapes_of(model, [name for name in first if name], pictures[0])
        self._done = 0
        self.weights: dict[str, Array] = {}
        self.biases: dict[Layer, Array] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the first output of a node."""
        return self._shapes[name]

    def values(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield a tensor that was reached, picture by picture."""
        for arrays in self._held:
            yield arrays[name]

    def change(self, layer: Layer, weight: NDArray[np.float64], bias: NDArray[np.float64] | None) -> None:
        """Give a layer that was not reached other weights."""
        self.weights[layer.weight] = layer.constant(weight, self._stored[layer.weight])
        if bias is not None:
            self.biases[layer] = bias

    def until(self, name: str) -> None:
        """Run all nodes before the one with this first output."""
        start, self._done = self._done, self._place[name]
        part = self._nodes[start : self._done]
        made = {value_info for node in part for value_info in node.output if value_info}
        wanted = sorted(value for value in made if self._last.get(value, -1) >= self._done)
        if not wanted:
            return
        needed = set[str]().union(*map(reads, part)) - made
        inputs = sorted(needed - self._stored.keys())
        data = self._part(part, inputs, wanted, sorted(needed & self._stored.keys())).data
        session = EXECUTOR.open(data, SessionOptions(threads=1))
        for held in self._held:
            held |= session.run({input_: held[input_] for input_ in inputs})
            for one in [one for one in held if self._last[one] < self._done]:
                del held[one]
        session.close()

    def _part(self, nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str], constants: list[str]) -> Model:
        """Return some of the nodes as a model, with changed weights."""
        graph = helper.make_graph(
            [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes],
            "part",
            [_typed(name, self._held[0][name]) for name in inputs],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(self._stored[name], name) for name in constants],
        )
        proto = helper.make_model(graph, opset_imports=self._model.proto.opset_import)
        proto.ir_version = max(self._model.proto.ir_version, 4)
        here = {node.output[0] for node in nodes}
        return with_weights(
            Model(proto, "part"),
            {name: self.weights[name] for name in constants if name in self.weights},
            {layer: bias for layer, bias in self.biases.items() if layer.bias_node in here},
        )


def _typed(name: str, value: NDArray[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
