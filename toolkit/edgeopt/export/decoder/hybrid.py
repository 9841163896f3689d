"""Decoders whose layers are not all attention: short convolutions, or linear attention that remembers in a matrix.

Their configurations and weights are read in Llama's words, so that what they share with other decoders is written once.

Source: Liquid AI, LFM2 Technical Report, 2025, arXiv:2511.23404 (convolutions between two gates).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.export.decoder.delta import DeltaRule, DeltaWriter, remembered
from edgeopt.export.decoder.nodes import MICROSOFT
from edgeopt.export.decoder.packed import PackedMatrix, keeps_halves, packed_of
from edgeopt.export.decoder.tensors_file import NamedTensors

KINDS = ("lfm2", "qwen3_5_text")
"""`model_type` of the hybrids that are written here."""
ATTENTION, CONVOLUTION, DELTA = "full_attention", "conv", "linear_attention"
Numbers = NDArray[np.float32]
_NAMES = {
    "lfm2": {
        r"model\.norm\.": "model.embedding_norm.",
        r"\.input_layernorm\.": ".operator_norm.",
        r"\.post_attention_layernorm\.": ".ffn_norm.",
        r"\.mlp\.gate_proj\.": ".feed_forward.w1.",
        r"\.mlp\.up_proj\.": ".feed_forward.w3.",
        r"\.mlp\.down_proj\.": ".feed_forward.w2.",
        r"\.self_attn\.o_proj\.": ".self_attn.out_proj.",
        r"\.self_attn\.([qk])_norm\.": r".self_attn.\1_layernorm.",
    }
}
"""Llama's names, and those of the kind."""
_GATED = "qwen3_5_text"
"""Its norms add 1 to what is stored, and its queries stand beside gates."""
_QUERIES = {"q_proj.weight": 0, "gate_proj.weight": 1}


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The layers of a hybrid, from `config.json`."""

    layers: tuple[str, ...]
    """What each of them mixes tokens by."""
    kernel: int
    """Tokens that a convolution sees."""
    rule: DeltaRule | None = None
    """Heads of linear attention."""
    turned: int = 0
    """Numbers of each head that positions turn; 0: all."""

    @property
    def gates_attention(self) -> bool:
        """Whether what attention sees goes through a gate, whose weights lie between those of the queries."""
        return self.rule is not None

    def state_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the states of a layer that is no attention, for one text."""
        if self.rule is None:
            return {"conv_state": (self.kernel - 1, hidden)}
        return {"conv_state": (self.kernel - 1, sum(self.rule.sides)), "recurrent_state": self.rule.state_shape}


