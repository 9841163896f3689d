"""Write a decoder of the Llama type: grouped queries with rotary positions, gated products, RMS norms.

The graph is that of onnxruntime-genai's builder: `GroupQueryAttention` and `SkipSimplifiedLayerNormalization` of
com.microsoft, the rest in ops of ONNX.

Source: Touvron et al., 2023, arXiv:2302.13971; Ainslie et al., 2023, arXiv:2305.13245; Su et al., 2021,
arXiv:2104.09864.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors.onnxruntime.image_rows import WITH_IMAGES
from edgeopt.export.decoder.granite import KINDS as GRANITES
from edgeopt.export.decoder.granite import PLAIN, Factors, read_factors
from edgeopt.export.decoder.hybrid import (
    ATTENTION,
    Hybrid,
    HybridWriter,
    in_words_of_llama,
    read_hybrid,
    require_hybrid,
)
from edgeopt.export.decoder.hybrid import KINDS as HYBRIDS
from edgeopt.export.decoder.mixture import KINDS as MIXTURES
from edgeopt.export.decoder.mixture import Mixture, read_mixture, require_mixture
from edgeopt.export.decoder.nodes import MICROSOFT, PictureNodes, float_port, int_port
from edgeopt.export.decoder.packed import PackedMatrix, keeps_halves, packed_of, side_by_side
from edgeopt.export.decoder.positions import Positions, is_written, read_window
from edgeopt.export.decoder.quantized import read_scheme
from edgeopt.export.decoder.renamed import named_as_llama
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.model import Model
from edgeopt.system.toml import Within

KINDS = tuple(dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", *GRANITES, *MIXTURES, *HYBRIDS)))
"""`model_type` of what is written here; Qwen2 adds a bias to queries, keys and values, Qwen3 norms them."""
_OPSET, _IR = 21, 10
_MOST = 1 << 20
"""No size of a decoder is larger: the tables of its positions would take gigabytes."""
_Side = Annotated[int, Within(1, _MOST)]
_HEAD_STEP = 16
_REMEDY = "copy the folder again"


@dataclass(frozen=True, slots=True)
class LlamaConfiguration:
    """The configuration of a decoder of the Llama type, from `config.json`."""

    kind: str
    vocabulary: _Side
    hidden: _Side
    inner: _Side
    layers: _Side
    heads: _Side
    kv_heads: _Side
    head: _Side
    """Numbers of one head."""
    epsilon: float
    positions: Positions
    context: _Side
    """Tokens that the positions reach."""
    is_tied: bool
    """Whether the embedding is the head too."""
    window: int = 0
    """Tokens that a query sees; 0: all."""
    end: tuple[int, ...] = ()
    """Tokens that end a text."""
    begin: tuple[int, ...] = ()
    """The token that may stand before every text."""
    mixture: Mixture | None = None
    """The experts that stand in the layers; None: each layer has one gated product."""
    hybrid: Hybrid | None = None
    """Mixers of the layers of a hybrid; None: all layers mix tokens by attention."""
    factors: Factors = PLAIN

    @property
    def turned(self) -> int:
        """Numbers of each head that positions turn."""
        return self.hybrid.turned or self.head if self.hybrid else self.head

    def attends(self, layer: int) -> bool:
        """Return whether a layer is one of attention."""
        return self.hybrid is None or self.hybrid.layers[layer] == ATTENTION

    @property
    def norms_all_heads(self) -> bool:
        """Whether queries and keys are normed over all heads at once, as OLMoE does; else each head by itself."""
        return self.kind == "olmoe"


def read_configuration(folder: Path) -> LlamaConfiguration:
    """Read `config.json`.

    Raises:
        InvalidFileError: If it is no such file.
        UnsupportedError: If it asks for what the graph does not compute.
    """
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text("utf-8"))
        kind = str(values["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidFileError(f"{file} is no configuration of a network", remedy=_REMEDY) from error
    return configuration_of(values, kind, file)


def configuration_of(values: Mapping[str, Any], kind: str, file: Path) -> LlamaConfiguration:
    """Return the configuration of a decoder, as a file tells it.

    Args:
        values: Of the file, or of the part of it that is of the decoder.
        kind: Its `model_type`.
        file: Named in messages.

    Raises:
        InvalidFileError: If a size is missing or wrong.
        UnsupportedError: If it asks for what the graph does not compute.
    """
    if kind not in KINDS:
        raise UnsupportedError(f"{file}: a {kind} is not written here", remedy=f"those are: {', '.join(KINDS)}")
    try:
        if (layers := int(values["num_hidden_layers"])) > _MOST:  # before anybody counts them
            raise ValueError(f"{layers} layers")
        hybrid, values = read_hybrid(values, kind), in_words_of_llama(values, kind)
        _require_plain(values, file)
        heads, context = int(values["num_attention_heads"]), int(values.get("max_position_embeddings", 2048))
        end, begin = values.get("eos_token_id"), values.get("bos_token_id")
        configuration = LlamaConfiguration(
            kind=kind,
            vocabulary=int(values["vocab_size"]),
            hidden=int(values["hidden_size"]),
            inner=int(values["intermediate_size"]),
            layers=layers,
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
            epsilon=float(values.get("rms_norm_eps", 1e-6)),
            positions=Positions.read(values, context),
            context=context,
            is_tied=bool(values.get("tie_word_embeddings", False)),
            window=read_window(values, kind, layers, file),
            end=tuple(int(value) for value in (end if isinstance(end, list) else [end] if end is not None else [])),
            begin=() if begin is None else (int(begin),),
            mixture=read_mixture(values, kind),
            hybrid=hybrid,
            factors=read_factors(values, kind),
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidFileError(f"{file} lacks a size, or holds no number there: {error}", remedy=_REMEDY) from error
    require_sizes(configuration, file)
    if configuration.mixture is not None:
        require_mixture(configuration.mixture, file)
    if hybrid is not None:
        require_hybrid(hybrid, configuration.layers, file)
    return configuration


def require_sizes(config: LlamaConfiguration, path: Path) -> None:
    """Raise where sizes do not fit each other.

    Args:
        config: Of a decoder.
        path: Where it stands.

    Raises:
        InvalidFileError: If one is below 1 or beyond all that there are, or heads are not shared evenly.
        UnsupportedError: If no graph is written for such heads.
    """
    sizes = (config.vocabulary, config.hidden, config.inner, config.layers, config.heads, config.kv_heads)
    if min(*sizes, config.head, config.context) < 1:
        raise InvalidFileError(f"{path} holds a size below 1", remedy=_REMEDY)
    if (largest := max(*sizes, config.head, config.context)) > _MOST:
        raise InvalidFileError(f"{path} holds the size {largest}: no decoder has one above {_MOST}", remedy=_REMEDY)
    if config.heads % config.kv_heads:
        raise InvalidFileError(f"{path}: {config.heads} heads do not share {config.kv_heads} evenly", remedy=_REMEDY)
    if config.head % _HEAD_STEP:
        raise UnsupportedError(
            f"{path}: heads of {config.head} numbers do not run in GroupQueryAttention, which turns multiples of 16",
            remedy="export it with torch, without a fused attention",
        )


def _require_plain(values: Mapping[str, Any], file: Path) -> None:
    """Raise where a configuration asks for more than known positions, plain gates and one kind of layer."""
    read_scheme(values, file)
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    share = values.get("partial_rotary_factor") or (values.get("rope_parameters") or {}).get("partial_rotary_factor")
    odd = {
        "hidden_act": values.get("hidden_act", "silu") not in ("silu", "swish"),
        "rope_scaling": not is_written(scaling),
        "attention_bias": bool(values.get("attention_bias")),
        "mlp_bias": bool(values.get("mlp_bias")),
        "partial_rotary_factor": float(share or 1) != 1,
        "layer_types": len(set(values.get("layer_types") or [])) > 1,
        "clip_qkv": values.get("clip_qkv") is not None,
        "routed_scaling_factor": float(values.get("routed_scaling_factor") or 1) != 1,
        "norm_topk_prob": values.get("model_type") == "lfm2_moe" and not values.get("norm_topk_prob", True),
    }
    if wrong := [name for name, is_odd in odd.items() if is_odd]:
        raise UnsupportedError(
            f"{file}: {wrong[0]} = {str(values.get(wrong[0]))[:60]} is not written here",
            remedy="export it with onnxruntime-genai's builder, and name the folder that it writes",
        )


def write_llama(
    config: LlamaConfiguration, weights: NamedTensors, name: str, *, sees: bool = False, deep: int = 0
) -> Model:
    """Return the decoder as a graph with a key and value cache.

    Inputs: `input_ids` (batch, sequence) int64, `attention_mask` (batch, past + sequence) int64, and for each layer
    `past_key_values.N.key` and `.value` (batch, kv heads, past, head) float32. Outputs: `logits` (batch, sequence,
    vocabulary) float32, and `present.N.key` and `.value`, which may lie in the memory of what they continue. One that
    sees takes `image_rows` and `image_places` too; see `executors.onnxruntime.image_rows`. Where `deep` of its layers
    get more of each row (DeepStack: Meng et al., 2024, arXiv:2406.04334), rows are so many times as wide, and one.

    Raises:
        InvalidFileError: If weights are missing or of another shape.
    """
    return _Writer(config, _named(weights, config), sees=sees, deep=deep).written(name)


def _named(weights: NamedTensors, config: LlamaConfiguration) -> NamedTensors:
    return named_as_llama(weights, config.kind, config.head, config.hybrid)


class _Writer(HybridWriter, PictureNodes):
    """Nodes and weights of a graph in the making."""

    def __init__(self, config: LlamaConfiguration, weights: NamedTensors, *, sees: bool, deep: int) -> None:
        super().__init__(weights, config.hidden)
        self._config, self._sees, self._deep = config, sees, deep
        self._table: PackedMatrix | None = None
        """The table of tokens, where it is stored in blocks; a tied head reads the same constants."""

    def written(self, name: str) -> Model:
        config = self._config
        ids, mask = int_port("input_ids", ["batch", "sequence"]), int_port("attention_mask", ["batch", "total"])
        self._lengths()
        self._angles()
        images = self._image_ports(config.hidden, self._deep, turns=bool(config.positions.axes)) if self._sees else []
        embedded = self._times(self._embedded(), config.factors.embedding, "embedded.scaled")
        x = self._with_images(embedded, self._deep) if self._sees else embedded
        normal = self._first_norm(x, "model.layers.0.input_layernorm", config.epsilon)
        for i in range(config.layers):
            x, normal = self._layer(i, x, normal)
        self._head(self._times(normal, config.factors.logits, "last.scaled"))
        outputs = [float_port("logits", ["batch", "sequence", config.vocabulary])]
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [ids, mask, *images, *self._memory("past_key_values", "past")],
            [*outputs, *self._memory("present", "total")],
            self._constants,
        )
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=_IR, producer_name="edgeopt")
        return Model(made, name)

    def _embedded(self) -> str:
        name, shape = "model.embed_tokens.weight", (self._config.vocabulary, self._config.hidden)
        packed = packed_of(self._weights, name, shape)
        if packed is not None:
            self._table = packed
            return self._packed.lookup(packed, "input_ids", "embedded")
        rows = self._weights.read(name, shape)
        if keeps_halves(self._weights):
            return self._packed.lookup_of_halves(rows, "embedding", "input_ids", "embedded")
        return self._node("Gather", [self._constant("embedding", rows), "input_ids"], "embedded")

    def _head(self, normal: str) -> None:
        name, shape = "lm_head.weight", (self._config.vocabulary, self._config.hidden)
        if self._config.is_tied or name not in self._weights:
            name = "model.embed_tokens.weight"
        packed = self._table if name != "lm_head.weight" else packed_of(self._weights, name, shape)
        if packed is not None:
            self._packed.product(normal, packed, "logits")
            return
        rows = self._weights.read(name, shape)
        if keeps_halves(self._weights):
            stored = "lm_head" if name == "lm_head.weight" else "embedding"
            self._packed.product_of_halves(normal, rows, stored, "logits")
            return
        self._node("MatMul", [normal, self._constant("lm_head", np.ascontiguousarray(rows.T))], "logits")

    def _cache(self, name: str, length: str) -> onnx.ValueInfoProto:
        return float_port(name, ["batch", self._config.kv_heads, length, self._config.head])

    def _memory(self, prefix: str, length: str) -> list[onnx.ValueInfoProto]:
        """Return keys and values of layers of attention, and the states of others."""
        config = self._config
        attending = [i for i in range(config.layers) if config.attends(i)]
        cache = [self._cache(f"{prefix}.{i}.{part}", length) for i in attending for part in ("key", "value")]
        sides = config.hybrid.state_shapes(config.hidden) if config.hybrid else {}
        others = [i for i in range(config.layers) if not config.attends(i)]
        return cache + [
            float_port(f"{prefix}.{i}.{state}", ["batch", *sides[state]]) for i in others for state in sides
        ]

    def _lengths(self) -> None:
        """Write each row's last position and the longest row, as GroupQueryAttention takes them."""
        name, rows = self._constant("one", np.array(1, np.int64)), self._constant("columns", np.array([1], np.int64))
        held = self._node("ReduceSum", ["attention_mask", rows], "held", keepdims=0)
        last = self._node("Sub", [held, name], "last_position")
        self._node("Cast", [last], "last_positions", to=TensorProto.INT32)
        shape = self._node("Shape", ["attention_mask"], "mask_shape")
        total = self._node("Gather", [shape, name], "total_length", axis=0)
        self._node("Cast", [total], "total_lengths", to=TensorProto.INT32)

    def _angles(self) -> None:
        config = self._config
        if config.positions.axes:
            self._angles_of_run(config.positions, config.turned, config.context)
            return
        if config.hybrid is not None and not config.hybrid.has_positions:
            return
        cos, sin = config.positions.tables(config.turned, config.context)
        self._constant("cos_cache", cos)
        self._constant("sin_cache", sin)

    def _layer(self, i: int, x: str, normal: str) -> tuple[str, str]:
        """Return the sum behind layer i, and its norm for the next."""
        config, mine, theirs = self._config, f"layer.{i}", f"model.layers.{i}"
        if config.hybrid is None or config.attends(i):
            seen = self._attention(i, normal)
            if config.hybrid is not None and config.hybrid.gates_attention:
                gates, width = [f"{theirs}.self_attn.gate_proj"], [config.heads * config.head]
                opened = self._product(normal, gates, width, config.hidden, f"{mine}.seen_gate")
                share = self._node("Sigmoid", [opened], f"{mine}.seen_share")
                seen = self._node("Mul", [seen, share], f"{mine}.seen_part")
            back = self._product(
                seen, [f"{theirs}.self_attn.o_proj"], [config.hidden], config.heads * config.head, f"{mine}.o"
            )
        else:
            back = self._beside_attention(normal, i, config.hybrid, config.hidden)
        back = self._times(back, config.factors.residual, f"{mine}.back_scaled")
        x, normal = self._added(x, back, f"{theirs}.post_attention_layernorm", config.epsilon, f"{mine}.middle")
        if config.mixture is not None and config.mixture.is_in(i):
            down = self._experts(normal, i, config.mixture, config.hidden)
        else:
            down = self._gated(normal, f"{theirs}.mlp", (config.hidden, config.inner), mine)
        down = self._times(down, config.factors.residual, f"{mine}.down_scaled")
        if i < self._deep:
            x = self._node("Add", [x, f"deep_row.{i}"], f"{WITH_IMAGES}.{i}")
        after = f"model.layers.{i + 1}.input_layernorm" if i + 1 < config.layers else "model.norm"
        return self._added(x, down, after, config.epsilon, f"{mine}.end", is_last=i + 1 == config.layers)

    def _attention(self, i: int, normal: str) -> str:
        config, mine, theirs = self._config, f"layer.{i}", f"model.layers.{i}.self_attn"
        sides = [config.heads * config.head, config.kv_heads * config.head, config.kv_heads * config.head]
        names = [f"{theirs}.{part}_proj" for part in "qkv"]
        is_normed, turns = f"{theirs}.q_norm.weight" in self._weights, bool(config.positions.axes)
        is_turned = not turns and (config.hybrid is None or config.hybrid.has_positions)
        if is_normed or turns or not self._are_alike(names, sides, config.hidden):
            q, k, v = (
                self._product(normal, [name], [side], config.hidden, f"{mine}.{part}")
                for name, side, part in zip(names, sides, "qkv", strict=True)
            )
            if is_normed:
                norm = self._whole_norm if config.norms_all_heads else self._head_norm
                q = norm(q, f"{theirs}.q_norm", config.heads)
                k = norm(k, f"{theirs}.k_norm", config.kv_heads)
            if turns:
                q, k = (self._turned(x, count) for x, count in ((q, config.heads), (k, config.kv_heads)))
            parts = [q, k, v]
        else:
            parts = [self._product(normal, names, sides, config.hidden, f"{mine}.qkv"), "", ""]
        past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        angles = ["cos_cache", "sin_cache"] if is_turned else []
        inputs = [*parts, *past, "last_positions", "total_lengths", *angles]
        outputs = [f"{mine}.seen", *(f"present.{i}.{part}" for part in ("key", "value"))]
        self._outputs(
            "GroupQueryAttention", inputs, outputs, MICROSOFT, num_heads=config.heads, kv_num_heads=config.kv_heads,
            scale=config.factors.scale(config.head), do_rotary=int(is_turned), rotary_interleaved=0,
            local_window_size=config.window or -1,
        )  # fmt: skip
        return outputs[0]

    def _times(self, x: str, factor: float, mine: str) -> str:
        """Return x times a number."""
        return (
            x
            if factor == 1
            else self._node("Mul", [x, self._constant(f"{mine}.by", np.array(factor, np.float32))], mine)
        )

    def _head_norm(self, x: str, theirs: str, heads: int) -> str:
        """Return each head of (batch, sequence, heads * head) divided by its own root mean square."""
        config = self._config
        apart = self._constant(f"{x}.apart", np.array([0, 0, heads, config.head], np.int64))
        together = self._constant(f"{x}.together", np.array([0, 0, heads * config.head], np.int64))
        split = self._node("Reshape", [x, apart], f"{x}.heads")
        scale = self._read_as(f"{theirs}.weight", (config.head,))
        return self._node("Reshape", [self._normal(split, scale, f"{x}.normal"), together], f"{x}.joined")

    def _whole_norm(self, x: str, theirs: str, heads: int) -> str:
        """Return (batch, sequence, heads * head) divided by its root mean square, all heads together."""
        return self._normal(x, self._read_as(f"{theirs}.weight", (heads * self._config.head,)), f"{x}.normal")

    def _are_alike(self, theirs: Sequence[str], sides: Sequence[int], inputs: int) -> bool:
        """Whether matrices can lie side by side: all in floats, or in blocks of one kind."""
        parts = self._stored(theirs, sides, inputs)
        return all(part is None for part in parts) or side_by_side(parts) is not None
