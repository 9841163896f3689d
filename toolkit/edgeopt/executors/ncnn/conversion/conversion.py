"""The state of one conversion: which blob carries which tensor, in which dimensions, on which grid of integers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import ELSEWHERE, UnsupportedError
from edgeopt.executors._conversion.reading import GraphReader
from edgeopt.executors.ncnn.conversion.network import NcnnLayer, NcnnNetwork, Parameter, Weight, readers_of
from edgeopt.executors.ncnn.file import MAKES_MEMORY, PICTURE_CHANNELS, WEIGHTED
from edgeopt.graph.graph import Graph, Node, Value, attribute, op_name

MOST_DIMENSIONS = 4
_CHOOSES = ("TopK", "NonMaxSuppression")
_WITHOUT_CHOICE = (
    "export the model without the choice at its end (Ultralytics: end2end=False), or choose another engine"
)
_TO_PLANES = (0, 3, 1, 2)
_TO_ROWS = 3
"""ncnn's number of the order that puts three planes behind rows and columns."""
_MOVES_PIXELS = ("Unsqueeze", "Cast", "Transpose")
_SHAPE_KEYS = (0, 1, 11, 2)
"""Keys of width, height, depth and channels, in Reshape and MemoryData."""


def dims_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of the blob of a tensor: without a leading 1; flat where more than four are left."""
    dims = tuple(shape[1:]) if len(shape) > 1 and shape[0] == 1 else tuple(shape)
    return dims or (1,) if len(dims) <= MOST_DIMENSIONS else (math.prod(dims),)


def size_parameters(dims: Sequence[int]) -> dict[int, Parameter]:
    """Return the parameters of Reshape and MemoryData for a blob's dimensions, the outermost first."""
    keys = {1: (0,), 2: (0, 1), 3: (0, 1, 2), 4: _SHAPE_KEYS}[len(dims)]
    return dict(zip(keys, reversed(dims), strict=True))


