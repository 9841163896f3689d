"""Layers of linear attention with a gated delta rule: a matrix a head remembers the text, whatever its length.

A short convolution goes before queries, keys and values; each token lets the matrix fade, takes out what it holds for
the token's key, and writes the value there. The graph has one `CausalConvWithState`, one `LinearAttention` and one
`GatedRMSNorm` of com.microsoft a layer. (`GatedDeltaNet` computes the same, on processors in 4 to 27 times the time.)

Source: Yang et al., Gated Delta Networks, ICLR 2025, arXiv:2412.06464.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.export.decoder.mixture import MixtureWriter
from edgeopt.export.decoder.nodes import MICROSOFT
from edgeopt.export.decoder.tensors_file import NamedTensors

Numbers = NDArray[np.float32]
_UNIT = 1e-6
"""Added to the squares of a query or key before it is made a unit vector."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The heads of a layer of linear attention."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: neighbours share a key."""
    key_head: int
    value_head: int
    epsilon: float

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> DeltaRule:
        """Return the heads that a configuration tells.

        Raises:
            KeyError, TypeError, ValueError: If a number is missing or none.
        """
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        keys, heads, key_head, value_head = (int(values[f"linear_{name}"]) for name in names)
        if min(keys, heads, key_head, value_head) < 1 or heads % keys:
            raise ValueError(f"{heads} value heads do not share {keys} keys evenly")
        return cls(keys, heads, key_head, value_head, float(values.get("rms_norm_eps", 1e-6)))

    @property
    def sides(self) -> tuple[int, int, int]:
        """Numbers of all queries, keys and values of a token."""
        keys = self.key_heads * self.key_head
        return keys, keys, self.value_heads * self.value_head

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape of what it remembers of one text."""
        return self.value_heads, self.key_head, self.value_head


