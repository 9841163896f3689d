"""Products of matrices."""

from __future__ import annotations

import torch
from torch.nn import functional

from edgeopt.executors._torch.ops._node import Compute, Node
from edgeopt.executors._torch.ops.activations import activation


def _matmul(_node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b)


def _fused_matmul(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if node.get("transBatchA", 0) or node.get("transBatchB", 0):
        raise node.refuse("transposed batches")
    a = a.transpose(-1, -2) if node.get("transA", 0) and a.ndim > 1 else a
    b = b.transpose(-1, -2) if node.get("transB", 0) and b.ndim > 1 else b
    return torch.matmul(a, b) * node.get("alpha", 1.0)


def _gemm(node: Node, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    a = a.t() if node.get("transA", 0) else a
    b = b.t() if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if alpha == beta == 1.0 and a.is_floating_point() and (c is None or c.ndim == 1):
        fused: torch.Tensor = functional.linear(a, b.t(), c)
        return fused
    made = torch.matmul(a, b) * alpha
    return made if c is None else made + c * beta


def _fused_gemm(node: Node, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    name = node.get("activation", "")
    function = activation(name, node.get("activation_alpha", 0.0), node.get("activation_beta", 0.0))
    if function is None:
        raise node.refuse(f"the activation {name}")
    made: torch.Tensor = function(_gemm(node, a, b, c))
    return made


def _einsum(node: Node, *values: torch.Tensor) -> torch.Tensor:
    return torch.einsum(node.get("equation", "").replace(" ", ""), *values)


OPS: dict[str, Compute] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.FusedGemm": _fused_gemm,
}
