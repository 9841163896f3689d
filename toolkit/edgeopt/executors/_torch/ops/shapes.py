"""Ops that move values, cut them out, or tell of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node, given, ints, number, torch_padding
from edgeopt.executors._torch.ops.elementwise import together


def _reshape(node: Node, x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    sizes = ints(shape)
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: Node, x: torch.Tensor) -> torch.Tensor:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, x.numel() // rows if rows else 0)


def _squeeze(node: Node, x: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
    gone = given(node, "axes", axes)
    where = [axis for axis, size in enumerate(x.shape) if size == 1] if gone is None else [a % x.ndim for a in gone]
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in where])


def _unsqueeze(node: Node, x: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
    new = given(node, "axes", axes) or []
    rank = x.ndim + len(new)
    for axis in sorted(index % rank for index in new):
        x = x.unsqueeze(axis)
    return x


def _transpose(node: Node, x: torch.Tensor) -> torch.Tensor:
    return x.permute(node.get("perm", list(reversed(range(x.ndim)))))


def _expand(_node: Node, x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(ints(shape))))


def _tile(_node: Node, x: torch.Tensor, repeats: torch.Tensor) -> torch.Tensor:
    return x.repeat(ints(repeats))


def _concat(node: Node, *values: torch.Tensor) -> torch.Tensor:
    return torch.cat(together(*values), node.get("axis", 0))


def _split(node: Node, x: torch.Tensor, split: torch.Tensor | None = None) -> Any:
    axis, sizes = node.get("axis", 0), given(node, "split", split)
    if not sizes:
        count = node.get("num_outputs", node.outputs)
        part = -(-x.shape[axis] // count)
        sizes = [min(part, x.shape[axis] - part * place) for place in range(count)]
    return tuple(torch.split(x, sizes, axis))


def _slice(
    node: Node,
    x: torch.Tensor,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    axes: torch.Tensor | None = None,
    steps: torch.Tensor | None = None,
) -> torch.Tensor:
    begins, stops = given(node, "starts", starts) or [], given(node, "ends", ends) or []
    where = given(node, "axes", axes) or list(range(len(begins)))
    strides = ints(steps) or [1] * len(begins)
    for begin, stop, axis, step in zip(begins, stops, where, strides, strict=True):
        places = range(*slice(begin, stop if abs(stop) < 2**62 or step > 0 else None, step).indices(x.shape[axis]))
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(places.start, places.stop, step),)]
        else:
            x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return x


def _gather(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = node.get("axis", 0) % x.ndim
    indices = indices.to(x.device, torch.int64)
    size = x.shape[axis]
    if indices.ndim == 0 and indices.device.type == "cpu":
        return x.select(axis, int(number(indices)))
    flat = torch.where(indices < 0, indices + size, indices).reshape(-1)
    return x.index_select(axis, flat).reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _positive(indices: torch.Tensor, size: int, device: torch.device) -> torch.Tensor:
    indices = indices.to(device, torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def _gather_elements(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = node.get("axis", 0)
    return x.gather(axis, _positive(indices, x.shape[axis], x.device))


def _places(x: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return an index for each of the first axes, of tuples of them along the last axis."""
    return tuple(_positive(value, x.shape[axis], x.device) for axis, value in enumerate(indices.unbind(-1)))


def _gather_nd(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    if node.get("batch_dims", 0):
        raise node.refuse("batch_dims")
    return x[_places(x, indices)]


def _scatter_elements(node: Node, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    axis, kind = node.get("axis", 0), node.get("reduction", "none")
    indices = _positive(indices, x.shape[axis], x.device)
    if kind == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[kind])


def _scatter_nd(node: Node, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    kind = node.get("reduction", "none")
    if kind not in ("none", "add"):
        raise node.refuse(f"the reduction {kind}")
    return x.index_put(_places(x, indices), updates.to(x.device), accumulate=kind == "add")


_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(
    node: Node,
    x: torch.Tensor,
    pads: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    axes: torch.Tensor | None = None,
) -> torch.Tensor:
    written = given(node, "pads", pads) or []
    where = [axis % x.ndim for axis in ints(axes)] if axes is not None else list(range(x.ndim))
    whole = [0] * 2 * x.ndim
    for place, axis in enumerate(where):
        whole[axis], whole[axis + x.ndim] = written[place], written[place + len(where)]
    mode = node.get("mode", "constant")
    if mode == "constant":
        filling = node.get("value", 0.0) if value is None else number(value)
        return functional.pad(x, torch_padding(whole), value=filling)
    for axis in range(x.ndim):  # torch knows these modes for the last axes only
        if whole[axis] or whole[axis + x.ndim]:
            x = _pad_axis(x, axis, whole[axis], whole[axis + x.ndim], mode, node)
    return x


def _pad_axis(x: torch.Tensor, axis: int, begin: int, end: int, mode: str, node: Node) -> torch.Tensor:
    if mode not in _PAD_MODES:
        raise node.refuse(f"the mode {mode}")
    size = x.shape[axis]
    places = torch.arange(-begin, size + end)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places.abs() % period
        places = torch.minimum(places, period - places) if size > 1 else places * 0
    return x.index_select(axis, places.to(x.device))


def _depth_to_space(node: Node, x: torch.Tensor) -> torch.Tensor:
    block, (n, c, h, w) = node.get("blocksize", 1), x.shape
    inner = c // block**2
    if node.get("mode", "DCR") == "DCR":
        x = x.reshape(n, block, block, inner, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, inner, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, inner, h * block, w * block)


def _space_to_depth(node: Node, x: torch.Tensor) -> torch.Tensor:
    block, (n, c, h, w) = node.get("blocksize", 1), x.shape
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = x.reshape(n, c, h // block, block, w // block, block).permute(order)
    return x.reshape(n, c * block**2, h // block, w // block)


def _shape(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.shape[node.get("start", 0) : node.get("end", x.ndim)], dtype=torch.int64)


def _constant(node: Node) -> torch.Tensor:
    for name, kind in (("value_float", torch.float32), ("value_int", torch.int64)):
        if (entry := node.get(name, None)) is not None:
            return torch.tensor(entry, dtype=kind)
    for name, kind in (("value_floats", torch.float32), ("value_ints", torch.int64)):
        if (several := node.get(name, None)) is not None:
            return torch.tensor(list(several), dtype=kind)
    value = node.get("value", None)
    if not isinstance(value, torch.Tensor):
        raise node.refuse("a constant that is no tensor of numbers")
    return value


def _constant_of_shape(node: Node, shape: torch.Tensor) -> torch.Tensor:
    value = node.get("value", torch.zeros(1))
    return value.reshape(()).expand(ints(shape)).clone()


def _range(_node: Node, start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return torch.arange(number(start), number(limit), number(delta), dtype=start.dtype)


def _one_hot(node: Node, indices: torch.Tensor, depth: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    count, axis = int(number(depth)), node.get("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    wrapped = torch.where(indices < 0, indices + count, indices).unsqueeze(axis)
    places = torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.ndim - axis))
    off, on = values.to(indices.device).unbind(0)
    return torch.where(wrapped == places, on, off)


def _triangle(node: Node, x: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor:
    offset = 0 if diagonal is None else int(number(diagonal))
    return torch.triu(x, offset) if node.get("upper", 1) else torch.tril(x, offset)


def _non_zero(_node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x).t().contiguous()


OPS: dict[str, Compute] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Transpose": _transpose,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "Trilu": _triangle,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Shape": _shape,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Size": lambda _node, x: torch.tensor(x.numel(), dtype=torch.int64),
}