class DeltaWriter(MixtureWriter):
    """Writes layers of linear attention."""

    def _delta(self, x: str, layer: int, rule: DeltaRule, kernel: int, hidden: int) -> str:
        """Return what linear attention makes of x."""
        mine, theirs = f"layer.{layer}", f"model.layers.{layer}.linear_attn"
        sides, heads = rule.sides, rule.value_heads
        mixed = self._product(x, [f"{theirs}.in_proj_qkv"], [sum(sides)], hidden, f"{mine}.qkv")
        taps = self._read_as(f"{theirs}.conv1d.weight", (sum(sides), 1, kernel))
        past, present = (f"{prefix}.{layer}.conv_state" for prefix in ("past_key_values", "present"))
        outputs = [f"{mine}.convolved", present]
        inputs = [mixed, taps, "", past]
        self._outputs("CausalConvWithState", inputs, outputs, MICROSOFT, channels_last=1, activation="silu")
        parts = [f"{mine}.{part}" for part in ("queries", "keys", "values")]
        lengths = self._constant(f"{mine}.sides", np.array(sides, np.int64))
        self._outputs("Split", [outputs[0], lengths], parts, "", axis=-1)
        queries, keys = (self._unit(part, rule) for part in parts[:2])
        keys = self._repeated(keys, rule.key_heads, rule.key_head, heads // rule.key_heads, f"{mine}.every_key")
        rate = self._product(x, [f"{theirs}.in_proj_b"], [heads], hidden, f"{mine}.raw_rate")
        past, present = (f"{prefix}.{layer}.recurrent_state" for prefix in ("past_key_values", "present"))
        inputs = [queries, keys, parts[2], past, self._fading(x, layer, heads, hidden)]
        inputs.append(self._node("Sigmoid", [rate], f"{mine}.rate"))
        seen = [f"{mine}.seen", present]
        self._outputs(
            "LinearAttention", inputs, seen, MICROSOFT, update_rule="gated_delta", q_num_heads=rule.key_heads,
            kv_num_heads=heads, scale=rule.key_head**-0.5,
        )  # fmt: skip
        gate = self._product(x, [f"{theirs}.in_proj_z"], [sides[2]], hidden, f"{mine}.gate_z")
        norm = self._read_as(f"{theirs}.norm.weight", (rule.value_head,))
        normal = self._node(
            "GatedRMSNorm", [seen[0], norm, gate], f"{mine}.gated", MICROSOFT, epsilon=rule.epsilon, activation="silu"
        )
        return self._product(normal, [f"{theirs}.out_proj"], [hidden], sides[2], f"{mine}.out")

    def _unit(self, x: str, rule: DeltaRule) -> str:
        """Return each head as a unit vector: a root mean square times the root of how many numbers it is of."""
        apart = self._shaped(x, [0, 0, rule.key_heads, rule.key_head], f"{x}.heads")
        scale = np.full(rule.key_head, rule.key_head**-0.5, np.float32)
        constants = [
            self._constant(f"{x}.scale", scale),
            self._constant(f"{x}.epsilon", np.array(_UNIT / rule.key_head, np.float32)),
        ]
        normal = self._normal(apart, constants[0], f"{x}.unit", constants[1])
        return self._shaped(normal, [0, 0, rule.key_heads * rule.key_head], f"{x}.units")

    def _fading(self, x: str, layer: int, heads: int, hidden: int) -> str:
        """Return by how much each token lets the matrices fade, as a logarithm."""
        mine, theirs = f"layer.{layer}", f"model.layers.{layer}.linear_attn"
        raw = self._product(x, [f"{theirs}.in_proj_a"], [heads], hidden, f"{mine}.fade")
        biased = self._node("Add", [raw, self._read_as(f"{theirs}.dt_bias", (heads,))], f"{mine}.fade_biased")
        slow = self._constant(f"{theirs}.A_log", -np.exp(self._weights.read(f"{theirs}.A_log", (heads,))))
        return self._node("Mul", [self._node("Softplus", [biased], f"{mine}.fade_step"), slow], f"{mine}.decay")


def remembered(weights: NamedTensors, layer: int, rule: DeltaRule, kernel: int, x: Numbers) -> Numbers:
    """Return what linear attention of a layer makes of (tokens, hidden), token by token, in plain NumPy.

    Args:
        weights: Of the decoder.
        layer: Its number.
        rule: Of the decoder.
        kernel: Tokens that the convolution sees.
        x: What the layer's norm gives.
    """
    hidden, theirs, sides = x.shape[-1], f"model.layers.{layer}.linear_attn", rule.sides

    def product(part: str, outputs: int) -> Numbers:
        return np.asarray(x @ weights.read(f"{theirs}.in_proj_{part}.weight", (outputs, hidden)).T, np.float32)

    mixed = np.concatenate([np.zeros((kernel - 1, sum(sides)), np.float32), product("qkv", sum(sides))])
    taps = weights.read(f"{theirs}.conv1d.weight", (sum(sides), 1, kernel))[:, 0]
    convolved = np.asarray(sum(mixed[i : i + len(x)] * taps[:, i] for i in range(kernel)), np.float32)
    queries, keys, values = np.split(_silu(convolved), np.cumsum(sides)[:2], axis=-1)
    shared = rule.value_heads // rule.key_heads
    queries, keys = (
        np.repeat(_unit(part.reshape(len(x), rule.key_heads, rule.key_head)), shared, axis=1)
        for part in (queries, keys)
    )
    values = values.reshape(len(x), rule.value_heads, rule.value_head)
    slow, bias = (weights.read(f"{theirs}.{name}", (rule.value_heads,)) for name in ("A_log", "dt_bias"))
    fades = np.exp(-np.exp(slow) * np.logaddexp(0, product("a", rule.value_heads) + bias))
    rates = 1 / (1 + np.exp(-product("b", rule.value_heads)))
    state = np.zeros(rule.state_shape, np.float32)
    seen = np.empty_like(values)
    for i in range(len(x)):
        state = state * fades[i][:, None, None]
        known = np.einsum("hkv,hk->hv", state, keys[i])
        state = state + keys[i][:, :, None] * ((values[i] - known) * rates[i][:, None])[:, None]
        seen[i] = np.einsum("hkv,hk->hv", state, queries[i] / np.float32(np.sqrt(rule.key_head)))
    scale = weights.read(f"{theirs}.norm.weight", (rule.value_head,))
    normal = seen / np.sqrt(np.square(seen).mean(axis=-1, keepdims=True) + rule.epsilon) * scale
    gated = normal.reshape(len(x), sides[2]) * _silu(product("z", sides[2]))
    return np.asarray(gated @ weights.read(f"{theirs}.out_proj.weight", (hidden, sides[2])).T, np.float32)


def _silu(x: Numbers) -> Numbers:
    return np.asarray(x / (1 + np.exp(-x)), np.float32)


def _unit(x: Numbers) -> Numbers:
    return np.asarray(x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + _UNIT), np.float32)
