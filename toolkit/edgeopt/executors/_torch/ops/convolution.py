"""Convolutions, of one to three spatial axes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node, torch_padding, windows_padding
from edgeopt.executors._torch.ops.activations import activation

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _conv(node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if _is_product(node, x, weight):
        rows: torch.Tensor = functional.linear(x.permute(0, 2, 3, 1), weight.reshape(weight.shape[:2]), bias)
        return rows.permute(0, 3, 1, 2)
    return convolved(node, x, weight, bias)


def convolved(node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return what a Conv makes, by torch's convolution and no other op but a padding."""
    rank = x.ndim - 2
    if rank not in _CONV:
        raise node.refuse(f"{rank} spatial axes")
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    pads = windows_padding(node, x, weight.shape[2:], strides, dilations)
    begins, ends = pads[:rank], pads[rank:]
    if begins != ends or min(begins) < 0:
        x, begins = functional.pad(x, torch_padding(pads)), [0] * rank
    made: torch.Tensor = _CONV[rank](x, weight, bias, strides, begins, dilations, node.get("group", 1))
    return made


def _is_product(node: Node, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution is a product of matrices as its pictures lie in memory: 1.2 to 2 times as fast so."""
    if x.ndim != 4 or node.get("group", 1) != 1 or weight.shape[2:] != (1, 1):
        return False
    strides = node.get("strides", [1, 1])
    if set(strides) != {1} or any(windows_padding(node, x, weight.shape[2:], strides, [1, 1])):
        return False
    return bool(x.is_contiguous(memory_format=torch.channels_last))


def _fused_conv(
    node: Node,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> Any:
    made = _conv(node, x, weight, bias)
    made = made if added is None else made + added
    name, (alpha, beta) = node.get("activation", ""), (*node.get("activation_params", []), 0.0, 0.0)[:2]
    function = activation(name, alpha, beta)
    if function is None:
        raise node.refuse(f"the activation {name}")
    return function(made)


def _conv_transpose(
    node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    rank = x.ndim - 2
    if rank not in _TRANSPOSED:
        raise node.refuse(f"{rank} spatial axes")
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    extra = list(node.get("output_padding", [0] * rank))
    whole = [  # before padding is cut off
        stride * (size - 1) + (kernel - 1) * dilation + 1 + more
        for stride, size, kernel, dilation, more in zip(
            strides, x.shape[2:], weight.shape[2:], dilations, extra, strict=True
        )
    ]
    pads = _transposed_padding(node, whole, [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)])
    begins, ends = pads[:rank], pads[rank:]
    plain = begins == ends and min(begins) >= 0 and all(e < s for e, s in zip(extra, strides, strict=True))
    arguments = (strides, begins if plain else [0] * rank, extra if plain else [0] * rank, node.get("group", 1))
    made: torch.Tensor = _TRANSPOSED[rank](x, weight, bias if plain else None, *arguments, dilations)
    if plain:
        return made
    grown = [more - cut for more, cut in zip(extra, ends, strict=True)]
    made = functional.pad(made, torch_padding([*(-begin for begin in begins), *grown]))
    return made if bias is None else made + bias.reshape(1, -1, *[1] * rank)


def _transposed_padding(node: Node, whole: list[int], same: list[int]) -> list[int]:
    """Return what is cut off: all begins, then all ends. A wanted size decides it, if one is written."""
    kind, rank = node.get("auto_pad", "NOTSET"), len(whole)
    wanted = node.get("output_shape", None) or (same if kind in ("SAME_UPPER", "SAME_LOWER") else None)
    if wanted is None:
        return [0] * 2 * rank if kind == "VALID" else list(node.get("pads", [0] * 2 * rank))
    totals = [have - want for have, want in zip(whole, wanted[-rank:], strict=True)]
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    return [*small, *large] if kind == "SAME_UPPER" else [*large, *small]


OPS: dict[str, Compute] = {
    "Conv": _conv,
    "com.microsoft.FusedConv": _fused_conv,
    "ConvTranspose": _conv_transpose,
}
