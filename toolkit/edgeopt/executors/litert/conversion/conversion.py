"""The state of one conversion: which tensors of LiteRT carry which tensor of the model, and in which order of axes.

LiteRT's operators of pictures want channels last. So a tensor of the model is carried by a tensor whose axes lie in
some order, each op takes the order that it finds where it can, and another order is written only where an op insists.
An ONNX Transpose then costs nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors._conversion.dequantized import dequantized
from edgeopt.executors.litert.conversion.network import Grid, TfliteNetwork
from edgeopt.graph.graph import Graph, Node, Value, attribute, op_name

Order: TypeAlias = tuple[int, ...]
"""For each axis of the tensor as it is stored: the axis of the model's tensor that lies there."""
MOST_AXES = 6
"""Axes that LiteRT's Transpose knows."""
_REMEDY = "choose a target of another engine, such as --target cpu"
ANY_TYPE = frozenset({"float32", "int32", "int64", "uint8", "bool"})
WHOLE_NUMBERS = frozenset({"float32", "int32", "int64", "bool"})
"""Types that comparisons take; on unsigned bytes they end the process."""


def channels_last(rank: int) -> Order:
    """Return the order with channels, axis 1, behind the axes of space."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


@dataclass(frozen=True, slots=True)
class TfliteStep:
    """A node on its way into operators.

    On integers its inputs are what the DequantizeLinear nodes before it read, and its outputs what the QuantizeLinear
    nodes behind it make; a Relu or Clip between is computed by the node's own operator.
    """

    node: Node
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    is_integer: bool = False
    activation: str = "NONE"
    """As the schema calls what is computed on its result."""

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the node, lists as tuples."""
        return attribute(self.node, name, default)


