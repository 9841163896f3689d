"""The last readers of a tensor: layers whose weights can take over a gain and an offset for each channel.

A convolution of A z + D is a convolution of z with other weights; D adds to its bias, but not where the picture is
padded with zeros, which stand for zeros of A z. Pooling by maximum, Resize and Concat hand both on. An Add hands a gain
on where all it adds have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.activations.sites import Site
from edgeopt.steps.quantize.patterns import data_axis, has_weights, name_of

_HAND_ON = ("MaxPool", "GlobalMaxPool", "GlobalAveragePool", "Resize", "Identity", "Dropout")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A weighted layer and the first of its input channels that come from a tensor."""

    node: Node
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ChannelReach:
    """Where the channels of one activation go."""

    leaves: tuple[Leaf, ...]
    takes_gain: bool
    takes_offset: bool
    tied: tuple[str, ...]
    """Names of all activations that must have the same gain, its own among them, in the order of the graph."""


def reaches(graph: Graph, sites: Sequence[Site]) -> dict[str, ChannelReach]:
    """Return for each activation, by name, what reads it."""
    walks = {site.name: _walk(graph, site) for site in sites}
    makers = {name: set(walk.sums) for name, walk in walks.items()}
    ties = _ties(makers)
    members = {name: tuple(other for other in walks if ties[other] == ties[name]) for name in walks}
    broken = {name for name, walk in walks.items() if any(not _is_whole(graph, key, walks) for key in walk.sums)}
    result = {}
    for name, walk in walks.items():
        group = members[name]
        gain = all(walks[word].is_linear and word not in broken for word in group)
        result[name] = ChannelReach(
            tuple(walk.leaves), gain, walk.is_linear and not walk.pads, group if gain else (name,)
        )
    return result


class _Walk:
    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.is_linear = True
        self.pads = False
        self.sums: dict[str, None] = {}
        """Names of the sums that it enters."""


def _walk(graph: Graph, site: Site) -> _Walk:
    walk, rank = _Walk(), graph.rank(site.x) or 4
    _follow(graph, site.y, 0, site, rank, walk, set())
    return walk


def _follow(graph: Graph, value: Value, first: int, site: Site, rank: int, walk: _Walk, seen: set[Value]) -> None:
    if value in seen:
        return
    seen.add(value)
    if graph.is_output(value):
        walk.is_linear = False
    for node in graph.consumers(value):
        if not _take(graph, node, value, first, site, rank, walk, seen):
            walk.is_linear = False


def _take(
    graph: Graph, node: Node, value: Value, first: int, site: Site, rank: int, walk: _Walk, seen: set[Value]
) -> bool:
    """Note what a reader does with the channels; False where it cannot take a gain over."""
    if node.graph is not value.graph or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in ("Conv", "MatMul", "Gemm"):
        if node.inputs[0] is not value or not has_weights(graph, node) or list(node.inputs).count(value) > 1:
            return False
        if data_axis(node) % rank != site.axis % rank or attribute(node, "alpha", 1.0) != 1:
            return False
        walk.leaves.append(Leaf(node, first, site.channels))
        padded = any(attribute(node, "pads", ()) or ()) or attribute(node, "auto_pad", "NOTSET") not in (
            "NOTSET",
            "VALID",
        )
        walk.pads |= node.op_type == "Conv" and padded
        return True
    if node.op_type == "Concat":
        if attribute(node, "axis", 0) % rank != site.axis % rank:
            return False
        for index, input_ in enumerate(node.inputs):
            if input_ is value:
                sizes = [graph.shape(other) for other in node.inputs[:index]]
                if any(size is None for size in sizes):
                    return False
                before = sum(size[site.axis] for size in sizes if size is not None)
                _follow_again(graph, node.outputs[0], first + before, site, rank, walk, seen)
        return True
    if node.op_type == "Add":
        shapes = [graph.shape(input_) for input_ in node.inputs]
        if None in shapes or shapes[0] != shapes[1] or first:
            return False
        walk.sums[name_of(node.outputs[0])] = None
        _follow(graph, node.outputs[0], first, site, rank, walk, seen)
        return True
    if node.op_type in _HAND_ON and node.inputs[0] is value and (rank == 4 or node.op_type == "Identity"):
        if node.op_type == "Resize" and attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
            return False
        _follow(graph, node.outputs[0], first, site, rank, walk, seen)
        return True
    return False


