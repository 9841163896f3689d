"""Pooling over windows and over all positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node, torch_padding, windows_padding

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _windows(node: Node, x: torch.Tensor) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Return kernel, strides, dilations, padding, and what is added behind it so that rounding up is rounding down."""
    kernel = list(node.get("kernel_shape", []))
    rank = len(kernel)
    if rank not in _MAX or x.ndim != rank + 2:
        raise node.refuse(f"windows of {rank} axes over {x.ndim - 2}")
    strides, dilations = list(node.get("strides", [1] * rank)), list(node.get("dilations", [1] * rank))
    pads = windows_padding(node, x, kernel, strides, dilations)
    more = [0] * rank
    if node.get("ceil_mode", 0):
        for axis, size in enumerate(x.shape[2:]):
            padded = size + pads[axis] + pads[axis + rank]
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            count = math.ceil((padded - reach) / strides[axis]) + 1
            if (count - 1) * strides[axis] >= size + pads[axis]:
                count -= 1  # a window that begins behind the picture counts for nothing
            more[axis] = max((count - 1) * strides[axis] + reach - padded, 0)
    return kernel, strides, dilations, pads, more


def _is_plain(kernel: Sequence[int], pads: Sequence[int], more: Sequence[int]) -> bool:
    """Whether torch pads by itself: as much on both sides, at most half a window."""
    rank = len(kernel)
    even = list(pads[:rank]) == list(pads[rank:]) and not any(more)
    return even and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))


def _max_pool(node: Node, x: torch.Tensor) -> Any:
    if node.outputs > 1:
        raise node.refuse("the indices of the largest")
    kernel, strides, dilations, pads, more = _windows(node, x)
    rank = len(kernel)
    padding = pads[:rank]
    if not _is_plain(kernel, pads, more):
        ends = [end + number for end, number in zip(pads[rank:], more, strict=True)]
        low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x, padding = functional.pad(x, torch_padding([*padding, *ends]), value=low), [0] * rank
    return _MAX[rank](x, kernel, strides, padding, dilations)


def _average_pool(node: Node, x: torch.Tensor) -> torch.Tensor:
    kernel, strides, dilations, pads, more = _windows(node, x)
    if any(dilation != 1 for dilation in dilations):
        raise node.refuse("dilations")
    rank, counts_padding = len(kernel), bool(node.get("count_include_pad", 0))
    if _is_plain(kernel, pads, more):
        made: torch.Tensor = _AVERAGE[rank](x, kernel, strides, pads[:rank], count_include_pad=counts_padding)
        return made
    ones = x.new_ones((1, 1, *x.shape[2:]))
    ones = functional.pad(ones, torch_padding(pads), value=float(counts_padding))
    behind = torch_padding([*[0] * rank, *more])
    share = _AVERAGE[rank](functional.pad(ones, behind), kernel, strides)
    mean = _AVERAGE[rank](functional.pad(functional.pad(x, torch_padding(pads)), behind), kernel, strides)
    return torch.div(mean, share)


def _lp_pool(node: Node, x: torch.Tensor) -> torch.Tensor:
    kernel, strides, dilations, pads, more = _windows(node, x)
    rank, power = len(kernel), node.get("p", 2)
    if any(dilation != 1 for dilation in dilations):
        raise node.refuse("dilations")
    ends = [end + number for end, number in zip(pads[rank:], more, strict=True)]
    x = functional.pad(x.abs() ** power, torch_padding([*pads[:rank], *ends]))
    return torch.pow(_AVERAGE[rank](x, kernel, strides) * math.prod(kernel), 1 / power)


def _positions(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_lp(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, float(node.get("p", 2)), _positions(x), keepdim=True)


OPS: dict[str, Compute] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": lambda _node, x: x.mean(_positions(x), keepdim=True),
    "GlobalMaxPool": lambda _node, x: x.amax(_positions(x), keepdim=True),
    "GlobalLpPool": _global_lp,
}