def in_words_of_llama(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a configuration under the names that Llama's has.

    Args:
        values: Of `config.json`.
        kind: Its `model_type`.
    """
    made = dict(values)
    if kind == "lfm2":
        made |= {"rms_norm_eps": values.get("norm_eps", 1e-5), "intermediate_size": _neurons(values)}
        made |= {"tie_word_embeddings": values.get("tie_word_embeddings", values.get("tie_embedding", True))}
        made |= {"rope_theta": values.get("rope_theta", 1e6)}
    if kind in KINDS:
        made.pop("layer_types", None)
        made.pop("partial_rotary_factor", None)
        if isinstance(positions := values.get("rope_parameters"), Mapping):
            made["rope_parameters"] = {k: v for k, v in positions.items() if k != "partial_rotary_factor"}
    return made


def _neurons(values: Mapping[str, Any]) -> int:
    """Return the neurons of a layer of LFM2, which its configuration tells before they are made a round number."""
    count = int(values.get("block_ff_dim") or values["intermediate_size"])
    if not values.get("block_auto_adjust_ff_dim", True):
        return count
    count = int(2 * count / 3)
    factor, step = values.get("block_ffn_dim_multiplier", 1.0), int(values.get("block_multiple_of") or 256)
    if factor is None:
        return count
    return -(-int(factor * count) // step) * step


def read_hybrid(values: Mapping[str, Any], kind: str) -> Hybrid | None:
    """Return the layers that a configuration tells; None for a kind whose layers are all attention.

    Args:
        values: Of `config.json`, as it is.
        kind: Its `model_type`.

    Raises:
        KeyError, TypeError, ValueError: If a number is missing or none.
    """
    if kind not in KINDS:
        return None
    layers = values.get("layer_types")
    if not layers and kind != "lfm2":
        step = int(values.get("full_attention_interval") or 4)
        layers = [DELTA if (i + 1) % step else ATTENTION for i in range(int(values["num_hidden_layers"]))]
    elif not layers:
        count = int(values["num_hidden_layers"])
        full = values.get("full_attn_idxs")
        attending = range(count) if full is None else {int(layer) for layer in full}
        layers = [ATTENTION if i in attending else CONVOLUTION for i in range(count)]
    names = tuple(map(str, layers))
    if kind == "lfm2":
        return Hybrid(names, int(values.get("conv_L_cache") or 3))
    positions = values.get("rope_parameters") or {}
    share = float(positions.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 0.25)
    turned = int(int(values["head_dim"]) * share)
    return Hybrid(names, int(values["linear_conv_kernel_dim"]), DeltaRule.read(values), turned)


def require_hybrid(hybrid: Hybrid, layers: int, where: object) -> None:
    """Raise where layers are of a kind that is not known, or are not as many as the decoder has.

    Raises:
        InvalidFileError: If so.
    """
    strange = sorted({*hybrid.layers} - {ATTENTION, CONVOLUTION if hybrid.rule is None else DELTA})
    if strange or len(hybrid.layers) != layers or hybrid.kernel < 2:
        problem = f"layers of the kind {strange[0]}" if strange else f"{len(hybrid.layers)} kinds for {layers} layers"
        raise InvalidFileError(f"{where} names {problem}", remedy="copy the folder again")


@dataclass(frozen=True, slots=True)
class RenamedTensors:
    """Tensors of a hybrid under Llama's names."""

    weights: NamedTensors
    kind: str
    head: int
    """Numbers of one head of attention."""

    def __contains__(self, name: str) -> bool:
        return self._theirs(name) in self.weights

    def read(self, name: str, shape: tuple[int, ...]) -> Numbers:
        """Return one tensor in float32, or raise where it is not there or of another shape."""
        if self.kind != _GATED:
            return self.weights.read(self._theirs(name), shape)
        if (place := _QUERIES.get(name.rpartition("self_attn.")[2])) is not None:
            return self._of_queries(name, shape, place)
        array = self.weights.read(name, shape)
        return array + 1 if name.endswith("norm.weight") and "linear_attn" not in name else array

    def _of_queries(self, name: str, shape: tuple[int, ...], place: int) -> Numbers:
        """Return queries or their gates, which take turns head by head in one matrix."""
        both = self.weights.read(name.replace(".gate_proj.", ".q_proj."), (2 * shape[0], shape[1]))
        return np.ascontiguousarray(both.reshape(-1, 2, self.head, shape[1])[:, place].reshape(shape))

    @property
    def has_blocks(self) -> bool:
        """Whether matrices lie in blocks."""
        return keeps_halves(self.weights)

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """Return a matrix as its checkpoint stores it; None: it is read in floats."""
        if self.kind == _GATED:  # whose queries and gates take turns in one matrix
            return None
        return packed_of(self.weights, self._theirs(name), shape)

    def _theirs(self, name: str) -> str:
        for ours, theirs in _NAMES.get(self.kind, {}).items():
            name = re.sub(ours, theirs, name)
        return name


def named_as_llama(weights: NamedTensors, kind: str, head: int) -> NamedTensors:
    """Return the tensors of a decoder under Llama's names, norms as factors, and gates of attention apart."""
    return RenamedTensors(weights, kind, head) if kind in KINDS else weights


class HybridWriter(DeltaWriter):
    """Writes the layers that are no attention."""

    def _beside_attention(self, x: str, layer: int, hybrid: Hybrid, hidden: int) -> str:
        """Return what a layer that is no attention makes of x."""
        if hybrid.rule is None:
            return self._convolved(x, layer, hybrid, hidden)
        return self._delta(x, layer, hybrid.rule, hybrid.kernel, hidden)

    def _convolved(self, x: str, layer: int, hybrid: Hybrid, hidden: int) -> str:
        """Return what a short convolution between two gates makes of x; it keeps the tokens before the next one."""
        mine, theirs = f"layer.{layer}", f"model.layers.{layer}.conv"
        three = self._product(x, [f"{theirs}.in_proj"], [3 * hidden], hidden, f"{mine}.in")
        parts = [f"{mine}.before", f"{mine}.behind", f"{mine}.read"]
        self._outputs("Split", [three], parts, "", axis=-1, num_outputs=3)
        fed = self._node("Mul", [parts[0], parts[2]], f"{mine}.fed")
        inputs = [fed, *self._taps(layer, (hidden, 1, hybrid.kernel)), f"past_key_values.{layer}.conv_state"]
        outputs = [f"{mine}.convolved", f"present.{layer}.conv_state"]
        self._outputs("CausalConvWithState", inputs, outputs, MICROSOFT, channels_last=1)
        passed = self._node("Mul", [parts[1], outputs[0]], f"{mine}.passed")
        return self._product(passed, [f"{theirs}.out_proj"], [hidden], hidden, f"{mine}.out")

    def _taps(self, layer: int, shape: tuple[int, int, int]) -> list[str]:
        """Return weight and bias of a convolution; no bias: an empty name."""
        name = f"model.layers.{layer}.conv.conv"
        weight = self._constant(f"{name}.weight", self._weights.read(f"{name}.weight", shape))
        if f"{name}.bias" not in self._weights:
            return [weight, ""]
        return [weight, self._constant(f"{name}.bias", self._weights.read(f"{name}.bias", shape[:1]))]


def beside_attention(weights: NamedTensors, layer: int, hybrid: Hybrid, x: Numbers) -> Numbers:
    """Return what a layer that is no attention makes of (tokens, hidden), in plain NumPy.

    Args:
        weights: Of the decoder.
        layer: Its number.
        hybrid: Of the decoder.
        x: What the layer's norm gives.
    """
    if hybrid.rule is None:
        return convolved(weights, layer, hybrid, x)
    return remembered(weights, layer, hybrid.rule, hybrid.kernel, x)


def convolved(weights: NamedTensors, layer: int, hybrid: Hybrid, x: Numbers) -> Numbers:
    """Return what the convolution of a layer makes of (tokens, hidden), in plain NumPy.

    Args:
        weights: Of the decoder.
        layer: Its number.
        hybrid: Of the decoder.
        x: What the layer's norm gives.
    """
    hidden, name = x.shape[-1], f"model.layers.{layer}.conv"

    def product(rows: Numbers, part: str, outputs: int) -> Numbers:
        made = rows @ weights.read(f"{name}.{part}.weight", (outputs, hidden)).T
        bias = f"{name}.{part}.bias"
        return made + weights.read(bias, (outputs,)) if bias in weights else made

    before, behind, read = np.split(product(x, "in_proj", 3 * hidden), 3, axis=-1)
    fed = np.concatenate([np.zeros((hybrid.kernel - 1, hidden), np.float32), before * read])
    taps = weights.read(f"{name}.conv.weight", (hidden, 1, hybrid.kernel))[:, 0]
    seen = sum(fed[i : i + len(x)] * taps[:, i] for i in range(hybrid.kernel))
    if f"{name}.conv.bias" in weights:
        seen = seen + weights.read(f"{name}.conv.bias", (hidden,))
    return product(np.asarray(behind * seen, np.float32), "out_proj", hidden)