class TfliteConversion:
    """A graph on its way into a network."""

    def __init__(self, graph: Graph, *, pictures_last: bool) -> None:
        """Add the inputs.

        Args:
            graph: Every shape known.
            pictures_last: Inputs of four axes have their channels last, as apps for LiteRT have them.
        """
        self.graph = graph
        self.network = TfliteNetwork()
        self._carriers: dict[Value, dict[Order, int]] = {}
        self._grids: dict[Value, Grid] = {}
        self.inputs = []
        """Places of the model's inputs."""
        for value in graph.inputs:
            shape = self.shape(value)
            order = channels_last(len(shape)) if pictures_last and len(shape) == 4 else tuple(range(len(shape)))
            place = self.network.tensor(str(value.name), [shape[axis] for axis in order], self.dtype(value))
            self.inputs.append(place)
            self._carriers[value] = {order: place}

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
                f"LiteRT's files are written with every shape in numbers, and {value.name if value else ''!r} has none",
                remedy="export the model with fixed shapes, or give a recipe that names the size",
            )
        return tuple(int(size) for size in shape)

    def dtype(self, value: Value) -> str:
        """Return the type of a tensor.

        Raises:
            UnsupportedError: If LiteRT's operators do not take it.
        """
        if value in self._grids:
            return "int8"
        constant = self.graph.constant(value)
        dtype = constant.dtype if constant is not None else self.graph.dtype(value)
        name = "float32" if dtype is None else dtype.name
        if name not in ANY_TYPE:
            raise UnsupportedError(f"{value.name!r} is {name}, which no LiteRT file is written for", remedy=_REMEDY)
        return name

    def numbers(self, node: Node, place: int) -> NDArray[Any] | None:
        """Return the numbers of an input that must be constant; None where it is left out.

        Raises:
            UnsupportedError: If it is computed.
        """
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            return None
        array = self.constant(value)
        if array is None:
            raise self.refuse(node, f"with its input {place} computed")
        return array

    def constant(self, value: Value | None) -> NDArray[Any] | None:
        """Return the numbers of a constant, of one that is stored in integers too; None where it is computed."""
        array = self.graph.constant(value)
        return dequantized(self.graph, value) if array is None else array

    def refuse(self, node: Node, what: str) -> UnsupportedError:
        """Return the error for a node that LiteRT lacks, or lacks in this form."""
        said = f"LiteRT has no {op_name(node)}{f' {what}' if what else ''} ({node.name})"
        return UnsupportedError(said, remedy=_REMEDY)

    # Tensors

    def order(self, value: Value | None) -> Order:
        """Return the order of axes in which a tensor is at hand; that of the model for a constant."""
        assert value is not None
        self._require(value)
        return next(iter(self._carriers[value]))

    def tensor(self, value: Value | None, order: Order | None = None) -> int:
        """Return the place of a tensor in an order of axes; it is written where it is not at hand.

        Args:
            value: A tensor of the model.
            order: None: any order in which it is at hand; see `order`.

        Raises:
            UnsupportedError: If nothing makes it, or LiteRT lacks its type.
        """
        assert value is not None
        self._require(value)
        carriers = self._carriers[value]
        if order is None:
            return next(iter(carriers.values()))
        if order not in carriers:
            array = self.constant(value)
            carriers[order] = (
                self._moved(value, order)
                if array is None
                else self.network.constant(str(value.name), array.transpose(order))
            )
        return carriers[order]

    def _require(self, value: Value) -> None:
        if value in self._carriers:
            return
        array = self.constant(value)
        if array is not None:
            self.dtype(value)
            place = self.network.constant(str(value.name), array)
            self._carriers[value] = {tuple(range(array.ndim)): place}
            return
        node = self.graph.producer(value, "DequantizeLinear")
        if node is None or node.inputs[0] not in self._grids:
            raise UnsupportedError(f"LiteRT has nothing that makes {value.name!r}", remedy=_REMEDY)
        order = self.order(node.inputs[0])
        made = self.network.tensor(str(value.name), self.stored_shape(value, order))
        self.network.add("DEQUANTIZE", [self.tensor(node.inputs[0], order)], [made])
        self._carriers[value] = {order: made}

    def _moved(self, value: Value, order: Order) -> int:
        """Write a tensor in another order; where only axes of size 1 move, nothing does but the shape."""
        carriers, shape = self._carriers[value], self.shape(value)
        wide = [axis for axis in order if shape[axis] > 1]
        for known, place in carriers.items():
            if [axis for axis in known if shape[axis] > 1] == wide:
                return self.reshaped(place, [shape[axis] for axis in order])
        known, place = next(iter(carriers.items()))
        if len(order) > MOST_AXES:
            raise UnsupportedError(f"LiteRT transposes at most {MOST_AXES} axes ({value.name})", remedy=_REMEDY)
        return self.transposed(place, [known.index(axis) for axis in order])

    def stored_shape(self, value: Value, order: Order) -> list[int]:
        """Return the shape of a tensor of the model whose axes lie in an order."""
        shape = self.shape(value)
        return [shape[axis] for axis in order]

    def new(self, value: Value, order: Order) -> int:
        """Add the tensor that an operator makes for one of the model's; return its place."""
        place = self.network.tensor(
            str(value.name), self.stored_shape(value, order), self.dtype(value), self._grids.get(value)
        )
        self._carriers.setdefault(value, {})[order] = place
        return place

    def set(self, value: Value, place: int, order: Order) -> None:
        """Let a tensor carry one of the model's."""
        self._carriers.setdefault(value, {})[order] = place

    def has(self, value: Value) -> bool:
        """Whether a tensor of the model is carried already."""
        return value in self._carriers

    def shown(self, place: int) -> tuple[int, ...]:
        """Return the shape of a tensor as it is stored."""
        return self.network.tensors[place].shape

    # Integers

    def grid(self, value: Value | None) -> Grid | None:
        """Return the grid of a tensor of integers; None: it holds other numbers."""
        return self._grids.get(value) if value is not None else None

    def set_grid(self, value: Value, grid: Grid) -> None:
        """Let a tensor hold integers of a grid."""
        self._grids[value] = grid

    def forget(self, values: Sequence[Value]) -> None:
        """Take back what was said of tensors: their node is written otherwise."""
        for value in values:
            self._grids.pop(value, None)
            self._carriers.pop(value, None)

    # Operators that many ops need

    def integers(self, numbers: Sequence[int]) -> int:
        """Return the place of a constant row of 32-bit integers."""
        return self.network.constant("integers", np.array(numbers, np.int32))

    def number(self, number: float) -> int:
        """Return the place of a constant float."""
        return self.network.constant("number", np.array(number, np.float32))

    def reshaped(self, place: int, shape: Sequence[int]) -> int:
        """Return a tensor in another shape; itself where it has it."""
        if self.shown(place) == tuple(shape):
            return place
        made = self.network.like(place, f"{self.network.tensors[place].name}_seen", shape)
        self.network.add("RESHAPE", [place, self.integers(shape)], [made], newShape=[int(size) for size in shape])
        return made

    def transposed(self, place: int, permutation: Sequence[int]) -> int:
        """Return a tensor with its stored axes in another order."""
        shape = self.shown(place)
        made = self.network.like(
            place, f"{self.network.tensors[place].name}_turned", [shape[axis] for axis in permutation]
        )
        self.network.add("TRANSPOSE", [place, self.integers(permutation)], [made])
        return made

    def apply(self, code: str, places: Sequence[int], shape: Sequence[int], **options: Any) -> int:
        """Return what an operator makes of tensors, of the type and the grid of the first."""
        made = self.network.like(places[0], f"{code.lower()}_{len(self.network.tensors)}", shape)
        self.network.add(code, places, [made], **options)
        return made
