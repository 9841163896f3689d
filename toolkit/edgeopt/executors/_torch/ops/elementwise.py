"""Ops that compute each number by itself, with broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from onnx import helper

from edgeopt.executors._torch.ops._node import Compute, Node, number

_Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def together(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors on one device: constants of a graph may lie on the CPU."""
    device = next((value.device for value in values if value.device.type != "cpu"), None)
    return values if device is None else tuple(value.to(device) for value in values)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Compute:
    return lambda _node, x: function(x)


def _binary(function: _Pair) -> Compute:
    return lambda _node, a, b: function(*together(a, b))


def _several(function: _Pair) -> Compute:
    return lambda _node, *values: functools.reduce(function, together(*values))


def _mean(_node: Node, *values: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, together(*values)) / len(values)


def _divide(_node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = together(a, b)
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _modulo(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (torch.fmod if node.get("fmod", 0) else torch.remainder)(*together(a, b))


def _power(_node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if b.numel() == 1 and not b.requires_grad and b.ndim <= a.ndim:
        return torch.pow(a, number(b)).to(a.dtype)  # x ** 2.0 has a gradient at 0 and below, x ** tensor has none
    base, exponent = together(a, b)
    return torch.pow(base, exponent).to(a.dtype)


def _clip(node: Node, x: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None) -> Any:
    limits = [None if limit is None else limit.to(x.device) for limit in (low, high)]
    if node.opset < 11:
        limits = [node.get("min", None), node.get("max", None)]
    return x if all(limit is None for limit in limits) else torch.clamp(x, *limits)


def _where(_node: Node, choice: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    return torch.where(*together(choice, yes, no))


def _is_inf(node: Node, x: torch.Tensor) -> torch.Tensor:
    negative, positive = node.get("detect_negative", 1), node.get("detect_positive", 1)
    return torch.isinf(x) & ((x > 0) & bool(positive) | (x < 0) & bool(negative))


def _cast(node: Node, x: torch.Tensor) -> torch.Tensor:
    return x.to(torch_type(node, node.get("to", 1)))


def torch_type(node: Node, element_type: int) -> torch.dtype:
    """Return torch's name of an element type of ONNX."""
    name = str(helper.tensor_dtype_to_np_dtype(element_type))
    result = getattr(torch, {"bool": "bool"}.get(name, name), None)
    if not isinstance(result, torch.dtype):
        raise node.refuse(f"the element type {name}")
    return result


def _identity(_node: Node, x: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return x


def _dropout(node: Node, x: torch.Tensor, *_: torch.Tensor | None) -> Any:
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.outputs > 1 else x


OPS: dict[str, Compute] = {
    **{name: _unary(getattr(torch, name.lower())) for name in ("Abs", "Neg", "Sqrt", "Exp", "Log", "Floor", "Ceil")},
    **{name: _unary(getattr(torch, name.lower())) for name in ("Reciprocal", "Sign", "Erf", "Sin", "Cos", "Tan")},
    **{name: _unary(getattr(torch, name.lower())) for name in ("Asin", "Acos", "Atan", "Sinh", "Cosh")},
    **{name: _unary(getattr(torch, name.lower())) for name in ("Asinh", "Acosh", "Atanh", "IsNaN")},
    "Not": _unary(torch.logical_not),
    "Round": _unary(torch.round),
    "IsInf": _is_inf,
    "Identity": _identity,
    "Cast": _cast,
    "Add": _binary(torch.add),
    "Sub": _binary(torch.sub),
    "Mul": _binary(torch.mul),
    "Div": _divide,
    "Mod": _modulo,
    "Pow": _power,
    "Clip": _clip,
    "Where": _where,
    "Dropout": _dropout,
    "And": _binary(torch.logical_and),
    "Or": _binary(torch.logical_or),
    "Xor": _binary(torch.logical_xor),
    "Equal": _binary(torch.eq),
    "Less": _binary(torch.lt),
    "Greater": _binary(torch.gt),
    "LessOrEqual": _binary(torch.le),
    "GreaterOrEqual": _binary(torch.ge),
    "Min": _several(torch.minimum),
    "Max": _several(torch.maximum),
    "Sum": _several(torch.add),
    "Mean": _mean,
    "CastLike": lambda _node, x, like: x.to(like.dtype),
}
