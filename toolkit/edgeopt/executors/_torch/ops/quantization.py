"""Rounding to integers, whose gradient is that of the value as it was: QuantizeLinear and DequantizeLinear.

Integers are kept as floats, so that gradients pass through ops that move them. Inside the grid the gradient of a value
passes as it is, outside it is zero; that of the scale is the learned step size's.

Source: ONNX QuantizeLinear and DequantizeLinear, opsets 10 to 23; LSQ, arXiv 1902.08153, equations 1 to 3 and 5.
"""

from __future__ import annotations

from typing import Any

import torch

from edgeopt.executors._torch.ops._node import Compute, Node

RANGES = {
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.uint16: (0, 65535),
    torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
}
"""Smallest and largest integer of each type."""


class _Rounding(torch.autograd.Function):
    """A tensor on a grid: scale * clamp(round(x / scale), low, high)."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, scale: torch.Tensor, low: float, high: float) -> torch.Tensor:
        made = (x / scale).round_().clamp_(low, high).mul_(scale)
        context.save_for_backward(x, scale, made)
        context.limits = (low, high)
        return made

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        x, scale, made = context.saved_tensors
        low, high = (context.limits[0] - 0.5, context.limits[1] + 0.5)
        if scale.numel() == 1:
            step = float(scale)
            passed = torch.ops.aten.hardtanh_backward(gradient, x, low * step, high * step)
        else:
            passed = torch.where((x > low * scale) & (x < high * scale), gradient, 0)
        if not context.needs_input_grad[1]:
            return passed, None, None, None
        # of each number: round(x / scale) - x / scale inside, low or high outside
        share = (x.numel() / scale.numel() * max(abs(context.limits[0]), context.limits[1])) ** -0.5
        if not scale.ndim:
            total = (_summed(gradient, made) - _summed(passed, x)) / scale.reshape(())
        else:
            # where all lies on the grid this is zero, not almost: an optimizer that divides by it would amplify noise
            axes = [axis for axis in range(x.ndim) if scale.shape[axis] == 1]
            total = (gradient * made).addcmul_(passed, x, value=-1).sum(axes, keepdim=True) / scale
        return passed, total.reshape(scale.shape) * share, None, None


def _summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sum of products; without a third tensor where both lie alike in memory."""
    is_dense = a.is_contiguous() or (a.ndim == 4 and a.is_contiguous(memory_format=torch.channels_last))
    if a.stride() != b.stride() or not is_dense:
        return (a * b).sum()
    flat = [value.as_strided((value.numel(),), (1,), value.storage_offset()) for value in (a, b)]
    return torch.dot(*flat)


def on_grid(x: torch.Tensor, scale: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return `x` rounded to multiples of `scale`, saturated at `low` and `high` of them.

    Args:
        x: Any shape.
        scale: One number without axes, for large tensors; otherwise as many axes as `x`.
        low: Smallest integer less the zero point.
        high: Largest.
    """
    made: torch.Tensor = _Rounding.apply(x, scale, low, high)
    return made


def along(values: torch.Tensor, axis: int, x: torch.Tensor) -> torch.Tensor:
    """Return a scale or zero point in the shape that broadcasts over `x`; `axis` counts where it has several."""
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape([-1 if place == axis % x.ndim else 1 for place in range(x.ndim)])


def _kind(node: Node, zero: torch.Tensor | None) -> torch.dtype:
    dtype = torch.uint8 if zero is None else zero.dtype
    if dtype not in RANGES:
        raise node.refuse(f"integers of type {str(dtype).removeprefix('torch.')}")
    if node.get("block_size", 0):
        raise node.refuse("scales of blocks")
    return dtype


def _quantize(node: Node, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None) -> torch.Tensor:
    low, high = RANGES[_kind(node, zero)]
    axis = node.get("axis", 1)
    step = along(scale, axis, x).to(x.device)
    offset = 0.0 if zero is None else along(zero, axis, x).to(x.device, x.dtype)
    value = x / step
    # rounded going forward, as it is going back
    value = value + (value.detach().round() - value.detach())
    return torch.clamp(value + offset, low, high)


def _dequantize(node: Node, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None) -> torch.Tensor:
    if node.get("block_size", 0):
        raise node.refuse("scales of blocks")
    axis = node.get("axis", 1)
    step = along(scale, axis, x).to(x.device)
    x = x if x.is_floating_point() else x.to(x.device, step.dtype)
    return (x if zero is None else x - along(zero, axis, x).to(x.device, step.dtype)) * step


def fake_quantize(node: Node, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None) -> torch.Tensor:
    """Return what a QuantizeLinear and the DequantizeLinear behind it make, of one scale in all."""
    low, high = RANGES[_kind(node, zero)]
    middle = 0 if zero is None else int(zero.reshape(-1)[0])
    return on_grid(x, scale.to(x.device).reshape(()), low - middle, high - middle)


OPS: dict[str, Compute] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "com.microsoft.QuantizeLinear": _quantize,
    "com.microsoft.DequantizeLinear": _dequantize,
}
