"""The state of one conversion: which variable of a MIL program carries which tensor of the model.

Core ML stores axes as ONNX does. A Transpose is written only where a node insists on its order: else the variable
before it carries the tensor, with the order of axes. Integers of a grid are carried by the floats that they stand for,
rounded. There are no 64-bit integers: int64 becomes int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors._conversion.dequantized import stored_weights
from edgeopt.executors._conversion.reading import GraphReader
from edgeopt.executors.coreml.loading import builder
from edgeopt.graph.graph import Graph, Node, Value

REMEDY = "leave --emit coreml out for this model, or export it without this node"
MOST_AXES = 5
"""Axes of Core ML's tensors."""
_TYPES = {"float32": "fp32", "int32": "int32", "int64": "int32", "bool": "bool"}


_OF_ALIKE = ("Add", "Sub", "Mul", "Div", "Max", "Min")
"""Ops that lay a constant beside a tensor, axis by axis."""

Order: TypeAlias = tuple[int, ...]
"""Axes of a variable, one for each axis of the model's tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class MilGrid:
    """The integers of a tensor: number = scale * (integer - zero)."""

    scale: NDArray[np.float32]
    """One, or one for each place of `axis`."""
    zero: NDArray[np.int8] | NDArray[np.uint8]
    """As many, in the type of the integers."""
    axis: int | None
    """None: one scale for all."""

    def is_like(self, other: MilGrid) -> bool:
        """Whether another holds the same numbers."""
        alike = self.axis == other.axis and self.zero.dtype == other.zero.dtype
        return alike and np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)


class MilConversion(GraphReader):
    """A graph on its way into a program; used inside the program's function."""

    engine: ClassVar[str] = "Core ML"
    remedy: ClassVar[str] = REMEDY

    def __init__(self, graph: Graph, *, rounds: bool) -> None:
        """Begin.

        Args:
            graph: Every shape known.
            rounds: Pairs of QuantizeLinear and DequantizeLinear between nodes round as the model says; otherwise only
                their limits are kept, and weights alone are integers.
        """
        super().__init__(graph)
        self.rounds = rounds
        self.mb = builder()
        self._carriers: dict[Value, Any] = {}
        self._turned: dict[Value, tuple[Any, Order]] = {}
        self._grids: dict[Value, MilGrid] = {}
        self.order: Order | None = None
        """Order in which `var` and `set` take tensors at the moment; None: the model's."""

    # What is known

    def shape(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            UnsupportedError: If it is not known before the model runs, or has more axes than Core ML.
        """
        shape = super().shape(value)
        if len(shape) > MOST_AXES:
            name = value.name if value else ""
            raise UnsupportedError(f"Core ML has no tensors of {len(shape)} axes ({name})", remedy=REMEDY)
        return shape

    def dtype(self, value: Value | None) -> str:
        """Return the type of a tensor as MIL calls it.

        Raises:
            UnsupportedError: If Core ML has none such.
        """
        constant = self.graph.constant(value)
        if value in self._grids:
            return "fp32"
        dtype = constant.dtype if constant is not None else self.graph.dtype(value)
        name = "float32" if dtype is None else dtype.name
        if name not in _TYPES:
            shown = value.name if value else ""
            raise UnsupportedError(f"{shown!r} is {name}, which no Core ML file is written for", remedy=REMEDY)
        return _TYPES[name]

    def whole_numbers(self, node: Node, place: int) -> tuple[int, ...]:
        """Return the whole numbers of an input that must be constant; empty where it is left out."""
        array = self.numbers(node, place)
        return () if array is None else tuple(int(number) for number in array.reshape(-1))

    # Variables

    def var(self, value: Value | None) -> Any:
        """Return the variable that carries a tensor; a constant is written where it is not yet.

        Raises:
            UnsupportedError: If nothing makes it, or Core ML lacks its type.
        """
        assert value is not None
        if self.order is not None and value in self._turned:
            return self._turned[value][0]
        array = self.constant(value)
        if self.order is not None and array is not None and array.size > 1:
            wide = array.reshape((1,) * (len(self.order) - array.ndim) + array.shape)
            return self.constant_var(wide.transpose(np.argsort(self.order)))
        if value not in self._carriers and value in self._turned:
            base, order = self._turned[value]
            self._carriers[value] = self.mb.transpose(x=base, perm=order)
        if value not in self._carriers:
            if array is None:
                raise UnsupportedError(f"Core ML has nothing that makes {value.name!r}", remedy=REMEDY)
            self.dtype(value)
            self._carriers[value] = self.constant_var(array)
        return self._carriers[value]

    def set(self, value: Value, var: Any) -> None:
        """Let a variable carry a tensor of the model."""
        if self.order is not None:
            self._turned[value] = (var, self.order)
        else:
            self._carriers[value] = var

    def turn(self, value: Value, source: Value, permutation: Order) -> None:
        """Let a tensor be another one with its axes in another order, which is written where a node insists on it."""
        base, order = self._turned.get(source, (None, ()))
        if base is None:
            base, order = self.var(source), tuple(range(len(permutation)))
        after = tuple(order[axis] for axis in permutation)
        if after == tuple(range(len(after))):
            self._carriers[value] = base
        else:
            self._turned[value] = (base, after)
        if (grid := self._grids.get(source)) is not None:
            self._grids[value] = grid

    def common_order(self, node: Node) -> Order | None:
        """Return the order that all computed inputs of a node have, where none is at hand in the model's; else None."""
        orders = set[Order]()
        for value in node.inputs:
            array = self.constant(value) if value is not None else None
            if value is None or (array is not None and (array.size == 1 or node.op_type in _OF_ALIKE)):
                continue
            if array is not None or value not in self._turned or value in self._carriers:
                return None
            orders.add(self._turned[value][1])
        return orders.pop() if len(orders) == 1 else None

    # Integers

    def grid(self, value: Value | None) -> MilGrid | None:
        """Return the grid of a tensor of integers; None: it holds other numbers."""
        return self._grids.get(value) if value is not None else None

    def set_grid(self, value: Value, grid: MilGrid) -> None:
        """Let a tensor hold integers of a grid."""
        self._grids[value] = grid

    def constant_var(self, array: NDArray[Any]) -> Any:
        """Return a constant; 64-bit integers in 32 bits.

        Raises:
            UnsupportedError: If an integer does not fit.
        """
        if array.dtype == np.int64:
            if (np.abs(array) >= 1 << 31).any():
                raise UnsupportedError("Core ML has no whole numbers above 32 bits", remedy=REMEDY)
            array = array.astype(np.int32)
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
        return self.mb.const(val=np.ascontiguousarray(array).reshape(array.shape))

    def turned(self, value: Value | None) -> tuple[Any, Order] | None:
        """Return a variable and the order of axes in which it carries a tensor, where that is not the model's."""
        return self._turned.get(value) if value is not None and value not in self._carriers else None

    def weight(self, node: Node, place: int, order: Sequence[int] | None = None, more: int = 0) -> Any:
        """Return weights; those that the model stores in 8-bit integers stay so, with its own scales.

        Args:
            node: A layer.
            place: Of its input that holds weights.
            order: Axes in another order; None: as they are.
            more: Axes of size 1 behind them.
        """
        value = node.inputs[place]
        assert value is not None
        axes = tuple(range(len(self.shape(value)))) if order is None else tuple(order)
        stored = stored_weights(self.graph, value)
        if stored is not None:
            return self.mb.constexpr_affine_dequantize(
                quantized_data=_behind(stored.integers.transpose(axes), more),
                zero_point=stored.zero if stored.scale.size > 1 else stored.zero.reshape(()),
                scale=stored.scale if stored.scale.size > 1 else stored.scale.reshape(()),
                axis=np.int32(axes.index(stored.axis)),
            )
        array = self.constant(value)
        if array is None:
            var = self.var(value)
            return var if order is None else self.mb.transpose(x=var, perm=axes)
        return self.constant_var(_behind(array.transpose(axes), more))


def _behind(array: NDArray[Any], more: int) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(array.shape + (1,) * more)


Convert = Callable[[MilConversion, Node], None]
