"""A mixture of experts in place of a decoder's gated product: each token takes the few experts that a router names.

The graph has one `MoE` of com.microsoft a layer, which reads the weights of chosen experts alone: with a single token
those of k experts, with many each expert once, for all of its tokens.

Source: Shazeer et al., 2017, arXiv:1701.06538; Jiang et al., Mixtral of Experts, 2024, arXiv:2401.04088; Dai et al.,
DeepSeekMoE, 2024, arXiv:2401.06066 (experts that every token takes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.export.decoder.granite import HYBRID
from edgeopt.export.decoder.granite import MIXTURES as GRANITE
from edgeopt.export.decoder.nodes import MICROSOFT, NodeWriter
from edgeopt.export.decoder.packed import PackedExperts, packed_experts
from edgeopt.export.decoder.tensors_file import NamedTensors

KINDS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "qwen3_5_moe_text", "qwen3_next", "lfm2_moe", *GRANITE)
"""`model_type` of the mixtures that are written here."""
_ALWAYS_NORMS = ("mixtral", "qwen3_5_moe_text", "lfm2_moe", *GRANITE)
_BY_SIGMOID = ("lfm2_moe",)
_NOT_CHOSEN = -1e4
"""A score beside which others are all."""
_WITH_SHARED = {
    **dict.fromkeys(("qwen2_moe", "qwen3_5_moe_text", "qwen3_next"), "shared_expert_intermediate_size"),
    **dict.fromkeys(("granitemoeshared", "granitemoehybrid"), "shared_intermediate_size"),
}
"""`model_type` -> the configuration's key for the size of the expert that every token takes."""
Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of each layer, from `config.json`."""

    experts: int
    chosen: int
    """Experts that a token takes."""
    inner: int
    """Neurons of an expert."""
    is_normed: bool
    """Whether the shares of the chosen experts add up to 1; else they stay as they are among all experts."""
    shared: int = 0
    """Neurons of the expert that every token takes beside; 0: there is none."""
    dense: tuple[int, ...] = ()
    """Layers that have a gated product as other decoders do."""

    is_by_sigmoid: bool = False
    """Whether shares are sigmoids of the scores, chosen by their sum with a bias of each expert (`expert_bias`)."""

    def is_in(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return layer not in self.dense


def read_mixture(values: Mapping[str, Any], kind: str) -> Mixture | None:
    """Return the experts that a configuration tells; None for a kind that has none.

    Args:
        values: Of `config.json`.
        kind: Its `model_type`.

    Raises:
        KeyError, TypeError, ValueError: If a number is missing or none.
    """
    if kind not in KINDS or (kind == HYBRID and not values.get("num_local_experts")):
        return None
    layers, step = int(values["num_hidden_layers"]), int(values.get("decoder_sparse_step") or 1)
    alone = {int(layer) for layer in values.get("mlp_only_layers") or ()}
    alone |= set(range(int(values.get("num_dense_layers") or 0)))
    dense = tuple(i for i in range(layers) if i in alone or (i + 1) % step)
    experts = int(values.get("num_local_experts") or values["num_experts"])
    return Mixture(
        experts=experts,
        chosen=int(values["num_experts_per_tok"]),
        inner=int(values.get("moe_intermediate_size") or values["intermediate_size"]),
        is_normed=kind in _ALWAYS_NORMS or bool(values.get("norm_topk_prob", kind == "qwen3_next")),
        shared=int(values[_WITH_SHARED[kind]] or 0) if kind in _WITH_SHARED else 0,
        dense=dense,
        is_by_sigmoid=kind in _BY_SIGMOID,
    )


def require_mixture(mixture: Mixture, where: object) -> None:
    """Raise where a token cannot take so many experts.

    Raises:
        InvalidFileError: If so.
    """
    if min(mixture.experts, mixture.inner) < 1 or not 1 <= mixture.chosen <= mixture.experts or mixture.shared < 0:
        raise InvalidFileError(
            f"{where}: {mixture.chosen} of {mixture.experts} experts of {mixture.inner} neurons are no mixture",
            remedy="copy the folder again",
        )


def expert_weights(weights: NamedTensors, layer: int, mixture: Mixture, hidden: int) -> tuple[Numbers, Numbers]:
    """Return (experts, 2 * inner, hidden), gate and up in turns, and (experts, hidden, inner).

    Args:
        weights: One matrix an expert, as checkpoints have them, or all in one tensor.
        layer: Its number.
        mixture: Of the decoder.
        hidden: Numbers of a token.
    """
    place, count, inner = mixture_place(weights, layer), mixture.experts, mixture.inner
    ups, downs = np.empty((count, inner, 2, hidden), np.float32), np.empty((count, hidden, inner), np.float32)
    if f"{place}.experts.gate_up_proj" in weights:
        joined = weights.read(f"{place}.experts.gate_up_proj", (count, 2 * inner, hidden))
        ups[:, :, 0], ups[:, :, 1] = joined[:, :inner], joined[:, inner:]
        downs[:] = weights.read(f"{place}.experts.down_proj", (count, hidden, inner))
        return ups.reshape(count, 2 * inner, hidden), downs
    gate, up, down = _names(weights, place)
    for i in range(count):
        expert = f"{place}.experts.{i}"
        ups[i, :, 0] = weights.read(f"{expert}.{gate}.weight", (inner, hidden))
        ups[i, :, 1] = weights.read(f"{expert}.{up}.weight", (inner, hidden))
        downs[i] = weights.read(f"{expert}.{down}.weight", (hidden, inner))
    return ups.reshape(count, 2 * inner, hidden), downs


def _names(weights: NamedTensors, place: str) -> tuple[str, str, str]:
    """Return what a checkpoint calls gate, up and down of an expert."""
    is_short = f"{place}.experts.0.w1.weight" in weights
    return ("w1", "w3", "w2") if is_short else ("gate_proj", "up_proj", "down_proj")


def mixture_place(weights: NamedTensors, layer: int) -> str:
    """Return what the names of a layer's experts begin with."""
    short = f"model.layers.{layer}.block_sparse_moe"
    return short if f"{short}.gate.weight" in weights else f"model.layers.{layer}.mlp"


