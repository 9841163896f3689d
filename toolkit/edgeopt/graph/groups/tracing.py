"""Find the dependency groups of a graph: label the channels that nodes make, follow them, gather what is tied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.groups.labels import FIXED, ChannelLabels, components
from edgeopt.graph.groups.rules import rules
from edgeopt.graph.groups.tracer import NO_HEADS, ConstantUse, PinnedError, Tracer, name_of
from edgeopt.graph.groups.types import AxisCut, ChannelGroups, Channels, ChannelUse, CutPlan, Group, Pin, channels
from edgeopt.graph.model import Model

LEAST_OPSET = 7
"""Opset before which operands were broadcast by attributes."""


def trace(model: Model) -> ChannelGroups:
    """Return the groups of channels that can only be removed together.

    Channels that no rule can follow are pinned, and so is all that they are tied to; nothing is guessed.

    Args:
        model: Any; shapes that are not fixed pin what hangs on them. Below opset 7 it has no groups.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    at = Tracer(graph)
    for node in graph.nodes() if graph.opset >= LEAST_OPSET else ():
        _follow(node, at)
    for value in graph.outputs:
        at.pin_value(value, Pin(value.name or "", "output", "an output of the model keeps its shape"))
    _pin_what_is_split(at)
    return _groups(at)


def _pin_what_is_split(at: Tracer) -> None:
    """Let channels stay that a Reshape splits, unless a product of activations runs over them side by side."""
    roots = at.labels.roots()
    multiplied = {int(root) for labels in at.multiplied for root in roots[labels[labels != FIXED]]}
    for node, labels in at.splits:
        if not multiplied.intersection(roots[labels[labels != FIXED]].tolist()):
            at.pin(node, labels, NO_HEADS)


def _follow(node: Node, at: Tracer) -> None:
    rule = rules().get(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
    read = [*node.inputs, *_captured(node)]
    if not any(at.axes(value) for value in read) and not (rule is not None and rule.makes):
        return None
    if rule is None:
        return _pin_inputs(read, node, at, f"{node.op_type} is not followed")
    before = at.labels.count
    try:
        if not rule.joins and any(at.axes(value) for value in read[1:]):
            raise PinnedError("channels are a parameter of it")
        rule.follow(node, at)
    except PinnedError as error:
        reason = str(error)
    except (IndexError, ValueError):  # of a foreign file: inputs are missing, stored shapes are wrong
        reason = "its shapes do not fit together"
    else:
        return None
    at.labels.pin(channels(range(before, at.labels.count)), reason)
    return _pin_inputs(read, node, at, reason)


def _pin_inputs(read: Iterable[Value | None], node: Node, at: Tracer, reason: str) -> None:
    for value in read:
        at.pin_value(value, Pin(name_of(node), node.op_type, reason))


def _captured(node: Node) -> list[Value]:
    """Return the values that subgraphs of a node read from outside of them."""
    inner = [attribute.value for attribute in node.attributes.values() if isinstance(attribute.value, ir.Graph)]
    nodes = [other for graph in inner for other in ir.traversal.RecursiveGraphIterator(graph)]
    read = [value for other in nodes for value in other.inputs if value is not None]
    return [*read, *(value for graph in inner for value in graph.outputs)]


def _groups(at: Tracer) -> ChannelGroups:
    numbers = _Numbers(at.labels)
    made, read = (_by_group(numbers, [_use(use) for use in at.uses if use.reads is reads]) for reads in (False, True))
    changed = [ChannelUse("", name, axis, array) for name, axes in at.tensors.items() for axis, array in axes.items()]
    carried = _by_group(numbers, changed)
    groups = tuple(
        Group(group.name, group.channels, tuple(made[i]), tuple(read[i]), tuple(carried[i]), group.pinned)
        for i, group in enumerate(numbers.groups)
    )
    plan = CutPlan(
        tuple(AxisCut(use.node, use.input, use.tensor, use.axis, numbers.of(use.labels)) for use in at.uses),
        tuple(replace(size, channels=numbers.of(size.channels)) for size in at.sizes),
        tuple(replace(use, channels=numbers.of(use.channels)) for use in changed),
    )
    return ChannelGroups(groups, tuple(at.pins.values()), plan)


def _use(constant_use: ConstantUse) -> ChannelUse:
    return ChannelUse(constant_use.node, constant_use.tensor, constant_use.axis, constant_use.labels)


def _by_group(numbers: _Numbers, uses: Iterable[ChannelUse]) -> list[list[ChannelUse]]:
    """Return what each group has of these uses, in channels of its own."""
    result: list[list[ChannelUse]] = [[] for _ in numbers.groups]
    for use in uses:
        whole = numbers.of(use.channels)
        for i in np.unique(numbers.group_of[whole[whole != FIXED]]):
            own = (whole >= numbers.starts[i]) & (whole < numbers.starts[i + 1])
            result[i].append(replace(use, channels=channels(np.where(own, whole - numbers.starts[i], FIXED))))
    return result


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    channels: int
    pinned: str


class _Numbers:
    """One number for every channel, group after group; none for what stays in a group of which something can go."""

    def __init__(self, labels: ChannelLabels) -> None:
        self._roots = labels.roots()
        reasons = np.full(len(self._roots), FIXED)
        for i, (stay, _) in reversed([*enumerate(labels.pinned)]):
            reasons[self._roots[stay]] = i  # the first reason is told
        blocks = labels.blocks
        joined = components(len(labels.makers), [(channels(blocks), channels(blocks[self._roots]))])
        self._number = np.full(len(self._roots) + 1, FIXED, np.int32)  # the last entry is what a fixed label finds
        self.groups: list[_Named] = []
        self.starts = [0]
        order = np.argsort(joined[blocks], kind="stable")
        ends = np.flatnonzero(np.diff(joined[blocks][order])) + 1
        for members in np.split(order, ends) if order.size else ():
            roots = np.unique(self._roots[members])
            free = roots[reasons[roots] == FIXED]
            pinned = "" if len(free) else labels.pinned[reasons[roots[0]]][1]
            if len(roots) == 1 and not pinned:
                pinned = "it is one unit that cannot be divided"
            shown = roots if pinned else free
            self._number[shown] = np.arange(len(shown)) + self.starts[-1]
            name = min(labels.makers[value] for value in np.unique(blocks[members]))
            self.groups.append(_Named(name, len(shown), pinned))
            self.starts.append(self.starts[-1] + len(shown))
        self.group_of = np.repeat(np.arange(len(self.groups)), np.diff(self.starts))

    def of(self, labels: Channels) -> Channels:
        """Return the numbers of labels."""
        return self._number[np.where(labels == FIXED, FIXED, self._roots[labels])]