class Conversion(GraphReader):
    """A graph on its way into a network."""

    engine: ClassVar[str] = "ncnn"
    remedy: ClassVar[str] = ELSEWHERE

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.network = NcnnNetwork()
        self._blobs: dict[Value, str] = {}
        self._grids: dict[Value, float] = {}
        self.written: set[Node] = set()
        """Nodes that need no layer: the planes of a picture are made as ncnn is handed its pixels."""
        self.pictures: dict[Value, tuple[int, ...]] = {}
        """Inputs that take a picture in uint8, and their planes' dimensions."""
        for i, value in enumerate(graph.inputs):
            if graph.dtype(value) == np.uint8:
                self._take_picture(value, i)
                continue
            self.require_float(value)
            self.dims(value)  # known, or refused
            self._blobs[value] = self.network.add("Input", f"in{i}", ())[0]
        self.inputs = tuple(self._blobs[value] for value in graph.inputs)
        """Blobs of the model's inputs."""

    # What is known

    def dims(self, value: Value | None) -> tuple[int, ...]:
        """Return the dimensions of a tensor's blob, the outermost first. Raises as `shape`."""
        return dims_of(self.shape(value))

    def blob_axis(self, node: Node, value: Value | None, axis: int) -> int:
        """Return where an axis of a tensor lies in its blob.

        Raises:
            UnsupportedError: If it is the picture's own, or the blob is flat.
        """
        shape = self.shape(value)
        axis %= max(len(shape), 1)
        dropped = len(shape) > 1 and shape[0] == 1
        if (dropped and axis == 0) or len(shape) - dropped > MOST_DIMENSIONS:
            raise self.refuse(node, f"over axis {axis} of {len(shape)}")
        return axis - dropped

    def require_one_picture(self, node: Node) -> None:
        """Refuse a node whose first axis is that of several pictures: a blob's first axis is then not its channels.

        Raises:
            UnsupportedError: If so.
        """
        if self.shape(node.inputs[0])[:1] != (1,) or len(self.shape(node.inputs[0])) < 2:
            raise self.refuse(node, "of several pictures at once")

    def constant(self, value: Value | None) -> NDArray[Any] | None:
        """Return the numbers of a constant; None where it is computed, or stored in integers."""
        return self.graph.constant(value)

    def remedy_for(self, node: Node) -> str:
        """Return the advice where ncnn lacks a node: models that choose boxes themselves do without."""
        return _WITHOUT_CHOICE if node.op_type in _CHOOSES else self.remedy

    def require_float(self, value: Value) -> None:
        """Refuse an input or an output of another type than float32. Raises UnsupportedError."""
        dtype = self.graph.dtype(value)
        if dtype is not None and dtype != np.float32:
            raise UnsupportedError(f"ncnn takes float32, and {value.name!r} is {dtype}", remedy=self.remedy)

    def _take_picture(self, value: Value, place: int) -> None:
        """Let the planes of a picture stand for the float tensor that a model makes of it before anything else.

        Raises:
            UnsupportedError: If the model does not begin so, or the picture's size is free.
        """
        shape = self.shape(value)
        if len(shape) != len(_TO_PLANES) - 1 or shape[-1] != PICTURE_CHANNELS:
            raise self._no_picture(value, f"of shape {shape}")
        tensor, is_planar = value, False
        while self.graph.dtype(tensor) != np.float32 or not is_planar:
            node = self.graph.sole_consumer(tensor)
            is_turn = node is not None and node.op_type == "Transpose"
            if node is None or node.op_type not in _MOVES_PIXELS:
                if self.graph.dtype(tensor) == np.float32:
                    break
                raise self._no_picture(value, f"through {op_name(node)}" if node else "in several places")
            if is_turn and attribute(node, "perm", tuple[int, ...]()) != _TO_PLANES:
                raise self._no_picture(value, "turned")
            self.written.add(node)
            tensor, is_planar = node.outputs[0], is_planar or is_turn
        dims = (PICTURE_CHANNELS, *shape[:-1])
        if tuple(self.shape(tensor)[-len(dims) :]) != (dims if is_planar else tuple(shape)):
            raise self._no_picture(value, "turned")  # an axis was put in between
        blob = self.network.add("Input", f"in{place}", ())[0]
        self.pictures[value], self._blobs[value] = dims, blob
        self._blobs[tensor] = blob if is_planar else self.network.add("Permute", "rows", [blob], {0: _TO_ROWS})[0]

    def _no_picture(self, value: Value, how: str) -> UnsupportedError:
        text = f"ncnn takes uint8 as a picture of three channels that become floats, and {value.name!r} goes {how}"
        return UnsupportedError(text, remedy=self.remedy)

    # What is written

    def blob(self, value: Value | None) -> str:
        """Return the blob of a tensor; that of a constant is written where it is first asked for."""
        assert value is not None
        if value not in self._blobs:
            array = self.graph.constant(value)
            if array is None:
                raise UnsupportedError(f"ncnn has nothing that makes {value.name!r}", remedy=self.remedy)
            self._blobs[value] = self.memory(str(value.name), array, dims_of(array.shape))
        return self._blobs[value]

    def memory(self, name: str, array: NDArray[Any], dims: Sequence[int]) -> str:
        """Write a constant; return its blob."""
        weight = Weight(array.astype(np.float32), has_tag=False)
        return self.network.add("MemoryData", name, (), {**size_parameters(dims), 21: 1}, [weight])[0]

    def layer(
        self,
        node: Node,
        kind: str,
        inputs: Iterable[Value | str | None],
        parameters: Mapping[int, Parameter] | None = None,
        weights: Iterable[Weight] = (),
    ) -> str:
        """Add a layer with one output for a node; return its blob, which is not yet that of a tensor."""
        blobs = [value if isinstance(value, str) else self.blob(value) for value in inputs]
        return self.network.add(kind, str(node.name), blobs, parameters, weights)[0]

    def set(self, value: Value, blob: str, grid: float | None = None) -> None:
        """Let a blob carry a tensor.

        Args:
            value: The tensor.
            blob: The blob, of the tensor's dimensions.
            grid: Step of the integers that readers round it to themselves; None: it is not rounded.
        """
        self._blobs[value] = blob
        if grid is not None:
            self._grids[value] = grid

    def grid(self, value: Value | None) -> float | None:
        """Return the step of the integers to which a tensor is to be rounded; None: it is not."""
        return self._grids.get(value) if value is not None else None

    def same_grid(self, values: Iterable[Value | None]) -> float | None:
        """Return the step of the integers that all of several tensors are to be rounded to, if it is one."""
        grids = {self.grid(value) for value in values}
        return grids.pop() if len(grids) == 1 else None

    def reshaped(self, node: Node, blob: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Return a blob in other dimensions; itself where they are the same."""
        if tuple(before) == tuple(after):
            return blob
        return self.network.add("Reshape", str(node.name), [blob], size_parameters(after))[0]


# Layers that compute another's activation or hand integers on, and copies where memory is shared.

_ON_INTEGERS = frozenset({"Convolution", "ConvolutionDepthWise"})
"""Layers that read and make integers."""
_TYPE, _NUMBERS, _INTEGERS = 9, 10, 8
_MAKES_INTEGERS = 101
_CHANNELS, _EVEN = 3, 4
"""Dimensions from which a blob has channels; floats of 16 bytes."""


def with_copies(layers: Sequence[NcnnLayer], dims: Mapping[str, Sequence[int]]) -> list[NcnnLayer]:
    """Return the layers with a copy of each input that a layer might write over, or read as its own memory.

    ncnn reads inputs in the caller's memory, and a layer that works in place asks who else holds it: of memory that is
    not its own ncnn cannot say, and the process dies (`*bottom_blob.refcount` in `net.cpp`). Channels of its own begin
    at multiples of 16 bytes, which layers that take several at once rely on (`Concat`, groups of channels).

    Args:
        layers: In their order.
        dims: Dimensions of the blobs of inputs, the outermost first.
    """
    readers = readers_of(layers)
    made: list[NcnnLayer] = []
    for layer in layers:
        made.append(layer)
        if layer.kind != "Input":
            continue
        blob = layer.outputs[0]
        is_even = len(dims[blob]) < _CHANNELS or math.prod(dims[blob][1:]) % _EVEN == 0
        if not is_even or any(other.kind not in MAKES_MEMORY for other in readers.get(blob, ())):
            made[-1] = replace(layer, outputs=(f"{blob}_given",))
            made.append(NcnnLayer("DeepCopy", f"copy_{blob}", (f"{blob}_given",), (blob,)))
    return made


def fused(layers: Sequence[NcnnLayer], outputs: Collection[str]) -> list[NcnnLayer]:
    """Return the layers with activations in the layers before them, and integers between those that take them.

    Args:
        layers: In their order, each blob read any number of times.
        outputs: Blobs that leave the network.
    """
    return _with_integers(_with_activations(layers, outputs), outputs)


def _activation(layer: NcnnLayer) -> tuple[int, tuple[float, ...]] | None:
    """Return ncnn's number of a fused activation and its numbers; None where layers do not compute it."""
    numbers = layer.parameters
    if layer.kind == "ReLU":
        slope = _float(numbers.get(0, 0.0))
        return (2, (slope,)) if slope else (1, ())
    if layer.kind == "Clip":
        return 3, (_float(numbers[0]), _float(numbers[1]))
    if layer.kind == "Sigmoid":
        return 4, ()
    if layer.kind == "Mish":
        return 5, ()
    if layer.kind == "HardSwish":
        return 6, (_float(numbers[0]), _float(numbers[1]))
    return None


def _float(value: Parameter) -> float:
    assert not isinstance(value, tuple)
    return float(value)


def _with_activations(layers: Sequence[NcnnLayer], outputs: Iterable[str]) -> list[NcnnLayer]:
    readers, kept = readers_of(layers), set(outputs)
    taken: set[str] = set()
    made: list[NcnnLayer] = []
    for layer in layers:
        if layer.outputs and layer.outputs[0] in taken:
            continue
        current = layer
        after = readers.get(layer.outputs[0], []) if layer.outputs else []
        activation = _activation(after[0]) if len(after) == 1 else None
        if layer.kind in WEIGHTED and activation is not None and layer.outputs[0] not in kept:
            kind, numbers = activation
            parameters: dict[int, Parameter] = {**layer.parameters, _TYPE: kind}
            if numbers:
                parameters[_NUMBERS] = numbers
            current = replace(current, parameters=parameters, outputs=after[0].outputs)
            taken.add(after[0].outputs[0])
        made.append(current)
    return made


def _with_integers(layers: Sequence[NcnnLayer], outputs: Iterable[str]) -> list[NcnnLayer]:
    """Let an integer layer make integers where all that read them are integer layers of one scale: the same numbers."""
    readers, kept = readers_of(layers), set(outputs)
    made: list[NcnnLayer] = []
    for layer in layers:
        after = readers.get(layer.outputs[0], []) if layer.outputs else []
        takes = all(other.kind in _ON_INTEGERS and other.is_integer for other in after)
        scales = {float(other.weights[-1].array[0]) for other in after} if takes else set[float]()
        if layer.kind in _ON_INTEGERS and layer.is_integer and len(scales) == 1 and layer.outputs[0] not in kept:
            parameters = {**layer.parameters, _INTEGERS: _MAKES_INTEGERS}
            scale = Weight(np.array([scales.pop()], np.float32), has_tag=False)
            layer = replace(layer, parameters=parameters, weights=(*layer.weights, scale))
        made.append(layer)
    return made
