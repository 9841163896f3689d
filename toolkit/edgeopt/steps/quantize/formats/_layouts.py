"""A tensor in several forms: float with channels second (as ONNX has it) or last, integer with channels last.

Each border between two forms is made once, when it is first asked for.

Float tensors are transposed, integers are not: next to a float convolution ONNX Runtime folds a float Transpose
into its own change of layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgeopt.graph.graph import Graph, Value
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.patterns import name_of


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation that moves channels from the second place to the last, e.g. NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def to_second(rank: int) -> tuple[int, ...]:
    """Return the permutation that moves channels from the last place to the second, e.g. NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


@dataclass(slots=True)
class _Held:
    """The forms of one tensor that exist so far."""

    nchw: Value | None = None
    nhwc: Value | None = None
    integers: dict[Affine, Value] = field(default_factory=dict)


class Forms:
    """The forms of all tensors of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._held: dict[Value, _Held] = {}
        self._grids: dict[Affine, tuple[Value, Value]] = {}

    def is_lowered(self, value: Value | None) -> bool:
        """Whether the tensor was made in another form than its own."""
        return value is not None and value in self._held and self._held[value].nchw is not value

    def has_nhwc(self, value: Value | None) -> bool:
        """Whether the tensor exists with channels last, float or integer."""
        held = self._held.get(value) if value is not None else None
        return held is not None and (held.nhwc is not None or bool(held.integers))

    def put_float(self, value: Value, nhwc: Value) -> None:
        """Say that `nhwc` is `value` in NHWC."""
        self._held.setdefault(value, _Held()).nhwc = nhwc

    def put_integer(self, value: Value, grid: Affine, integers: Value) -> None:
        """Say that `integers` is `value` in NHWC on `grid`."""
        self._held.setdefault(value, _Held()).integers[grid] = integers

    def grid(self, grid: Affine) -> tuple[Value, Value]:
        """Return scale and zero point as constants."""
        if grid not in self._grids:
            self._grids[grid] = (
                self._graph.add_initializer("scale", np.array(grid.scale, np.float32)),
                self._graph.add_initializer("zero_point", np.array(grid.zero_point, grid.dtype)),
            )
        return self._grids[grid]

    def grids_of(self, value: Value) -> tuple[Affine, ...]:
        """Return the grids on which the tensor exists as integers."""
        held = self._held.get(value)
        return tuple(held.integers) if held is not None else ()

    def integer(self, value: Value, grid: Affine) -> Value:
        """Return `value` as integers in NHWC."""
        held = self._of(value)
        if grid not in held.integers:
            inputs = [self.nhwc(value), *self.grid(grid)]
            held.integers[grid] = self._one("QuantizeLinear", inputs, f"{name_of(value)}_quantize")
        return held.integers[grid]

    def nhwc(self, value: Value) -> Value:
        """Return `value` as floats in NHWC."""
        held = self._of(value)
        if held.nhwc is None and held.integers:
            grid, integers = next(iter(held.integers.items()))
            held.nhwc = self._one("DequantizeLinear", [integers, *self.grid(grid)], f"{name_of(value)}_dequantize")
        elif held.nhwc is None:
            held.nhwc = self._transposed(value, to_last(self._rank(value)))
        return held.nhwc

    def nchw(self, value: Value) -> Value:
        """Return `value` as floats in NCHW, the form it has in the float model."""
        held = self._of(value)
        if held.nchw is None:
            held.nchw = self._transposed(self.nhwc(value), to_second(self._rank(value)))
            if self._several_convolutions_read(value):
                name = f"{name_of(value)}_shared"
                held.nchw = self._one("MaxPool", [held.nchw], name, kernel_shape=(1, 1))
        return held.nchw

    def _several_convolutions_read(self, value: Value) -> bool:
        """Whether what is read in NCHW is read by float convolutions, more than one.

        ONNX Runtime folds a Transpose into the change of layout of its one reader only; a MaxPool of one position
        is such a reader, and one pass in place of three.
        """
        readers = [consumer for consumer in self._graph.consumers(value) if consumer.op_type == "Conv"]
        return len(readers) > 1 and len(readers) == len(self._graph.consumers(value))

    def put_same(self, value: Value, nchw: Value) -> None:
        """Say that `nchw`, a new value, is `value` in its own form."""
        self._held.setdefault(value, _Held()).nchw = nchw

    def _rank(self, value: Value) -> int:
        return self._graph.rank(value) or 4

    def _of(self, value: Value) -> _Held:
        return self._held.setdefault(value, _Held(nchw=value))

    def _transposed(self, value: Value, order: tuple[int, ...]) -> Value:
        return self._one("Transpose", [value], f"{name_of(value)}_transpose", perm=order)

    def _one(self, op: str, inputs: list[Value], name: str, **attributes: tuple[int, ...]) -> Value:
        return self._graph.insert(op, inputs, attributes, name=name).outputs[0]
