"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node


def _leaky_relu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, node.get("alpha", 0.01))


def _prelu(_node: Node, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, x * slope, x)


def _elu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return functional.elu(x, node.get("alpha", 1.0))


def _celu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return functional.celu(x, node.get("alpha", 1.0))


def _selu(node: Node, x: torch.Tensor) -> torch.Tensor:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return gamma * functional.elu(x, alpha)


def _hard_sigmoid(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1)


def _thresholded_relu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return functional.threshold(x, node.get("alpha", 1.0), 0.0)


def _shrink(node: Node, x: torch.Tensor) -> torch.Tensor:
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


def _gelu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate=node.get("approximate", "none"))


def _quick_gelu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return silu(x, node.get("alpha", 1.702))


def silu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Return x * sigmoid(alpha * x)."""
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _bias_gelu(_node: Node, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + bias)


def _fast_gelu(_node: Node, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


def _over_axis(function: Any) -> Compute:
    """Return Softmax or LogSoftmax: up to opset 12 over all axes from `axis` on, which is 1 by default."""

    def compute(node: Node, x: torch.Tensor) -> torch.Tensor:
        axis = node.get("axis", -1 if node.opset >= 13 else 1)
        if node.opset >= 13:
            made: torch.Tensor = function(x, axis)
            return made
        return function(x.flatten(axis % max(x.ndim, 1)), -1).reshape(x.shape) if x.ndim else function(x, 0)

    return compute


def _hardmax(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1.0)


def activation(name: str, alpha: float = 0.0, beta: float = 0.0) -> Any:
    """Return the function that a fused or recurrent op names; None where it is none of those known."""
    return {
        "": lambda x: x,
        "Relu": torch.relu,
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "LeakyRelu": lambda x: functional.leaky_relu(x, alpha),
        "HardSigmoid": lambda x: torch.clamp(x * alpha + beta, 0, 1),
        "Clip": lambda x: torch.clamp(x, alpha, beta),
        "Affine": lambda x: x * alpha + beta,
        "Elu": lambda x: functional.elu(x, alpha),
        "Softsign": functional.softsign,
        "Softplus": functional.softplus,
    }.get(name)


OPS: dict[str, Compute] = {
    "Relu": lambda _node, x: torch.relu(x),
    "Sigmoid": lambda _node, x: torch.sigmoid(x),
    "Tanh": lambda _node, x: torch.tanh(x),
    "Softplus": lambda _node, x: (
        functional.softplus(x, threshold=math.inf) if x.dtype is torch.float64 else functional.softplus(x)
    ),
    "Softsign": lambda _node, x: functional.softsign(x),
    "HardSwish": lambda _node, x: functional.hardswish(x),
    "Mish": lambda _node, x: functional.mish(x),
    "Swish": lambda node, x: silu(x, node.get("alpha", 1.0)),
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink,
    "com.microsoft.QuickGelu": _quick_gelu,
    "com.microsoft.Gelu": _gelu,
    "com.microsoft.BiasGelu": _bias_gelu,
    "com.microsoft.FastGelu": _fast_gelu,
    "Softmax": _over_axis(torch.softmax),
    "LogSoftmax": _over_axis(torch.log_softmax),
    "Hardmax": _over_axis(_hardmax),
}
