"""A decoder of the Llama type in plain NumPy on the same weights: what a written graph is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.export.decoder.hybrid import beside_attention
from edgeopt.export.decoder.llama import LlamaConfiguration
from edgeopt.export.decoder.mixture import mixed
from edgeopt.export.decoder.renamed import named_as_llama
from edgeopt.export.decoder.tensors_file import NamedTensors

Numbers = NDArray[np.float32]


class Reference:
    """All tokens of a text at once; nothing is remembered between two calls."""

    def __init__(self, config: LlamaConfiguration, weights: NamedTensors) -> None:
        """Take the weights, which are read as they are needed."""
        self._config, self._weights = config, named_as_llama(weights, config.kind, config.head, config.hybrid)
        self._angles = (np.empty(0, np.float32),) * 2

    def logits(
        self,
        tokens: Sequence[int],
        rows: Mapping[int, Numbers] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> Numbers:
        """Return (tokens, vocabulary) behind each token.

        Args:
            tokens: Of a text from its begin.
            rows: By its place, what stands there instead of a token's embedding; of a longer one each further part is
                added behind one more layer.
            positions: (axes, tokens) of positions that turn on several axes; None: the places in the text.

        Source: Touvron et al., 2023, arXiv:2302.13971, with the queries of Ainslie et al., 2023, arXiv:2305.13245.
        """
        config = self._config
        table = self._weights.read("model.embed_tokens.weight", (config.vocabulary, config.hidden))
        factors = config.factors
        x = table[np.asarray(tokens)] * np.float32(factors.embedding)
        deep = {place: np.split(row, len(row) // config.hidden) for place, row in (rows or {}).items()}
        for place, parts in deep.items():
            x[place] = parts[0]
        self._angles = self._angles_of(len(tokens), positions)
        for i in range(config.layers):
            normal = self._norm(x, f"model.layers.{i}.input_layernorm")
            if config.hybrid is None or config.attends(i):
                more = self._attention(i, normal)
            else:
                more = beside_attention(self._weights, i, config.hybrid, normal)
            x = x + more * np.float32(factors.residual)
            normal = self._norm(x, f"model.layers.{i}.post_attention_layernorm")
            if config.mixture is not None and config.mixture.is_in(i):
                more = mixed(self._weights, i, config.mixture, normal)
            else:
                more = self._gated(i, normal)
            x = x + more * np.float32(factors.residual)
            for place, parts in deep.items():
                if i + 1 < len(parts):
                    x[place] += parts[i + 1]
        x = np.asarray(self._norm(x, "model.norm") * np.float32(factors.logits), np.float32)
        is_tied = config.is_tied or "lm_head.weight" not in self._weights
        return x @ (table if is_tied else self._weights.read("lm_head.weight", table.shape)).T

    def _norm(self, x: Numbers, name: str) -> Numbers:
        scale = self._weights.read(f"{name}.weight", (x.shape[-1],))
        array: Numbers = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self._config.epsilon)) * scale
        return array

    def _product(self, x: Numbers, name: str, outputs: int) -> Numbers:
        made = x @ self._weights.read(f"{name}.weight", (outputs, x.shape[-1])).T
        if f"{name}.bias" in self._weights:
            made = made + self._weights.read(f"{name}.bias", (outputs,))
        return np.asarray(made, np.float32)

    def _attention(self, i: int, x: Numbers) -> Numbers:
        config, name, length = self._config, f"model.layers.{i}.self_attn", len(x)

        def heads(part: str, count: int) -> Numbers:
            made = self._product(x, f"{name}.{part}_proj", count * config.head)
            is_normed = f"{name}.{part}_norm.weight" in self._weights
            if is_normed and config.norms_all_heads:
                made = self._norm(made, f"{name}.{part}_norm")
            made = made.reshape(length, count, config.head)
            if is_normed and not config.norms_all_heads:
                made = self._norm(made, f"{name}.{part}_norm")
            return made.transpose(1, 0, 2)

        queries, keys = self._turned(heads("q", config.heads)), self._turned(heads("k", config.kv_heads))
        shared = config.heads // config.kv_heads
        keys, values = (np.repeat(array, shared, axis=0) for array in (keys, heads("v", config.kv_heads)))
        scores = queries @ keys.transpose(0, 2, 1) * np.float32(config.factors.scale(config.head))
        behind = np.arange(length)[:, None] - np.arange(length)[None]  # how far back a key lies
        is_seen = (behind >= 0) & (behind < (config.window or length))
        scores = np.where(is_seen, scores, np.float32(-np.inf))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = (shares / shares.sum(axis=-1, keepdims=True)) @ values
        joined = seen.transpose(1, 0, 2).reshape(length, config.heads * config.head).astype(np.float32)
        if config.hybrid is not None and config.hybrid.gates_attention:
            joined = joined / (1 + np.exp(-self._product(x, f"{name}.gate_proj", config.heads * config.head)))
        return self._product(joined, f"{name}.o_proj", config.hidden)

    def _angles_of(self, length: int, positions: NDArray[np.int64] | None) -> tuple[Numbers, Numbers]:
        """Return the cosines and the sines of each token's pairs, (length, pairs) each."""
        config = self._config
        cos, sin = config.positions.tables(config.turned, length)
        if positions is None:
            return cos, sin
        by_pair, pairs = positions[list(config.positions.axes)].T, np.arange(cos.shape[1])  # (length, pairs)
        return cos[by_pair, pairs], sin[by_pair, pairs]

    def _turned(self, x: Numbers) -> Numbers:
        """Turn each pair of (heads, length, head) by its position; the second half pairs with the first."""
        config = self._config
        if config.hybrid is not None and not config.hybrid.has_positions:
            return x
        cos, sin = self._angles
        first, second = np.split(x[..., : config.turned], 2, axis=-1)
        kept = x[..., config.turned :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, kept], axis=-1)

    def _gated(self, i: int, x: Numbers) -> Numbers:
        config, name = self._config, f"model.layers.{i}.mlp"
        gate = self._product(x, f"{name}.gate_proj", config.inner)
        opened = gate / (1 + np.exp(-gate)) * self._product(x, f"{name}.up_proj", config.inner)
        return self._product(np.asarray(opened, np.float32), f"{name}.down_proj", config.hidden)
