"""The state of one conversion: which blob carries which tensor, in which dimensions, on which grid of integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.ncnn.conversion.network import NcnnNetwork, Parameter, Weight
from edgeopt.graph.graph import Graph, Node, Value, op_name

MOST_DIMENSIONS = 4
_REMEDY = "choose a target of another engine, such as --target cpu"
_CHOOSES = ("TopK", "NonMaxSuppression")
_WITHOUT_CHOICE = (
    "export the model without the choice at its end (Ultralytics: end2end=False), or choose another engine"
)
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


class Conversion:
    """A graph on its way into a network."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.network = NcnnNetwork()
        self._blobs: dict[Value, str] = {}
        self._grids: dict[Value, float] = {}
        for i, value in enumerate(graph.inputs):
            self.require_float(value)
            self.dims(value)  # known, or refused
            self._blobs[value] = self.network.add("Input", f"in{i}", ())[0]
        self.inputs = tuple(self._blobs[value] for value in graph.inputs)
        """Blobs of the model's inputs."""

    # What is known

    def shape(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            UnsupportedError: If it is not known before the model runs.
        """
        constant = self.graph.constant(value)
        shape = constant.shape if constant is not None else self.graph.shape(value)
        if shape is None or 0 in shape:
            raise UnsupportedError(
                f"ncnn wants every shape in numbers, and {value.name if value else 'a tensor'!r} has none",
                remedy="export the model with fixed shapes, or give a recipe that names the size",
            )
        return tuple(int(size) for size in shape)

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

    def numbers(self, node: Node, place: int) -> NDArray[Any] | None:
        """Return the numbers of an input that must be constant; None where it is left out.

        Raises:
            UnsupportedError: If it is computed.
        """
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            return None
        array = self.graph.constant(value)
        if array is None:
            raise self.refuse(node, f"with its input {place} computed")
        return array

    def refuse(self, node: Node, what: str) -> UnsupportedError:
        """Return the error for a node that ncnn lacks, or lacks in this form."""
        remedy = _WITHOUT_CHOICE if node.op_type in _CHOOSES else _REMEDY
        return UnsupportedError(f"ncnn has no {op_name(node)}{f' {what}' if what else ''} ({node.name})", remedy=remedy)

    def require_float(self, value: Value) -> None:
        """Refuse an input or an output of another type than float32. Raises UnsupportedError."""
        dtype = self.graph.dtype(value)
        if dtype is not None and dtype != np.float32:
            raise UnsupportedError(f"ncnn takes float32, and {value.name!r} is {dtype}", remedy=_REMEDY)

    # What is written

    def blob(self, value: Value | None) -> str:
        """Return the blob of a tensor; that of a constant is written where it is first asked for."""
        assert value is not None
        if value not in self._blobs:
            array = self.graph.constant(value)
            if array is None:
                raise UnsupportedError(f"ncnn has nothing that makes {value.name!r}", remedy=_REMEDY)
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
