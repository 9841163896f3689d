"""Recurrent layers, step by step, with the usual activation functions.

Source: ONNX LSTM, GRU and RNN, opsets 7 to 22.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edgeopt.executors._torch.ops._node import Compute, Node

_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_Cell = Callable[[Node, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[Any, Any]]


def _lstm(_node: Node, x: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
    i, o, f, g = (x + h @ r.t() + b).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(node: Node, x: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
    (xz, xr, xh), (rz, rr, rh), (bz, br, bh) = x.chunk(3, -1), r.chunk(3, 0), b.chunk(3, -1)
    z, reset = torch.sigmoid(xz + h @ rz.t() + bz), torch.sigmoid(xr + h @ rr.t() + br)
    after = reset * (h @ rh.t() + bh) if node.get("linear_before_reset", 0) else (reset * h) @ rh.t() + bh
    return (1 - z) * torch.tanh(xh + after) + z * h, c


def _rnn(_node: Node, x: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
    return torch.tanh(x + h @ r.t() + b), c


def _layer(cell: _Cell, gates: int) -> Compute:
    def compute(
        node: Node,
        x: torch.Tensor,
        w: torch.Tensor,
        r: torch.Tensor,
        b: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        hidden: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        peepholes: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        _require_usual(node, x, lengths, peepholes)
        batch_first = bool(node.get("layout", 0))
        if batch_first:
            x, hidden, state = (None if one is None else one.transpose(0, 1) for one in (x, hidden, state))
        ways, size = w.shape[0], r.shape[-1]
        nothing = x.new_zeros((ways, x.shape[1], size))
        hidden, state = (nothing if one is None else one for one in (hidden, state))
        bias = x.new_zeros((ways, 2 * gates * size)) if b is None else b
        made = []
        for way in range(ways):
            of_input, of_hidden = bias[way].chunk(2)
            backwards = way == 1 or node.get("direction", "forward") == "reverse"
            rows = x.flip(0) if backwards else x
            seen = _over_time(cell, node, rows @ w[way].t() + of_input, r[way], of_hidden, hidden[way], state[way])
            made.append((seen[0].flip(0) if backwards else seen[0], *seen[1:]))
        rows, last, cells = (
            torch.stack(one, 1 if place == 0 else 0) for place, one in enumerate(zip(*made, strict=True))
        )
        result = (rows, last, cells)[: node.outputs]
        if batch_first:
            result = tuple(value.permute(2, 0, 1, 3) if value.ndim == 4 else value.transpose(0, 1) for value in result)
        return result

    return compute


def _over_time(
    cell: _Cell, node: Node, x: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is hidden after each step, and after the last with the state."""
    result = []
    for row in x:
        h, c = cell(node, row, r, b, h, c)
        result.append(h)
    return torch.stack(result), h, c


def _require_usual(node: Node, x: torch.Tensor, lengths: torch.Tensor | None, peepholes: torch.Tensor | None) -> None:
    usual = _USUAL[node.op]
    asked = node.get("activations", usual)
    if asked != usual * (len(asked) // len(usual)) or node.get("clip", 0) or node.get("input_forget", 0):
        raise node.refuse(f"activations {', '.join(asked)}, a clip or coupled gates")
    time = x.shape[1 if node.get("layout", 0) else 0]
    if lengths is not None and not bool((lengths == time).all()):
        raise node.refuse("sequences of several lengths")
    if peepholes is not None and bool(peepholes.any()):
        raise node.refuse("peepholes")


OPS: dict[str, Compute] = {"LSTM": _layer(_lstm, 4), "GRU": _layer(_gru, 3), "RNN": _layer(_rnn, 1)}
