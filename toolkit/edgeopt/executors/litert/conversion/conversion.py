"""The state of one conversion: which tensors of LiteRT carry which tensor of the model, and in which order of axes.

LiteRT's operators of pictures want channels last. So a tensor of the model is carried by a tensor whose axes lie in
some order, each op takes the order that it finds where it can, and another order is written only where an op insists.
An ONNX Transpose then costs nothing by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from edgeopt.errors import ELSEWHERE, UnsupportedError
from edgeopt.executors._conversion.reading import GraphReader
from edgeopt.executors.litert.conversion.network import Grid, TfliteNetwork, TfliteOperator
from edgeopt.graph.graph import Graph, Node, Value, attribute

Order: TypeAlias = tuple[int, ...]
"""Axes of the model's tensor, one for each axis of the tensor as it is stored."""
MOST_AXES = 6
"""Axes that LiteRT's Transpose knows."""
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


class TfliteConversion(GraphReader):
    """A graph on its way into a network."""

    engine: ClassVar[str] = "LiteRT"
    remedy: ClassVar[str] = ELSEWHERE

    def __init__(self, graph: Graph, *, pictures_last: bool) -> None:
        """Add the inputs.

        Args:
            graph: Every shape known.
            pictures_last: Inputs of four axes have their channels last, as apps for LiteRT have them.
        """
        super().__init__(graph)
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
            raise UnsupportedError(f"{value.name!r} is {name}, which no LiteRT file is written for", remedy=self.remedy)
        return name

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
            raise UnsupportedError(f"LiteRT has nothing that makes {value.name!r}", remedy=self.remedy)
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
            raise UnsupportedError(f"LiteRT transposes at most {MOST_AXES} axes ({value.name})", remedy=self.remedy)
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


# Activations that the operator before them computes itself.

_FUSES = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
    | {"TRANSPOSE_CONV"}
)
_FIELD = "fusedActivationFunction"
_LIMITERS = ("RELU", "RELU6", "RELU_N1_TO_1")


def with_activations(network: TfliteNetwork, outputs: Collection[int]) -> TfliteNetwork:
    """Return the network with limits computed by the operators before them.

    Args:
        network: Its operators in the order in which they run.
        outputs: Places of tensors that leave the model.
    """
    counts = Counter(place for operator in network.operators for place in operator.inputs)
    limits = {operator.inputs[0]: operator for operator in network.operators if operator.code in _LIMITERS}
    made, taken = list[TfliteOperator](), set[int]()
    for operator in network.operators:
        if operator.code in _LIMITERS and operator.inputs[0] in taken:
            continue
        limit = limits.get(operator.outputs[0])
        alone = counts[operator.outputs[0]] == 1 and operator.outputs[0] not in outputs
        if operator.code in _FUSES and limit is not None and alone and operator.options.get(_FIELD, "NONE") == "NONE":
            taken.add(operator.outputs[0])
            options = {**operator.options, _FIELD: limit.code}
            operator = replace(operator, outputs=limit.outputs, options=options)
        made.append(operator)
    network.operators = made
    return network
