"""A model cut into layers: what an engine computes in one go, and the shapes it has where channels are gone.

A layer is a convolution or product with the activation behind it, or any other node alone. Its shape follows from the
numbers of channels that groups keep, without cutting the model.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeopt.graph.graph import Graph
from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Ops whose time is no multiple of their channels: each shape is measured."""
_FOLLOWING = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Gelu", "Softplus", "PRelu"}
    | {"Mish", "Swish", "Erf", "Mul"}
)
"""Ops that belong to the layer before, where they read nothing but it and constants."""
_TOLD = 16
"""A constant of so many numbers at most tells them in a layer's name; a longer one its shape."""

Keep: TypeAlias = Mapping[str, int]
"""Channels that stay, by group name; a group that is not named keeps all."""


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """Nodes that run in one go."""

    nodes: tuple[onnx.NodeProto, ...]
    activations: tuple[str, ...]
    """Names of the tensors that it reads and that are no constants."""
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of its outputs that other layers read."""

    @property
    def is_weighted(self) -> bool:
        """Whether its time is measured for each shape; if not, it follows its numbers of elements."""
        return self.nodes[0].op_type in WEIGHTED

    @property
    def names(self) -> frozenset[str]:
        """The names of its nodes, their first outputs; the empty name stands for activations."""
        return frozenset(("", *(node.output[0] for node in self.nodes)))

    @property
    def tensors(self) -> tuple[str, ...]:
        """All names in it."""
        return (*self.activations, *self.constants, *(name for node in self.nodes for name in node.output))


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer in the sizes that it has under some choice of channels."""

    key: str
    """The same for layers that take the same time: op, sizes, attributes, what follows."""
    layer: TimedLayer
    sizes: Mapping[str, tuple[int, ...]]
    """Sizes of its tensors, by name."""
    values: Mapping[str, NDArray[Any]]
    """Values of its constants, in the dense model."""
    opset: int = 17

    @property
    def bytes(self) -> int:
        """The bytes of one run, in float."""
        return 4 * sum(map(math.prod, self.sizes.values()))

    @property
    def elements(self) -> int:
        """Numbers that it reads and makes."""
        return sum(math.prod(self.sizes[name]) for name in (*self.layer.activations, *self.layer.outputs))

    @property
    def multiply_adds(self) -> int:
        """Products that are added up, for one run."""
        first = self.layer.nodes[0]
        made, read = self.sizes[first.output[0]], self.sizes[first.input[0]]
        if first.op_type == "MatMul":
            return math.prod(made) * read[-1]
        if first.op_type == "Gemm":
            return math.prod(made) * math.prod(read) // max(made[0], 1)
        if first.op_type in WEIGHTED:
            weight = self.sizes[first.input[1]]
            return math.prod(read if first.op_type == "ConvTranspose" else made) * math.prod(weight[1:])
        return 0

    def branch(self, prefix: str) -> Branch:
        """Return the layer as a model's part, all names with a prefix."""

        def named(name: str) -> str:
            return prefix + name if name else name

        nodes, constants = [], list[onnx.TensorProto]()
        for i, node in enumerate(self.layer.nodes):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"{prefix}{i}"
            copy.input[:] = [named(name) for name in node.input]
            copy.output[:] = [named(name) for name in node.output]
            self._fit(copy, node)
            nodes.append(copy)
        for name in self.layer.constants:
            value = self.values[name]
            cut = value[tuple(slice(size) for size in self.sizes[name])]
            constants.append(numpy_helper.from_array(np.ascontiguousarray(cut).reshape(cut.shape), named(name)))
        return Branch(
            tuple(nodes),
            tuple(constants),
            {named(name): self.sizes[name] for name in self.layer.activations},
            {named(name): self.sizes[name] for name in self.layer.outputs},
        )

    def _fit(self, copy: onnx.NodeProto, node: onnx.NodeProto) -> None:
        """Write what a node says of its channels anew: the groups of a convolution."""
        if node.op_type not in ("Conv", "ConvTranspose"):
            return
        for attribute in copy.attribute:
            if attribute.name == "group" and attribute.i > 1:
                read, weight = self.sizes[node.input[0]][1], self.sizes[node.input[1]]
                attribute.i = (
                    read // weight[1] if node.op_type == "Conv" else self.sizes[node.output[0]][1] // weight[1]
                )


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of a model that nothing else is tied to."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]


