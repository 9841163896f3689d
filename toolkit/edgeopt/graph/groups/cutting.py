"""Take channels out of a model: constants lose their entries, numbers that count them are rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.groups.tracer import name_of
from edgeopt.graph.groups.types import AxisCut, ChannelGroups, Channels, Size
from edgeopt.graph.model import Model

Kept = NDArray[np.bool_]


def keep_channels(model: Model, groups: ChannelGroups, keep: Mapping[str, NDArray[np.int64]]) -> Model:
    """Return the model with all but some channels removed.

    Args:
        model: The one that was traced, or one of the same graph with other weights.
        groups: What `trace` found.
        keep: The channels of each group that stay, in rising order; a group that is not named keeps all.

    Raises:
        NotFoundError: If there is no group of a name.
        EdgeoptError: If a group is pinned, a channel does not exist, or nothing would be left of a tensor.
        InvalidFileError: If onnx's checker refuses the result.
    """
    kept = _kept(groups, keep)
    empty = _first_empty(groups, kept)
    if empty:
        raise EdgeoptError(f"no channel of {empty!r} would be left", remedy="keep at least one of them")
    graph = Graph.from_model(model)
    nodes = {name_of(node): node for node in graph.nodes()}
    _cut_constants(graph, nodes, groups.plan.cuts, kept)
    _rewrite_sizes(graph, nodes, groups.plan.sizes, kept)
    _shrink_shapes(graph, groups, kept)
    made = graph.to_model()
    require_valid(made.proto, f"{model.name} with channels removed")
    return made


def first_empty(groups: ChannelGroups, keep: Mapping[str, NDArray[np.int64]]) -> str:
    """Return a tensor of which nothing would be left, a part of a Split for example; empty where there is none.

    Raises:
        NotFoundError: If there is no group of a name.
        EdgeoptError: If a group is pinned, or a channel does not exist.
    """
    return _first_empty(groups, _kept(groups, keep))


def _first_empty(groups: ChannelGroups, kept: Kept) -> str:
    return next((tensor.tensor for tensor in groups.plan.tensors if not _mask(tensor.channels, kept).any()), "")


def _kept(groups: ChannelGroups, keep: Mapping[str, NDArray[np.int64]]) -> Kept:
    """Return whether each channel of all groups is kept, and True at the end, where -1 looks."""
    starts = np.cumsum([0, *(other.channels for other in groups)])
    kept = np.ones(int(starts[-1]) + 1, bool)
    names = {other.name: i for i, other in enumerate(groups)}
    for name, wanted in keep.items():
        if name not in names:
            raise NotFoundError("group of channels", name, names)
        group = groups.groups[names[name]]
        chosen = np.unique(np.asarray(wanted, np.int64))
        if chosen.size and (chosen[0] < 0 or chosen[-1] >= group.channels):
            raise EdgeoptError(
                f"group {name!r} has channels 0 to {group.channels - 1}", remedy="name channels that exist"
            )
        if group.pinned and chosen.size < group.channels:
            raise EdgeoptError(f"group {name!r} is pinned: {group.pinned}", remedy="leave it as it is")
        start = starts[names[name]]
        kept[start : start + group.channels] = False
        kept[start + chosen] = True
    return kept


def _mask(numbers: Channels, kept: Kept) -> Kept:
    return kept[numbers]


def _cut_constants(graph: Graph, nodes: Mapping[str, Node], cuts: Iterable[AxisCut], kept: Kept) -> None:
    """Cut each constant for each node that reads it; nodes that need the same share it, and it keeps its name."""
    wanted: dict[str, dict[tuple[str, int], dict[int, Kept]]] = {}
    for cut in cuts:
        mask = _mask(cut.channels, kept)
        if not mask.all():
            wanted.setdefault(cut.tensor, {}).setdefault((cut.node, cut.input), {})[cut.axis] = mask
    for readers in wanted.values():
        forms: dict[tuple[tuple[int, bytes], ...], list[tuple[str, int]]] = {}
        for place, masks in readers.items():
            forms.setdefault(tuple((axis, mask.tobytes()) for axis, mask in sorted(masks.items())), []).append(place)
        for places in forms.values():
            _cut(graph, nodes, places, readers[places[0]])


def _cut(graph: Graph, nodes: Mapping[str, Node], places: list[tuple[str, int]], masks: Mapping[int, Kept]) -> None:
    node, place = nodes[places[0][0]], places[0][1]
    value = node.inputs[place]
    array = graph.constant(value)
    if value is None or array is None or any(array.shape[axis] != mask.size for axis, mask in masks.items()):
        raise EdgeoptError(
            f"input {place} of {places[0][0]!r} is not what was traced", remedy="trace the model that is pruned"
        )
    for axis, mask in masks.items():
        array = np.compress(mask, array, axis)
    _store(graph, [(nodes[name], other) for name, other in places], array)


def _store(graph: Graph, places: Sequence[tuple[Node, int]], array: NDArray[Any]) -> None:
    """Let inputs of nodes be a constant: under its old name where nothing else reads that one."""
    node, place = places[0]
    old = node.inputs[place] if place < len(node.inputs) else None
    if old is not None and old.is_initializer() and len(old.uses()) == len(places) and not graph.is_output(old):
        graph.set_constant(old, array)
        return
    graph.set_input(node, place, array)
    for other, index in places[1:]:
        graph.set_input(other, index, node.inputs[place])
    maker = graph.producer(old, "Constant")
    if maker is not None and not maker.outputs[0].uses():
        graph.remove(maker)


def _rewrite_sizes(graph: Graph, nodes: Mapping[str, Node], sizes: Iterable[Size], kept: Kept) -> None:
    changed: dict[tuple[str, int | str], list[Size]] = {}
    for size in sizes:
        changed.setdefault((size.node, size.place), []).append(size)
    for (name, place), ones in changed.items():
        values = list(ones[0].values)
        for other in ones:
            values[other.entry] = int(_mask(other.channels, kept).sum())  # also -3 becomes a number from the front
        if values != [*ones[0].values]:
            _write(graph, nodes[name], place, values, is_number=ones[0].entry < 0)


def _write(graph: Graph, node: Node, place: int | str, values: list[int], *, is_number: bool) -> None:
    if isinstance(place, str):
        graph.set_attribute(node, place, values[0] if is_number else values)
        return
    old: Any = graph.constant(node.inputs[place]) if len(node.inputs) > place else None
    array = np.array(values, old.dtype if old is not None else np.int64)
    if node.op_type == "Split":
        graph.set_attribute(node, "num_outputs", None)
    _store(graph, [(node, place)], array.reshape(old.shape) if old is not None else array)


def _shrink_shapes(graph: Graph, groups: ChannelGroups, kept: Kept) -> None:
    values: dict[str, Value] = {output.name or "": output for node in graph.nodes() for output in node.outputs}
    for use in groups.plan.tensors:
        mask = _mask(use.channels, kept)
        shape = values[use.tensor].shape
        if not mask.all() and shape is not None:
            sizes = [dim if isinstance(dim, int) else dim.value for dim in shape.dims]
            sizes[use.axis] = int(mask.sum())
            graph.set_shape(values[use.tensor], sizes)
