"""Decoders whose layers are not all attention: short convolutions, or linear attention that remembers in a matrix.

Their configurations are read in Llama's words, so that what they share with other decoders is written once.

Source: Liquid AI, LFM2 Technical Report, 2025, arXiv:2511.23404 (convolutions between two gates).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.export.decoder.delta import DeltaRule, DeltaWriter, remembered
from edgeopt.export.decoder.granite import HYBRID as GRANITE
from edgeopt.export.decoder.mamba import MambaConfiguration, ScanWriter, limits_steps
from edgeopt.export.decoder.mamba_reference import MambaReference
from edgeopt.export.decoder.nodes import MICROSOFT
from edgeopt.export.decoder.tensors_file import NamedTensors

LIQUID = ("lfm2", "lfm2_moe")
KINDS = (*LIQUID, "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", GRANITE)
"""`model_type` of the hybrids that are written here."""
ATTENTION, CONVOLUTION, DELTA = "full_attention", "conv", "linear_attention"
Numbers = NDArray[np.float32]
_MIXER = "model.layers.{}.mamba"
"""Prefix of the names of a layer's scan."""
GATED = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""Those whose norms add 1 to what is stored, and whose queries stand beside gates."""


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The layers of a hybrid, from `config.json`."""

    layers: tuple[str, ...]
    """How each layer mixes tokens: `ATTENTION`, `CONVOLUTION` or `DELTA` (a recurrence)."""
    kernel: int
    """Tokens that a convolution sees."""
    rule: DeltaRule | None = None
    """Heads of linear attention."""
    turned: int = 0
    """Numbers of each head that positions turn; 0: all."""
    scan: MambaConfiguration | None = None
    """Heads of a selective scan, as Mamba-2 has them."""
    has_positions: bool = True
    """Whether positions turn queries and keys at all: scans tell the order of tokens too."""

    @property
    def gates_attention(self) -> bool:
        """Whether what attention sees goes through a gate, whose weights lie between those of the queries."""
        return self.rule is not None

    def state_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the states of a layer that is no attention, for one text."""
        if self.scan is not None:
            return self.scan.state_shapes
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
    if kind in LIQUID:
        neurons = _neurons(values) if kind == "lfm2" else values["intermediate_size"]
        made |= {"rms_norm_eps": values.get("norm_eps", 1e-5), "intermediate_size": neurons}
        made |= {"tie_word_embeddings": values.get("tie_word_embeddings", values.get("tie_embedding", True))}
        made |= {"rope_theta": values.get("rope_theta", 1e6)}
    if kind == GRANITE and not values.get("num_local_experts"):
        made["intermediate_size"] = values["shared_intermediate_size"]
    if kind in KINDS:
        made.setdefault("intermediate_size", values.get("moe_intermediate_size"))  # which all layers of a mixture have
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
    if kind == GRANITE:
        return _granite(values)
    layers = values.get("layer_types")
    if not layers and kind not in LIQUID:
        step = int(values.get("full_attention_interval") or 4)
        layers = [DELTA if (i + 1) % step else ATTENTION for i in range(int(values["num_hidden_layers"]))]
    elif not layers:
        count = int(values["num_hidden_layers"])
        full = values.get("full_attn_idxs")
        attending = range(count) if full is None else {int(layer) for layer in full}
        layers = [ATTENTION if i in attending else CONVOLUTION for i in range(count)]
    names = tuple(map(str, layers))
    if kind in LIQUID:
        return Hybrid(names, int(values.get("conv_L_cache") or 3))
    positions = values.get("rope_parameters") or {}
    share = float(positions.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 0.25)
    turned = int(int(values["head_dim"]) * share)
    return Hybrid(names, int(values["linear_conv_kernel_dim"]), DeltaRule.read(values), turned)


def _granite(values: Mapping[str, Any]) -> Hybrid:
    """Return the layers of a Granite 4."""
    if limits_steps(values):
        raise ValueError(f"time_step_limit {values['time_step_limit']}")
    count, hidden = int(values["num_hidden_layers"]), int(values["hidden_size"])
    kinds = {"mamba": DELTA, "attention": ATTENTION}
    layers = tuple(kinds.get(str(kind), str(kind)) for kind in values.get("layer_types") or ["mamba"] * count)
    inner, heads = int(values.get("mamba_expand") or 2) * hidden, int(values["mamba_n_heads"])
    scan = MambaConfiguration(
        kind="mamba2", vocabulary=int(values["vocab_size"]), hidden=hidden, layers=count, inner=inner,
        state=int(values["mamba_d_state"]), kernel=int(values.get("mamba_d_conv") or 4), heads=heads,
        groups=int(values.get("mamba_n_groups") or 1), rank=0, epsilon=float(values.get("rms_norm_eps", 1e-6)),
        is_tied=False, context=int(values.get("max_position_embeddings", 2048)),
    )  # fmt: skip
    if min(heads, scan.groups, scan.state) < 1 or inner % heads or heads % scan.groups:
        raise ValueError(f"{heads} heads in {scan.groups} groups of {inner} channels")
    has_positions = values.get("position_embedding_type") == "rope"
    return Hybrid(layers, scan.kernel, scan=scan, has_positions=has_positions)


def require_hybrid(hybrid: Hybrid, layers: int, where: object) -> None:
    """Raise where layers are of a kind that is not known, or are not as many as the decoder has.

    Raises:
        InvalidFileError: If so.
    """
    other = DELTA if hybrid.rule is not None or hybrid.scan is not None else CONVOLUTION
    strange = sorted({*hybrid.layers} - {ATTENTION, other})
    if strange or len(hybrid.layers) != layers or hybrid.kernel < 2:
        problem = f"layers of the kind {strange[0]}" if strange else f"{len(hybrid.layers)} kinds for {layers} layers"
        raise InvalidFileError(f"{where} names {problem}", remedy="copy the folder again")


class HybridWriter(DeltaWriter, ScanWriter):
    """Writes the layers that are no attention."""

    _mine, _mixer = "layer.{}.scan", _MIXER

    def _beside_attention(self, x: str, layer: int, hybrid: Hybrid, hidden: int) -> str:
        """Return what a layer that is no attention makes of x."""
        if hybrid.scan is not None:
            self._scans = hybrid.scan
            return self._scanned_layer(layer, x)
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
    if hybrid.scan is not None:
        return MambaReference(hybrid.scan, weights, _MIXER).mixed(layer, x)
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