def model_of(branches: Iterable[Branch], opset: int) -> Model:
    """Return one model that computes all branches side by side.

    It gives the largest number of each output: what a layer makes stays in the engine's own memory, as between layers.
    """
    parts = list(branches)
    made = [name for part in parts for name in part.outputs]
    ends = [helper.make_node("ReduceMax", [name], [f"most {name}"], keepdims=0) for name in made]
    graph = helper.make_graph(
        [*(node for part in parts for node in part.nodes), *ends],
        "layers",
        [_float(name, sizes) for part in parts for name, sizes in part.inputs.items()],
        [_float(f"most {name}", ()) for name in made],
        [constant for part in parts for constant in part.constants],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model(proto, "layers")


def _float(name: str, sizes: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


class Layers:
    """The layers of one model, and their shapes under any choice of channels."""

    def __init__(
        self, model: Model, groups: ChannelGroups, kept: Callable[[str, int], NDArray[np.int64]] | None = None
    ) -> None:
        """Cut a model into layers.

        Args:
            model: With fixed shapes.
            groups: Of this model.
            kept: Returns which channels of a group stay when so many do; None: the first.
        """
        kept = kept or (lambda _, count: np.arange(count))
        graph = Graph.from_model(model)
        graph.infer_shapes()
        self.opset = model.opset
        self._values = _constants(model.proto.graph)
        self._sizes = {
            str(value.name): shape
            for value in (*graph.inputs, *(output for node in graph.nodes() for output in node.outputs))
            if (shape := graph.shape(value)) is not None
        } | {name: value.shape for name, value in self._values.items()}
        self._floats = {
            str(value.name)
            for value in (*graph.inputs, *(output for node in graph.nodes() for output in node.outputs))
            if graph.dtype(value) == np.float32
        }
        self._cuts = _cuts(groups)
        self.all = tuple(other for other in _layers(model.proto.graph, self._values) if self._is_known(other))
        self._kept = kept
        readers: dict[str, list[int]] = defaultdict(list)
        for i, layer in enumerate(self.all):
            for name in dict.fromkeys(cut.group for tensor in layer.tensors for cut in self._cuts_in(tensor, layer)):
                readers[name].append(i)
        self._of_group = {name: tuple(reader) for name, reader in readers.items()}
        self._groups_of: dict[int, list[str]] = defaultdict(list)
        for name, places in self._of_group.items():
            for place in places:
                self._groups_of[place].append(name)

    def _cuts_in(self, tensor: str, layer: TimedLayer) -> list[_Cut]:
        """Return the cuts of a tensor as a layer sees it: a constant may be read by others too, and cut otherwise."""
        return [cut for cut in self._cuts.get(tensor, ()) if cut.node in layer.names]

    def _is_known(self, layer: TimedLayer) -> bool:
        """Whether a layer can be run alone: float numbers of known shape in and out."""
        ends = (*layer.activations, *layer.outputs)
        return bool(layer.activations) and all(name in self._sizes and name in self._floats for name in ends)

    def of_group(self, name: str) -> tuple[int, ...]:
        """Return the places, in `all`, of the layers whose shape a group's channels change."""
        return self._of_group.get(name, ())

    def groups_of(self, place: int) -> tuple[str, ...]:
        """Return the groups on whose channels the shape of a layer hangs, by its place in `all`."""
        return tuple(self._groups_of.get(place, ()))

    def shape(self, place: int, keep: Keep) -> LayerShape:
        """Return a layer's shape where groups keep so many channels.

        Args:
            place: In `all`.
            keep: Of the groups that lose any.
        """
        layer = self.all[place]
        names = [name for name in dict.fromkeys(layer.tensors) if name in self._sizes]
        sizes = {name: self._size(name, layer, keep) for name in names}
        return LayerShape(_key(layer, sizes, self._values, self.opset), layer, sizes, self._values, self.opset)

    def _size(self, name: str, layer: TimedLayer, keep: Keep) -> tuple[int, ...]:
        sizes = list(self._sizes[name])
        for cut in self._cuts_in(name, layer):
            if cut.group in keep:
                left = cut.entries[self._kept(cut.group, keep[cut.group])]
                sizes[cut.axis] = max(sizes[cut.axis] - int(cut.entries.sum() - left.sum()), 1)
        return tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Cut:
    """An axis of a tensor that shrinks with a group."""

    node: str
    """First output of the node that reads it; empty for an activation."""
    axis: int
    group: str
    entries: NDArray[np.int64]
    """Entries of the axis, by channel."""


def _cuts(groups: ChannelGroups) -> dict[str, list[_Cut]]:
    """Return which axes of which tensors shrink with which groups."""
    cuts: dict[str, list[_Cut]] = defaultdict(list)
    seen = set[tuple[str, str, int, str]]()
    for group in groups.groups:
        for use in (*group.producers, *group.consumers, *group.tensors):
            place = use.node, use.tensor, use.axis, group.name
            mine = use.channels[use.channels >= 0]
            if mine.size and place not in seen:
                seen.add(place)
                entries = np.bincount(mine, minlength=group.channels)
                cuts[use.tensor].append(_Cut(use.node, use.axis, group.name, entries))
    return cuts


def _constants(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    stored = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            stored[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return stored


def _layers(graph: onnx.GraphProto, constants: Mapping[str, Any]) -> list[TimedLayer]:
    """Return the nodes, each weighted one with what follows it."""
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {value.name for value in graph.output}
    used, layers = set[int](), list[TimedLayer]()
    for node in graph.node:
        if node.op_type == "Constant" or id(node) in used or node.domain not in ("", "ai.onnx"):
            continue
        nodes = [node]
        if node.op_type in WEIGHTED:
            nodes += _following(node, readers, constants, used)
        used |= {id(other) for other in nodes}
        layers.append(_layer(nodes, readers, constants, outputs))
    return layers


def _following(
    node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]], constants: Mapping[str, Any], used: set[int]
) -> list[onnx.NodeProto]:
    known, added = {node.output[0]}, list[onnx.NodeProto]()
    waiting = [node.output[0]]
    while waiting:
        for one in readers.get(waiting.pop(0), ()):
            reads = [name for name in one.input if name and name not in constants]
            fits = one.op_type in _FOLLOWING and all(name in known for name in reads)
            if fits and id(one) not in used and all(one is not other for other in added):
                added.append(one)
                known.add(one.output[0])
                waiting.append(one.output[0])
    return added


def _layer(
    nodes: list[onnx.NodeProto],
    readers: Mapping[str, list[onnx.NodeProto]],
    constants: Mapping[str, Any],
    outputs: set[str],
) -> TimedLayer:
    inside, made = {id(one) for one in nodes}, [name for one in nodes for name in one.output if name]
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    leaves = [name for name in made if name in outputs or any(id(node) not in inside for node in readers.get(name, ()))]
    return TimedLayer(
        tuple(nodes),
        tuple(name for name in read if name not in constants),
        tuple(name for name in read if name in constants),
        tuple(leaves or made[-1:]),
    )


def _key(
    layer: TimedLayer, sizes: Mapping[str, tuple[int, ...]], values: Mapping[str, NDArray[Any]], opset: int
) -> str:
    """Return what a layer's time depends on, the same in every process."""
    parts, places = list[str](), dict[str, str]()
    for node in layer.nodes:
        words = [node.op_type]
        for name in node.input:
            known = places.get(name, "")
            size = "x".join(map(str, sizes.get(name, ())))
            if name in values and values[name].size <= _TOLD and node.op_type not in WEIGHTED:
                size += f"={values[name].reshape(-1).tolist()}"
            words.append(known or size or "-")
        for name in node.output:
            places[name] = f"%{len(places)}"
        attributes = sorted(
            (attribute.name, str(helper.get_attribute_value(attribute))) for attribute in node.attribute
        )
        words += [f"{name}={value}" for name, value in attributes if name != "group" or value == "1"]
        parts.append(" ".join(words))
    text = f"opset {opset}: {' > '.join(parts)}"
    return text if len(text) <= 400 else f"{text[:360]} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
