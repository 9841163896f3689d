"""Sums, means and the like over axes; the largest and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edgeopt.executors._torch.ops._node import Compute, Node, given, ints, number


def _product(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def _norm(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    return torch.sqrt((x * x).sum(axes, keepdim=keepdim))


_REDUCTIONS: dict[str, Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]] = {
    "Sum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "Mean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "Max": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "Min": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "Prod": _product,
    "L1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "L2": _norm,
    "SumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
    "LogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "LogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
}


def reduced_axes(node: Node, rank: int, axes: torch.Tensor | None) -> tuple[int, ...]:
    """Return the axes that a reduction takes, counted from the front; none means that it takes no axis at all."""
    written = given(node, "axes", axes)
    if not written:
        return () if node.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(axis % rank for axis in written)


def _reduce(function: Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]) -> Compute:
    def compute(node: Node, x: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
        wanted = reduced_axes(node, x.ndim, axes)
        if not wanted and x.ndim:
            return x
        return function(x, wanted, bool(node.get("keepdims", 1))).to(x.dtype)

    return compute


def _extreme(function: Callable[..., torch.Tensor]) -> Compute:
    def compute(node: Node, x: torch.Tensor) -> torch.Tensor:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)
        return function(x, axis, keepdim=keep)

    return compute


def _top(node: Node, x: torch.Tensor, k: torch.Tensor | None = None) -> Any:
    count = node.get("k", 0) if k is None else int(number(k))
    axis, largest = node.get("axis", -1), bool(node.get("largest", 1))
    order = torch.argsort(x, dim=axis, descending=largest, stable=True).narrow(axis, 0, count)  # ties: the first place
    return x.gather(axis, order), order


def _cumulative(node: Node, x: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    where = ints(axis)[0]
    x = x.flip(where) if node.get("reverse", 0) else x
    made = torch.cumsum(x, where).to(x.dtype)
    if node.get("exclusive", 0):
        made = made.roll(1, where)
        made = made.index_fill(where, torch.zeros(1, dtype=torch.int64, device=x.device), 0)
    return made.flip(where) if node.get("reverse", 0) else made


OPS: dict[str, Compute] = {
    **{f"Reduce{name}": _reduce(function) for name, function in _REDUCTIONS.items()},
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "TopK": _top,
    "CumSum": _cumulative,
}
