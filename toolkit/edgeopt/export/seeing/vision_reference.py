"""The encoder of pictures of Qwen-VL in plain NumPy on the same weights: what a written graph is compared with."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.export.seeing.vision import EPSILON, VisionConfiguration, rotary_turns

Numbers = NDArray[np.float32]


class VisionReference:
    """One picture at once, its windows one after the other."""

    def __init__(self, config: VisionConfiguration, weights: NamedTensors) -> None:
        """Take the weights, which are read as they are needed."""
        self._config, self._weights = config, weights

    def rows(self, patches: Numbers, lines: int, columns: int) -> Numbers:
        """Return (rows, numbers) of a picture.

        Args:
            patches: (patches, numbers of a patch), square by square.
            lines: Lines of squares.
            columns: Columns of squares.
        """
        config, merge = self._config, self._config.merge
        places = np.array(
            [
                (line * merge + i, column * merge + j)
                for line in range(lines)
                for column in range(columns)
                for i in range(merge)
                for j in range(merge)
            ]
        )
        shape = (config.hidden, 3, config.frames, config.patch, config.patch)
        kernel = self._weights.read("patch_embed.proj.weight", shape).sum(axis=2).reshape(config.hidden, -1)
        x = patches @ kernel.T
        if "patch_embed.proj.bias" in self._weights:
            x = x + self._weights.read("patch_embed.proj.bias", (config.hidden,))
        if config.positions:
            x = x + self._positions(places, lines * merge, columns * merge)
        angles = (places[:, :, None] * rotary_turns(config)).reshape(len(places), -1)
        turns = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        side = config.window or 1
        windows = [f"{line // side} {column // side}" for line, column in places]
        deep = list[Numbers]()
        for i in range(config.layers):
            groups = [np.arange(len(x))]
            if not config.sees_all(i):
                groups = [np.flatnonzero(np.array(windows) == window) for window in dict.fromkeys(windows)]
            x = x + self._attention(i, self._norm(x, f"blocks.{i}.norm1"), turns, groups)
            x = x + self._neurons(i, self._norm(x, f"blocks.{i}.norm2"))
            if i in config.deep_layers:
                squares = x.reshape(lines * columns, -1)
                name = f"deepstack_merger_list.{config.deep_layers.index(i)}"
                deep.append(self._merged(self._norm(squares, f"{name}.norm"), name))
        norm = "merger.norm" if config.kind == "qwen3_vl" else "merger.ln_q"
        merged = self._merged(self._norm(x, norm).reshape(lines * columns, -1), "merger")
        return np.concatenate([merged, *deep], axis=-1)

    def _positions(self, places: NDArray[np.int64], height: int, width: int) -> Numbers:
        """Return the learned position of each patch, read between four of the table where it lies there."""
        side = self._config.positions
        table = self._weights.read("pos_embed.weight", (side**2, self._config.hidden)).reshape(side, side, -1)
        rows = list[Numbers]()
        for line, column in places:
            down, right = line * (side - 1) / max(height - 1, 1), column * (side - 1) / max(width - 1, 1)
            top, left = math.floor(down), math.floor(right)
            bottom, last = min(top + 1, side - 1), min(left + 1, side - 1)
            a, b = down - top, right - left
            upper = table[top, left] * (1 - b) + table[top, last] * b
            lower = table[bottom, left] * (1 - b) + table[bottom, last] * b
            rows.append(np.asarray(upper * (1 - a) + lower * a, np.float32))
        return np.stack(rows)

    def _norm(self, x: Numbers, name: str) -> Numbers:
        scale = self._weights.read(f"{name}.weight", (x.shape[-1],))
        if self._config.gated:
            array: Numbers = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPSILON)) * scale
            return array
        apart = x - x.mean(axis=-1, keepdims=True)
        unit = apart / np.sqrt((apart * apart).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        return np.asarray(unit * scale + self._weights.read(f"{name}.bias", (x.shape[-1],)), np.float32)

    def _product(self, x: Numbers, name: str, outputs: int) -> Numbers:
        made = x @ self._weights.read(f"{name}.weight", (outputs, x.shape[-1])).T
        return np.asarray(made + self._weights.read(f"{name}.bias", (outputs,)), np.float32)

    def _attention(
        self, i: int, x: Numbers, turns: tuple[Numbers, Numbers], groups: list[NDArray[np.int64]]
    ) -> Numbers:
        config = self._config
        whole = self._product(x, f"blocks.{i}.attn.qkv", 3 * config.hidden)
        parts = whole.reshape(len(x), 3, config.heads, -1).transpose(1, 2, 0, 3)
        queries, keys, values = _turned(parts[0], turns), _turned(parts[1], turns), parts[2]
        seen = np.empty_like(values)
        for group in groups:
            scores = queries[:, group] @ keys[:, group].transpose(0, 2, 1) / np.float32(math.sqrt(values.shape[-1]))
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            seen[:, group] = shares / shares.sum(axis=-1, keepdims=True) @ values[:, group]
        joined = seen.transpose(1, 0, 2).reshape(len(x), config.hidden)
        return self._product(joined, f"blocks.{i}.attn.proj", config.hidden)

    def _neurons(self, i: int, x: Numbers) -> Numbers:
        config, name = self._config, f"blocks.{i}.mlp"
        if config.gated:
            gate = self._product(x, f"{name}.gate_proj", config.inner)
            neurons = gate / (1 + np.exp(-gate)) * self._product(x, f"{name}.up_proj", config.inner)
            return self._product(np.asarray(neurons, np.float32), f"{name}.down_proj", config.hidden)
        if config.kind == "qwen2_vl":
            up = self._product(x, f"{name}.fc1", config.inner)
            return self._product(np.asarray(up / (1 + np.exp(-1.702 * up)), np.float32), f"{name}.fc2", config.hidden)
        up = self._product(x, f"{name}.linear_fc1", config.inner)
        bent = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        return self._product(np.asarray(bent, np.float32), f"{name}.linear_fc2", config.hidden)

    def _merged(self, squares: Numbers, name: str) -> Numbers:
        config = self._config
        first, second = ("linear_fc1", "linear_fc2") if config.kind == "qwen3_vl" else ("mlp.0", "mlp.2")
        up = self._product(squares, f"{name}.{first}", squares.shape[-1])
        error = np.vectorize(math.erf, otypes=[np.float32])(up / math.sqrt(2))
        return self._product(np.asarray(0.5 * up * (1 + error), np.float32), f"{name}.{second}", config.outputs)


def _turned(x: Numbers, turns: tuple[Numbers, Numbers]) -> Numbers:
    """Turn each pair of (heads, patches, head) by its angle; the second half pairs with the first."""
    cos, sin = turns
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
