"""Tensors under Llama's names, where a checkpoint has them under others, or several as rows of one matrix.

Rows are taken from blocks of integers as from floats, so that quantized matrices stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.export.decoder.granite import MIXTURES as GRANITE_MIXTURES
from edgeopt.export.decoder.hybrid import GATED, KINDS, LIQUID, Hybrid
from edgeopt.export.decoder.packed import PackedMatrix, keeps_halves, packed_of
from edgeopt.export.decoder.tensors_file import NamedTensors

Numbers = NDArray[np.float32]
Rows = NDArray[np.int64]
_GRANITE = {
    r"\.mlp\.gate\.": ".block_sparse_moe.router.layer.",
    r"\.mlp\.experts\.gate_up_proj$": ".block_sparse_moe.input_linear.weight",
    r"\.mlp\.experts\.down_proj$": ".block_sparse_moe.output_linear.weight",
    r"\.mlp\.(shared_expert\.)?(gate|up)_proj\.": ".shared_mlp.input_linear.",
    r"\.mlp\.(shared_expert\.)?down_proj\.": ".shared_mlp.output_linear.",
}
_QUERIES = {r"\.self_attn\.gate_proj\.": ".self_attn.q_proj."}
_LIQUID = {
    r"model\.norm\.": "model.embedding_norm.",
    r"\.input_layernorm\.": ".operator_norm.",
    r"\.post_attention_layernorm\.": ".ffn_norm.",
    r"\.mlp\.(experts\.\d+\.)?gate_proj\.": r".mlp.\1w1.",
    r"\.mlp\.(experts\.\d+\.)?up_proj\.": r".mlp.\1w3.",
    r"\.mlp\.(experts\.\d+\.)?down_proj\.": r".mlp.\1w2.",
    r"\.mlp\.": ".feed_forward.",
    r"\.self_attn\.o_proj\.": ".self_attn.out_proj.",
    r"\.self_attn\.([qk])_norm\.": r".self_attn.\1_layernorm.",
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(LIQUID, _LIQUID),
    **dict.fromkeys(GATED, _QUERIES),
    **dict.fromkeys(GRANITE_MIXTURES, _GRANITE),
}
"""Llama's names, and those of the kind."""
_NEXT = {
    **_NAMES["qwen3_5_text"],
    r"\.linear_attn\.in_proj_(qkv|z)\.": ".linear_attn.in_proj_qkvz.",
    r"\.linear_attn\.in_proj_[ab]\.": ".linear_attn.in_proj_ba.",
}
_PART = re.compile(r"\.(self_attn|linear_attn|shared_expert|mlp)\.(q_proj|gate_proj|up_proj|in_proj_\w+)\.weight$")


@dataclass(frozen=True, slots=True)
class RenamedTensors:
    """Tensors of a checkpoint under Llama's names."""

    weights: NamedTensors
    kind: str
    head: int
    """Numbers of one head of attention."""
    hybrid: Hybrid | None = None
    """How its layers mix tokens."""

    def __contains__(self, name: str) -> bool:
        return self._theirs(name) in self.weights

    def read(self, name: str, shape: tuple[int, ...]) -> Numbers:
        """Return one tensor in float32, or raise where it is not there or of another shape."""
        count, rows = self._rows(name, shape)
        array = self.weights.read(self._theirs(name), (count, *shape[1:]))
        if rows is not None:
            array = np.ascontiguousarray(array[rows])
        is_off = self.kind in GATED and name.endswith("norm.weight") and "linear_attn" not in name
        return array + 1 if is_off else array  # its norms add 1 to what is stored

    @property
    def has_blocks(self) -> bool:
        """Whether matrices lie in blocks."""
        return keeps_halves(self.weights)

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """Return a matrix as its checkpoint stores it; None: it is read in floats."""
        count, rows = self._rows(name, shape)
        whole = packed_of(self.weights, self._theirs(name), (count, *shape[1:]))
        return whole if whole is None or rows is None else whole.rows(rows)

    def _theirs(self, name: str) -> str:
        if name in self.weights and "self_attn.gate_proj" not in name:  # as files of llama.cpp have it
            return name
        names = _NEXT if self.kind == "qwen3_next" else _NAMES.get(self.kind, {})
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        return name

    def _rows(self, name: str, shape: tuple[int, ...]) -> tuple[int, Rows | None]:
        """Return how many rows the tensor has that holds one, and which of them it is; None: all."""
        part = _PART.search(name)
        if part is None:
            return shape[0], None
        block, matrix = part.groups()
        if block == "self_attn" and self.kind in GATED and matrix in ("q_proj", "gate_proj"):
            both = np.arange(2 * shape[0]).reshape(-1, 2, self.head)  # queries and gates take turns head by head
            return 2 * shape[0], both[:, int(matrix == "gate_proj")].ravel()
        if ".input_linear." in self._theirs(name):  # gates, then what they let through
            return 2 * shape[0], np.arange(shape[0]) + (shape[0] if matrix == "up_proj" else 0)
        if block == "linear_attn" and self._theirs(name) != name and self.hybrid is not None:
            return self._rows_of_delta(matrix, self.hybrid)
        return shape[0], None

    def _rows_of_delta(self, matrix: str, hybrid: Hybrid) -> tuple[int, Rows]:
        """Return the same of linear attention, whose matrices go key by key: query, key, its values, their gates."""
        rule = hybrid.rule
        assert rule is not None
        shared = rule.value_heads // rule.key_heads
        values = shared * rule.value_head
        sides = [shared, shared] if matrix in ("in_proj_b", "in_proj_a") else [rule.key_head] * 2 + [values] * 2
        each = np.arange(rule.key_heads * sum(sides)).reshape(rule.key_heads, -1)
        parts = [part.ravel() for part in np.split(each, np.cumsum(sides)[:-1], axis=1)]
        taken: Mapping[str, Callable[[], Rows]] = {
            "in_proj_qkv": lambda: np.concatenate(parts[:3]),
            "in_proj_z": lambda: parts[3],
            "in_proj_b": lambda: parts[0],
            "in_proj_a": lambda: parts[1],
        }
        return each.size, taken[matrix]()


def named_as_llama(weights: NamedTensors, kind: str, head: int, hybrid: Hybrid | None = None) -> NamedTensors:
    """Return the tensors of a decoder under Llama's names, norms as factors, and gates of attention apart.

    Args:
        weights: Of the checkpoint.
        kind: `model_type` of the decoder.
        head: Numbers of one head of attention.
        hybrid: How its layers mix tokens.
    """
    is_other = kind in KINDS or kind in GRANITE_MIXTURES
    return RenamedTensors(weights, kind, head, hybrid) if is_other else weights
