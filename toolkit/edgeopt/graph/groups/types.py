"""Results of tracing: groups of channels that can only be removed together, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Channels = NDArray[np.int32]
"""Per entry of an axis: a channel, or -1 where the entry belongs to none and stays."""


@dataclass(frozen=True, slots=True)
class ChannelUse:
    """Where a group's channels lie in one tensor or constant."""

    node: str
    """First output of the node that reads the constant; empty for an activation."""
    tensor: str
    """Name of the constant or the activation."""
    axis: int
    channels: Channels
    """Per entry of the axis: the channel of the group, or -1 for an entry of none, which stays."""


@dataclass(frozen=True, slots=True)
class Group:
    """Channels that can be removed one by one, each at once wherever it lies."""

    name: str
    """The smallest of the names of the outputs that first hold the channels."""
    channels: int
    """How many units can be removed one by one: an attention head or a whole group of a convolution is one unit."""
    producers: tuple[ChannelUse, ...]
    """Constants that make the channels: rows of weights, biases, scales, weights of depthwise convolutions."""
    consumers: tuple[ChannelUse, ...]
    """Constants that read them: input columns of Conv, ConvTranspose, Gemm and MatMul."""
    tensors: tuple[ChannelUse, ...]
    """Activations that carry them."""
    pinned: str
    """Why nothing of it can be removed; empty where it can."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A node whose channels must stay."""

    node: str
    """Its first output; for an output of the model, its name."""
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class AxisCut:
    """An axis of a constant that loses entries with the channels."""

    node: str
    """First output of the node that reads the constant."""
    input: int
    """Place among the node's inputs."""
    tensor: str
    axis: int
    channels: Channels
    """Per entry: number of the channel among those of all groups, or -1."""


@dataclass(frozen=True, slots=True)
class Size:
    """A number of the graph that is a count of channels."""

    node: str
    """First output of the node that has it."""
    place: int | str
    """Place among the node's inputs, or the name of the attribute."""
    values: tuple[int, ...]
    """All numbers of the input or attribute today; a list that was left out is written."""
    entry: int
    """Which of them the count is; -1 where the attribute is one number."""
    channels: Channels
    """Channels that the entry counts: those numbered -1, and those that are kept."""


@dataclass(frozen=True, slots=True)
class CutPlan:
    """All that removing channels has to edit, in numbers of channels that run through all groups."""

    cuts: tuple[AxisCut, ...] = ()
    sizes: tuple[Size, ...] = ()
    tensors: tuple[ChannelUse, ...] = ()
    """Activations whose shape changes."""


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """The dependency groups of one graph; they hold for every model of the same graph, whatever its weights."""

    groups: tuple[Group, ...]
    """Groups in the order of the graph."""
    pins: tuple[Pin, ...]
    plan: CutPlan = field(default_factory=CutPlan, repr=False, compare=False)

    @property
    def free(self) -> tuple[Group, ...]:
        """Those of which channels can be removed."""
        return tuple(group for group in self.groups if not group.pinned)

    def __getitem__(self, name: str) -> Group:
        """Return the group of this name.

        Raises:
            KeyError: If there is none.
        """
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def channels(numbers: Any) -> Channels:
    """Return numbers as `Channels`."""
    return np.asarray(numbers, np.int32)
