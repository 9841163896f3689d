"""Attention over tensors of other ranks than 4, as of networks whose pictures are cut in blocks, written out.

torch.onnx translates `scaled_dot_product_attention` of (batch, heads, tokens, channels) alone.
"""

from __future__ import annotations

import math
from typing import Any

RANK = 4
"""That torch.onnx translates."""


def write_out_attention(torch: Any, program: Any) -> Any:
    """Return an exported program; where one attention has another rank, products and softmax in place of all.

    Args:
        torch: The package.
        program: By `torch.export.export`.
    """
    attention = torch.ops.aten.scaled_dot_product_attention.default
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target is attention]
    if all(len(node.args[0].meta["val"].shape) == RANK for node in nodes):
        return program

    def written_out(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,  # a network in use drops nothing
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if enable_gqa:
            key, value = (entry.repeat_interleave(query.shape[-3] // entry.shape[-3], -3) for entry in (key, value))
        scores = (query * factor) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1) @ value

    return program.run_decompositions({attention: written_out})
