"""Normalizations. The stored mean and variance of BatchNormalization are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node


def _batch(
    node: Node,
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
) -> torch.Tensor:
    if node.get("training_mode", 0) or node.outputs > 1:
        raise node.refuse("statistics of its own (training_mode)")
    if not node.get("spatial", 1):
        raise node.refuse("statistics of each position (spatial 0)")
    return functional.batch_norm(x, mean, variance, scale, bias, training=False, eps=node.get("epsilon", 1e-5))


def _instance(node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    normal = _normalized(x, range(2, x.ndim), node.get("epsilon", 1e-5))
    return normal * _channels(scale, x) + _channels(bias, x)


def _normalized(x: torch.Tensor, axes: Sequence[int], epsilon: float) -> torch.Tensor:
    centred = x - x.mean(tuple(axes), keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(tuple(axes), keepdim=True) + epsilon)


def _channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _layer(node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    axis, epsilon = node.get("axis", -1) % x.ndim, node.get("epsilon", 1e-5)
    if node.outputs == 1 and scale.shape == x.shape[axis:] and (bias is None or bias.shape == scale.shape):
        return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)
    axes = tuple(range(axis, x.ndim))
    mean = x.mean(axes, keepdim=True)
    inverse = torch.rsqrt(((x - mean) ** 2).mean(axes, keepdim=True) + epsilon)
    made = (x - mean) * inverse * scale
    return (made if bias is None else made + bias), mean, inverse


def _group(node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    groups = node.get("num_groups", 1)
    if scale.shape[0] != x.shape[1]:  # opset 18 has one number for a group, 21 one for a channel
        scale, bias = (value.repeat_interleave(x.shape[1] // groups) for value in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _rms(node: Node, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + node.get("epsilon", 1e-5)) * scale


def _local_response(node: Node, x: torch.Tensor) -> torch.Tensor:
    size, alpha = node.get("size", 1), node.get("alpha", 1e-4)
    before = (size - 1) // 2
    squares = functional.pad((x * x).flatten(2)[:, None], (0, 0, before, size - 1 - before))
    sums = functional.avg_pool2d(squares, (size, 1), 1).squeeze(1).reshape(x.shape)  # a mean, as alpha / size wants
    return x * (node.get("bias", 1.0) + alpha * sums) ** -node.get("beta", 0.75)


def _lp(node: Node, x: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, float(node.get("p", 2)), node.get("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


def _mean_variance(node: Node, x: torch.Tensor) -> torch.Tensor:
    axes = tuple(node.get("axes", [0, 2, 3]))
    centred = x - x.mean(axes, keepdim=True)
    return centred / (torch.sqrt((centred * centred).mean(axes, keepdim=True)) + 1e-9)


OPS: dict[str, Compute] = {
    "BatchNormalization": _batch,
    "InstanceNormalization": _instance,
    "LayerNormalization": _layer,
    "GroupNormalization": _group,
    "RMSNormalization": _rms,
    "LRN": _local_response,
    "LpNormalization": _lp,
    "MeanVarianceNormalization": _mean_variance,
}