class MixtureWriter(NodeWriter):
    """Writes the experts of a layer."""

    def _experts(self, x: str, layer: int, mixture: Mixture, hidden: int) -> str:
        """Return what the experts of a layer, and the one that all tokens take, make of x."""
        mine, theirs = f"layer.{layer}", mixture_place(self._weights, layer)
        scores = self._product(x, [f"{theirs}.gate"], [mixture.experts], hidden, f"{mine}.router")
        rows = self._constant(f"{mine}.router.shape", np.array([-1, mixture.experts], np.int64))
        flat = self._node("Reshape", [scores, rows], f"{mine}.scores")
        if mixture.is_by_sigmoid:
            flat = self._by_sigmoid(flat, theirs, mixture, mine)
        sides, names = (mixture.inner, hidden), _names(self._weights, theirs)
        packed = packed_experts(self._weights, theirs, names, mixture.experts, sides)
        if packed is not None:
            made = self._in_blocks(x, flat, packed, mixture, f"{mine}.experts")
        else:
            ups, downs = expert_weights(self._weights, layer, mixture, hidden)
            both = [self._constant(f"{mine}.experts.{name}", each) for name, each in (("up", ups), ("down", downs))]
            inputs = [x, flat, both[0], "", both[1]]
            made = self._node("MoE", inputs, f"{mine}.experts", MICROSOFT, **_told(mixture))
        if not mixture.shared:
            return made
        beside = self._gated(x, f"{theirs}.shared_expert", (hidden, mixture.shared), f"{mine}.shared")
        if f"{theirs}.shared_expert_gate.weight" not in self._weights:
            return self._node("Add", [made, beside], f"{mine}.mixed")
        open_ = self._product(x, [f"{theirs}.shared_expert_gate"], [1], hidden, f"{mine}.shared_gate")
        share = self._node("Sigmoid", [open_], f"{mine}.shared_share")
        return self._node("Add", [made, self._node("Mul", [beside, share], f"{mine}.shared_part")], f"{mine}.mixed")

    def _by_sigmoid(self, scores: str, theirs: str, mixture: Mixture, mine: str) -> str:
        """Return scores of which a softmax gives the shares that sigmoids have among the chosen experts."""
        mine = f"{mine}.router"
        share = chosen = self._node("Sigmoid", [scores], f"{mine}.sigmoids")
        if f"{theirs}.expert_bias" in self._weights:
            bias = self._read_as(f"{theirs}.expert_bias", (mixture.experts,))
            chosen = self._node("Add", [share, bias], f"{mine}.ranks")
        count = self._constant(f"{mine}.chosen", np.array([mixture.chosen], np.int64))
        self._outputs("TopK", [chosen, count], [f"{mine}.best", f"{mine}.places"], "", axis=-1)
        last = self._constant(f"{mine}.last", np.array([mixture.chosen - 1], np.int64))
        least = self._node("Gather", [f"{mine}.best", last], f"{mine}.least", axis=-1)
        is_out = self._node("Less", [chosen, least], f"{mine}.is_out")
        out = self._constant(f"{mine}.out", np.array(_NOT_CHOSEN, np.float32))
        return self._node("Where", [is_out, out, self._node("Log", [share], f"{mine}.logs")], f"{mine}.of_chosen")

    def _in_blocks(self, x: str, scores: str, experts: PackedExperts, mixture: Mixture, mine: str) -> str:
        """Return what experts make of x whose matrices stay as their checkpoint stores them."""
        inputs, zeros = [x, scores], list[str]()
        for part, matrices in (("up", experts.up), ("down", experts.down)):
            blocks = [matrix.blocks for matrix in matrices]
            packed = np.stack([each.packed().reshape(len(each.integers), -1) for each in blocks])
            scales = np.stack([each.scale for each in blocks])
            inputs += [self._constant(f"{mine}.{part}", packed), self._constant(f"{mine}.{part}.scale", scales), ""]
            own = [zero for each in blocks if (zero := each.packed_zero()) is not None]
            zeros.append(self._constant(f"{mine}.{part}.zero", np.stack(own)) if own else "")
        shares = "" if mixture.is_normed else self._node("Softmax", [scores], f"{mine}.shares", axis=-1)
        inputs += ["", "", "", *zeros, "", shares]
        while not inputs[-1]:
            inputs.pop()
        sizes = {"expert_weight_bits": experts.bits, "block_size": experts.block}
        return self._node("QMoE", inputs, mine, MICROSOFT, **_told(mixture), **sizes)