def _follow_again(graph: Graph, value: Value, first: int, site: Site, rank: int, walk: _Walk, seen: set[Value]) -> None:
    """Follow a Concat's output, which the same channels may enter in several places."""
    _follow(graph, value, first, site, rank, walk, seen - {value})


def _ties(makers: dict[str, set[str]]) -> dict[str, int]:
    """Return a number for each name, the same for those that meet in a sum."""
    group = {name: number for number, name in enumerate(makers)}
    changed = True
    while changed:
        changed = False
        for name, sums in makers.items():
            for other, theirs in makers.items():
                if sums & theirs and group[name] != group[other]:
                    group[name] = group[other] = min(group[name], group[other])
                    changed = True
    return group


def _is_whole(graph: Graph, key: str, walks: dict[str, _Walk]) -> bool:
    """Whether activations make all that a sum adds."""
    value = graph.value(key)
    add = graph.producer(value, "Add")
    return add is not None and all(
        name_of(input_) in walks or name_of(input_) in _summed(walks) for input_ in add.inputs if input_
    )


def _summed(walks: dict[str, _Walk]) -> set[str]:
    return {key for walk in walks.values() for key in walk.sums}


def absorb_gain(graph: Graph, leaves: Iterable[Leaf], gain: NDArray[np.float64]) -> None:
    """Let layers compute of z what they computed of gain * z, in place."""
    for leaf in leaves:
        weight = graph.constant(leaf.node.inputs[1])
        assert weight is not None
        graph.set_input(leaf.node, 1, (weight * _spread(leaf, weight, gain, 1.0)).astype(weight.dtype))


def absorb_offset(graph: Graph, leaves: Iterable[Leaf], offset: NDArray[np.float64]) -> None:
    """Let layers compute of z what they computed of z + offset, in place."""
    for leaf in leaves:
        node = leaf.node
        weight = graph.constant(node.inputs[1])
        assert weight is not None
        spread = weight * _spread(leaf, weight, offset, 0.0)
        if node.op_type == "Conv":
            added = spread.sum(axis=tuple(range(1, spread.ndim)))
        else:
            added = spread.sum(axis=_input_axis(node, weight))
        _add_bias(graph, node, added.astype(np.float32))


def _add_bias(graph: Graph, node: Node, added: NDArray[np.float32]) -> None:
    if node.op_type != "MatMul":
        old = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        graph.set_input(node, 2, added if old is None else (old + added).astype(np.float32))
        return
    y = node.outputs[0]
    bias = graph.add_initializer(f"{name_of(y)}_offset", added)
    made = graph.insert("Add", [y, bias], name=f"{name_of(y)}_moved", after=node)
    graph.replace(y, made.outputs[0])  # an output of the model too
    graph.set_input(made, 0, y)


def _input_axis(node: Node, weight: NDArray[np.generic]) -> int:
    if node.op_type == "Gemm":
        return 1 if attribute(node, "transB", 0) else 0
    return weight.ndim - 2


def _spread(leaf: Leaf, weight: NDArray[np.generic], values: NDArray[np.float64], rest: float) -> NDArray[np.float64]:
    """Return what each weight is multiplied by: the value of the channel that it reads, `rest` for other channels."""
    groups = int(attribute(leaf.node, "group", 1)) if leaf.node.op_type == "Conv" else 1
    axis = 1 if leaf.node.op_type == "Conv" else _input_axis(leaf.node, weight)
    whole = np.full(weight.shape[axis] * groups, rest)
    whole[leaf.first : leaf.first + leaf.count] = values
    if groups == 1:
        return whole.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    made = weight.shape[0] // groups  # output channel o reads the inputs of group o // made
    rows = np.repeat(whole.reshape(groups, weight.shape[1]), made, axis=0)
    return rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))
