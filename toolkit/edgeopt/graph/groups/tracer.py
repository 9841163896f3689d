"""The state that rules of ops read and write while a graph is traced, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.groups.labels import FIXED, ChannelLabels
from edgeopt.graph.groups.types import Channels, Pin, Size, channels

Dims: TypeAlias = tuple[int | str | None, ...]
Axes: TypeAlias = Mapping[int, Channels]
"""Labels of the entries of those axes that have any."""


MEETS_FIXED = "the channels meet a tensor whose channels stay"
NO_HEADS = "splits channels into axes that are no attention heads"


class PinnedError(Exception):
    """A rule cannot follow the channels of its inputs: they stay, for this reason. Never leaves the tracer."""


@dataclass(frozen=True, slots=True)
class ConstantUse:
    """Labels along one axis of a constant, as one node reads it."""

    node: str
    input: int
    tensor: str
    axis: int
    labels: Channels
    reads: bool
    """Whether it reads the channels; if not, it makes or changes them."""


class Tracer:
    """Labels of every tensor of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.labels = ChannelLabels()
        self.uses: list[ConstantUse] = []
        self.sizes: list[Size] = []
        self.pins: dict[tuple[str, str], Pin] = {}
        self.tensors: dict[str, dict[int, Channels]] = {}
        self.multiplied: list[Channels] = []
        """Labels of axes along which products of two activations run side by side: attention heads."""
        self.splits: list[tuple[Node, Channels]] = []
        """Reshapes that split channels into heads, and a label of each."""
        self._constants: dict[str, NDArray[Any] | None] = {"": None}
        self._matrices: dict[str, tuple[Channels, ...]] = {}

    # What is there

    def axes(self, value: Value | None) -> Axes:
        """Return the labelled axes of an activation; none of a constant."""
        return self.tensors.get(value.name or "", {}) if value is not None else {}

    def constant(self, value: Value | None) -> NDArray[Any] | None:
        """Return the numbers of a constant, otherwise None."""
        name = value.name or "" if value is not None else ""
        if name not in self._constants:
            self._constants[name] = self.graph.constant(value)
        return self._constants[name]

    def dims(self, value: Value | None) -> Dims:
        """Return the shape of a tensor or constant: numbers, names, None where nothing is known.

        Raises:
            PinnedError: If not even the number of dimensions is known.
        """
        array = self.constant(value)
        if array is not None:
            return array.shape
        if value is None or value.shape is None:
            raise PinnedError("the shape of a tensor is not known")
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)

    def rank(self, value: Value | None) -> int:
        """Return the number of dimensions.

        Raises:
            PinnedError: If it is not known.
        """
        return len(self.dims(value))

    def integers(self, value: Value | None, what: str) -> tuple[int, ...]:
        """Return the whole numbers of a constant.

        Raises:
            PinnedError: If it is none.
        """
        array = self.constant(value)
        if array is None:
            raise PinnedError(f"{what} is computed while the model runs")
        return tuple(int(entry) for entry in array.reshape(-1))

    # What rules write

    def fresh(self, node: Node, count: int) -> Channels:
        """Return labels for the channels that a node makes; one alone can never be removed."""
        return self.labels.fresh(name_of(node), count) if count > 1 else channels([FIXED] * count)

    def give(self, value: Value, axes: Axes) -> None:
        """Label axes of an output; an axis without any label is left out."""
        labelled = {axis: labels for axis, labels in sorted(axes.items()) if (labels != FIXED).any()}
        if labelled and value.name:
            self.tensors[value.name] = labelled

    def tie(self, node: Node, array: Channels, other: Channels, reason: str) -> None:
        """Let entries be removed together, or stay where they meet one that stays."""
        if self.labels.tie(array, other, reason):
            self.note(node, reason)

    def pin(self, node: Node, labels: Channels, reason: str) -> None:
        """Let entries stay."""
        if self.labels.pin(labels, reason):
            self.note(node, reason)

    def pin_value(self, value: Value | None, pin: Pin) -> None:
        """Let all channels of an activation stay."""
        for labels in self.axes(value).values():
            if self.labels.pin(labels, pin.reason):
                self.pins.setdefault((pin.node, pin.reason), pin)

    def pin_other_axes(self, node: Node, value: Value | None, allowed: Sequence[int], reason: str) -> None:
        """Let the channels of an activation stay that lie along other axes than these."""
        for axis, labels in self.axes(value).items():
            if axis not in allowed:
                self.pin(node, labels, reason)

    def note(self, node: Node, reason: str) -> None:
        """Remember that a node pinned something."""
        self.pins.setdefault((name_of(node), reason), Pin(name_of(node), node.op_type, reason))

    def use(self, node: Node, place: int, axes: Axes, *, reads: int | None = None) -> None:
        """Label axes of a constant that a node reads.

        Args:
            node: The node.
            place: Of the constant among its inputs.
            axes: Labels by axis.
            reads: The axis along which the node reads channels; along others it makes or changes them.
        """
        value = node.inputs[place]
        if value is None:
            return
        name = value.name or ""
        self._tie_shared(node, value, axes)
        self.uses.extend(
            ConstantUse(name_of(node), place, name, axis, labels, axis == reads)
            for axis, labels in axes.items()
            if (labels != FIXED).any()
        )

    def _tie_shared(self, node: Node, value: Value, axes: Axes) -> None:
        """Tie the channels of weights that several nodes read, so that they stay one; small constants are copied."""
        shape = self.dims(value)
        if sum(size != 1 for size in shape) < 2:
            return
        labels = tuple(axes.get(axis, np.full(int(size or 0), FIXED, np.int32)) for axis, size in enumerate(shape))
        earlier = self._matrices.setdefault(value.name or "", labels)
        for array, other in zip(earlier, labels, strict=True):
            self.tie(node, array, other, "shares its weights with a node whose channels stay")

    def count(self, node: Node, place: int | str, values: Sequence[int], entry: int, labels: Channels) -> None:
        """Remember a number that counts channels; see `Size`."""
        self.sizes.append(Size(name_of(node), place, tuple(values), entry, labels))


def name_of(node: Node) -> str:
    """Return the name of a node's first output."""
    return next((output.name for output in node.outputs if output.name), "")


def positive(axis: int, rank: int) -> int:
    """Return an axis that may count from the end as one from the front."""
    return axis + rank if axis < 0 else axis