def _told(mixture: Mixture) -> dict[str, Any]:
    """Return what `MoE` and `QMoE` are told of a mixture."""
    return {
        "k": mixture.chosen, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0,
        "activation_beta": 0.0, "normalize_routing_weights": int(mixture.is_normed),
    }  # fmt: skip


def mixed(weights: NamedTensors, layer: int, mixture: Mixture, x: Numbers) -> Numbers:
    """Return what the experts make of (tokens, hidden), token by token, in plain NumPy.

    Args:
        weights: Of the decoder.
        layer: Its number.
        mixture: Of the decoder.
        x: What the layer's norm gives.
    """
    hidden, theirs = x.shape[-1], mixture_place(weights, layer)
    scores = x @ weights.read(f"{theirs}.gate.weight", (mixture.experts, hidden)).T
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    ranks = shares
    if mixture.is_by_sigmoid:
        ranks = shares = 1 / (1 + np.exp(-scores))
        if f"{theirs}.expert_bias" in weights:
            ranks = shares + weights.read(f"{theirs}.expert_bias", (mixture.experts,))
    chosen = np.argsort(-ranks, axis=-1, kind="stable")[:, : mixture.chosen]
    ups, downs = expert_weights(weights, layer, mixture, hidden)
    result = np.zeros_like(x)
    for i, experts in enumerate(chosen):
        taken = shares[i, experts] / (shares[i, experts].sum() if mixture.is_normed else 1)
        for expert, share in zip(experts, taken, strict=True):
            result[i] += share * (downs[expert] @ opened(ups[expert] @ x[i]))
    if mixture.shared:
        name = f"{theirs}.shared_expert"
        gate, up = (weights.read(f"{name}.{part}_proj.weight", (mixture.shared, hidden)) for part in ("gate", "up"))
        inner = x @ gate.T
        inner = inner / (1 + np.exp(-inner)) * (x @ up.T)
        beside = inner @ weights.read(f"{name}.down_proj.weight", (hidden, mixture.shared)).T
        if f"{theirs}.shared_expert_gate.weight" in weights:
            beside /= 1 + np.exp(-x @ weights.read(f"{theirs}.shared_expert_gate.weight", (1, hidden)).T)
        result += beside
    return result


def opened(both: Numbers) -> Numbers:
    """Return silu(gate) * up of (..., 2 * inner) in which they take turns."""
    gate, up = both[..., 0::2], both[..., 1::2]
    return np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32)
