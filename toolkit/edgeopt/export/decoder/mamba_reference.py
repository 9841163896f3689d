"""Mamba and Mamba-2 in plain NumPy on the same weights, token by token: what a written graph is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.export.decoder.mamba import MambaConfiguration, Numbers
from edgeopt.export.decoder.tensors_file import NamedTensors


class MambaReference:
    """All tokens of a text, one after the other; nothing is remembered between two calls."""

    def __init__(
        self, config: MambaConfiguration, weights: NamedTensors, mixer: str = "backbone.layers.{}.mixer"
    ) -> None:
        """Take the weights, which are read as they are needed; names of a layer's begin with `mixer`."""
        self._config, self._weights, self._mixer = config, weights, mixer

    def logits(self, tokens: Sequence[int]) -> Numbers:
        """Return (tokens, vocabulary) behind each token."""
        config = self._config
        table = self._weights.read("backbone.embeddings.weight", (config.vocabulary, config.hidden))
        x = table[np.asarray(tokens)]
        for i in range(config.layers):
            x = x + self.mixed(i, self._normed(x, f"backbone.layers.{i}.norm.weight"))
        x = self._normed(x, "backbone.norm_f.weight")
        is_tied = config.is_tied or "lm_head.weight" not in self._weights
        return x @ (table if is_tied else self._weights.read("lm_head.weight", table.shape)).T

    def _normed(self, x: Numbers, name: str) -> Numbers:
        scale = self._weights.read(name, (x.shape[-1],))
        return np.asarray(x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self._config.epsilon) * scale)

    def _product(self, x: Numbers, name: str, outputs: int) -> Numbers:
        made = x @ self._weights.read(f"{name}.weight", (outputs, x.shape[-1])).T
        return made + self._weights.read(f"{name}.bias", (outputs,)) if f"{name}.bias" in self._weights else made

    def mixed(self, i: int, x: Numbers) -> Numbers:
        """Return what the scan of a layer makes of (tokens, hidden)."""
        config, name = self._config, self._mixer.format(i)
        read, inner, keys = self._weights.read, config.inner, config.groups * config.state
        count = 2 * inner if config.rank else inner + config.convolved + config.heads
        whole = self._product(x, f"{name}.in_proj", count)
        gate, fed = (whole[:, inner:], whole[:, :inner]) if config.rank else (whole[:, :inner], whole[:, inner:])
        fed, steps = fed[:, : config.convolved], fed[:, config.convolved :]
        padded = np.concatenate([np.zeros((config.kernel - 1, config.convolved), np.float32), fed])
        taps = read(f"{name}.conv1d.weight", (config.convolved, 1, config.kernel))[:, 0]
        fed = np.sum([padded[k : k + len(x)] * taps[:, k] for k in range(config.kernel)], axis=0)
        if f"{name}.conv1d.bias" in self._weights:
            fed = fed + read(f"{name}.conv1d.bias", (config.convolved,))
        fed = _silu(fed)
        if config.rank:
            side = self._product(fed, f"{name}.x_proj", config.rank + 2 * keys)
            raw = self._product(side[:, : config.rank], f"{name}.dt_proj", inner)
            side = side[:, config.rank :]
            fades = -np.exp(read(f"{name}.A_log", (inner, config.state)))[:, None]
        else:
            raw, side, fed = steps + read(f"{name}.dt_bias", (config.heads,)), fed[:, inner:], fed[:, :inner]
            fades = -np.exp(read(f"{name}.A_log", (config.heads,)))[:, None, None]
        seen = self._scanned(fed, np.logaddexp(0, raw), fades, side)
        skip = read(f"{name}.D", (config.heads,))
        seen = (seen + fed * np.repeat(skip, config.head)) * _silu(gate)
        if not config.rank:
            groups = seen.reshape(len(x), config.groups, -1)
            groups = groups / np.sqrt(np.square(groups).mean(axis=-1, keepdims=True) + config.epsilon)
            seen = groups.reshape(len(x), inner) * read(f"{name}.norm.weight", (inner,))
        return self._product(np.asarray(seen, np.float32), f"{name}.out_proj", config.hidden)

    def _scanned(self, fed: Numbers, steps: Numbers, fades: Numbers, keys_and_queries: Numbers) -> Numbers:
        """Return what the state gives for each token, (tokens, channels)."""
        config = self._config
        shared = config.heads // config.groups
        state = np.zeros((config.heads, config.head, config.state), np.float32)
        keys, queries = np.split(keys_and_queries.reshape(len(fed), 2, config.groups, config.state), 2, axis=1)
        result = np.empty((len(fed), config.heads, config.head), np.float32)
        for i, step in enumerate(steps):
            key, query = (np.repeat(side[i, 0], shared, axis=0)[:, None] for side in (keys, queries))
            value = fed[i].reshape(config.heads, config.head, 1)
            state = state * np.exp(step[:, None, None] * fades) + step[:, None, None] * value * key
            result[i] = (state * query).sum(axis=-1)
        return result.reshape(len(fed), config.inner)


def _silu(x: Numbers) -> Numbers:
    return np.asarray(x / (1 + np.exp(-x)), np.float32)
