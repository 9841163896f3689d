"""Write Mamba and Mamba-2: decoders without attention, whose layers are selective scans behind short convolutions.

A scan is the gated rule of linear attention: the state fades by what a token says, takes its outer product of input and
key (B), and is read by the query (C). Mamba-2 has heads that fade as a whole; in Mamba each channel is a head of one
number, and each number of its state fades for itself. So `LinearAttention` of com.microsoft computes both.

Source: Gu and Dao, Mamba, 2023, arXiv:2312.00752; Dao and Gu, Transformers are SSMs, ICML 2024, arXiv:2405.21060.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.nodes import MICROSOFT, NodeWriter, float_port, int_port
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.model import Model
from edgeopt.system.toml import Within

KINDS = ("mamba", "mamba2")
"""`model_type` of what is written here."""
_OPSET, _IR = 21, 10
_CONTEXT = 32_768
"""Tokens of a text where nothing says it: the state has no limit, and the training mostly one far below."""
_REMEDY = "copy the folder again"
_Side = Annotated[int, Within(1, 1 << 20)]
Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MambaConfiguration:
    """The configuration of a decoder without attention, from `config.json`."""

    kind: str
    vocabulary: _Side
    hidden: _Side
    layers: _Side
    inner: _Side
    """Channels of a scan."""
    state: _Side
    """Numbers that a channel remembers."""
    kernel: _Side
    heads: _Side
    """Heads that fade as a whole; of Mamba each channel is one."""
    groups: _Side
    """Groups of heads that share keys and queries."""
    rank: int
    """Numbers from which Mamba makes the steps of all channels; 0: each head has its own."""
    epsilon: float
    is_tied: bool
    context: _Side
    end: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.inner // self.heads

    @property
    def convolved(self) -> int:
        """Channels that go through the convolution."""
        return self.inner + (0 if self.rank else 2 * self.groups * self.state)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what a layer remembers of one text, by name."""
        return {
            "conv_state": (self.kernel - 1, self.convolved),
            "recurrent_state": (self.heads, self.state, self.head),
        }


def is_mamba(folder: Path) -> bool:
    """Return whether a folder of Hugging Face holds a decoder without attention."""
    try:
        return json.loads((folder / "config.json").read_text("utf-8")).get("model_type") in KINDS
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


def read_mamba(folder: Path) -> MambaConfiguration:
    """Read `config.json`.

    Raises:
        InvalidFileError: If a size is missing, or sizes do not fit each other.
        UnsupportedError: If it asks for what the graph does not compute.
    """
    file = folder / "config.json"
    values = json.loads(file.read_text("utf-8"))
    try:
        _require_plain(values, file)
        config = _read(values)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise InvalidFileError(f"{file} lacks a size, or holds no number there: {error}", remedy=_REMEDY) from error
    sizes = (config.vocabulary, config.hidden, config.layers, config.state, config.heads, config.groups, config.context)
    if min(sizes) < 1 or config.kernel < 2 or config.inner % config.heads or config.heads % config.groups:
        raise InvalidFileError(
            f"{file}: {config.heads} heads in {config.groups} groups of {config.inner} channels do not fit each other",
            remedy=_REMEDY,
        )
    return config


def _require_plain(values: Mapping[str, Any], file: Path) -> None:
    odd = {
        "hidden_act": values.get("hidden_act", "silu") not in ("silu", "swish"),
        "time_step_limit": limits_steps(values),
        "quantization_config": bool(values.get("quantization_config")),
    }
    if wrong := [name for name, is_odd in odd.items() if is_odd]:
        raise UnsupportedError(
            f"{file}: {wrong[0]} = {str(values.get(wrong[0]))[:60]} is not written here",
            remedy="export it with onnxruntime-genai's builder, and name the folder that it writes",
        )


def limits_steps(values: Mapping[str, Any]) -> bool:
    """Return whether a configuration keeps steps within limits."""
    limit = values.get("time_step_limit") or (0.0, math.inf)
    return [_number(side) for side in limit] != [0.0, math.inf]


def _number(value: Any) -> float:
    """Return a number; transformers 5 writes those that JSON has not as `{"__float__": "Infinity"}`."""
    return float(value.get("__float__", math.nan) if isinstance(value, dict) else value)


def _read(values: Mapping[str, Any]) -> MambaConfiguration:
    kind, hidden = str(values["model_type"]), int(values["hidden_size"])
    inner = int(float(values.get("expand") or 2) * hidden)
    is_first = kind == "mamba"
    rank = values.get("time_step_rank", "auto")
    heads = inner if is_first else int(values["num_heads"])
    end, begin = values.get("eos_token_id"), values.get("bos_token_id")
    return MambaConfiguration(
        kind=kind,
        vocabulary=int(values["vocab_size"]),
        hidden=hidden,
        layers=int(values["num_hidden_layers"]),
        inner=inner if is_first else heads * int(values["head_dim"]),
        state=int(values["state_size"]),
        kernel=int(values.get("conv_kernel") or 4),
        heads=heads,
        groups=1 if is_first else int(values.get("n_groups") or 1),
        rank=(-(-hidden // 16) if rank == "auto" else int(rank)) if is_first else 0,
        epsilon=float(values.get("layer_norm_epsilon", 1e-5)),
        is_tied=bool(values.get("tie_word_embeddings", is_first)),
        context=int(values.get("max_position_embeddings") or _CONTEXT),
        end=tuple(int(value) for value in (end if isinstance(end, list) else [end] if end is not None else [])),
        begin=() if begin is None else (int(begin),),
    )


def write_mamba(config: MambaConfiguration, weights: NamedTensors, name: str) -> Model:
    """Return the decoder as a graph with states.

    Inputs: `input_ids` (batch, sequence) int64, and for each layer `past_key_values.N.conv_state` (batch, kernel - 1,
    channels) and `.recurrent_state` (batch, heads, head, state) float32. Outputs: `logits` (batch, sequence,
    vocabulary) float32, and `present.N.conv_state` and `.recurrent_state`.

    Raises:
        InvalidFileError: If weights are missing or of another shape.
    """
    return _Writer(config, weights).written(name)


class ScanWriter(NodeWriter):
    """Writes layers of scans."""

    _scans: MambaConfiguration
    _mine, _mixer = "layer.{}", "backbone.layers.{}.mixer"
    """Prefixes of a layer's nodes and of its weights."""

    def _scanned_layer(self, i: int, normal: str) -> str:
        """Return what the scan of a layer makes of its norm."""
        config, mine, theirs = self._scans, self._mine.format(i), self._mixer.format(i)
        sides = [config.inner, config.inner] if config.rank else [config.inner, config.convolved, config.heads]
        names = [f"{mine}.{part}" for part in (("fed", "gate") if config.rank else ("gate", "fed", "steps"))]
        whole = self._product(normal, [f"{theirs}.in_proj"], [sum(sides)], config.hidden, f"{mine}.in")
        self._split(whole, sides, names)
        conv = f"{theirs}.conv1d"
        taps = [self._read_as(f"{conv}.weight", (config.convolved, 1, config.kernel)), ""]
        if f"{conv}.bias" in self._weights:
            taps[1] = self._read_as(f"{conv}.bias", (config.convolved,))
        seen = [f"{mine}.convolved", f"present.{i}.conv_state"]
        inputs = [f"{mine}.fed", *taps, f"past_key_values.{i}.conv_state"]
        self._outputs("CausalConvWithState", inputs, seen, MICROSOFT, channels_last=1, activation="silu")
        scanned = self._first_scan(i, seen[0]) if config.rank else self._second_scan(i, seen[0])
        return self._product(scanned, [f"{theirs}.out_proj"], [config.hidden], config.inner, f"{mine}.out")

    def _first_scan(self, i: int, x: str) -> str:
        """Return what the scan of Mamba makes of x, times its gate."""
        config, mine, theirs = self._scans, self._mine.format(i), self._mixer.format(i)
        sides = [config.rank, config.state, config.state]
        both = self._product(x, [f"{theirs}.x_proj"], [sum(sides)], config.inner, f"{mine}.told")
        low, key, query = self._split(both, sides, [f"{mine}.low", f"{mine}.key", f"{mine}.query"])
        raw = self._product(low, [f"{theirs}.dt_proj"], [config.inner], config.rank, f"{mine}.steps")
        step = self._node("Softplus", [raw], f"{mine}.step")
        fades = self._faded(i, (config.inner, config.state))
        steps = self._shaped(step, [0, 0, config.inner, 1], f"{mine}.step_of_channels")
        each = self._node("Mul", [steps, fades], f"{mine}.decay_of_channels")
        decay = self._shaped(each, [0, 0, config.inner * config.state], f"{mine}.decay")
        value = self._node("Mul", [x, step], f"{mine}.value")
        seen = self._scan(i, query, key, value, decay)
        skip = self._node("Mul", [x, self._read_as(f"{theirs}.D", (config.inner,))], f"{mine}.skip")
        return self._gate(i, self._node("Add", [seen, skip], f"{mine}.scanned"))

    def _second_scan(self, i: int, x: str) -> str:
        """Return what the scan of Mamba-2 makes of x, times its gate and normed group by group."""
        config, mine, theirs = self._scans, self._mine.format(i), self._mixer.format(i)
        keys = config.groups * config.state
        fed, key, query = self._split(x, [config.inner, keys, keys], [f"{mine}.read", f"{mine}.key", f"{mine}.query"])
        bias = self._read_as(f"{theirs}.dt_bias", (config.heads,))
        step = self._node("Softplus", [self._node("Add", [f"{mine}.steps", bias], f"{mine}.biased")], f"{mine}.step")
        decay = self._node("Mul", [step, self._faded(i, (config.heads,))], f"{mine}.decay")
        heads = self._shaped(fed, [0, 0, config.heads, config.head], f"{mine}.heads")
        steps = self._shaped(step, [0, 0, config.heads, 1], f"{mine}.step_of_heads")
        stepped = self._node("Mul", [heads, steps], f"{mine}.stepped")
        seen = self._scan(i, query, key, self._shaped(stepped, [0, 0, config.inner], f"{mine}.value"), decay)
        through = np.repeat(self._weights.read(f"{theirs}.D", (config.heads,)), config.head)
        skip = self._node("Mul", [fed, self._constant(f"{theirs}.D", through)], f"{mine}.skip")
        gated = self._gate(i, self._node("Add", [seen, skip], f"{mine}.scanned"))
        group = (config.groups, config.inner // config.groups)
        scale = self._weights.read(f"{theirs}.norm.weight", (config.inner,)).reshape(group)
        apart = self._shaped(gated, [0, 0, *group], f"{mine}.groups")
        normal = self._normal(apart, self._constant(f"{theirs}.norm.weight", scale), f"{mine}.normed")
        return self._shaped(normal, [0, 0, config.inner], f"{mine}.joined")

    def _scan(self, i: int, query: str, key: str, value: str, decay: str) -> str:
        """Return (batch, sequence, channels) that the state gives for each token."""
        config, mine = self._scans, self._mine.format(i)
        keys = self._repeated(key, config.groups, config.state, config.heads // config.groups, f"{mine}.every_key")
        inputs = [query, keys, value, f"past_key_values.{i}.recurrent_state", decay]
        outputs = [f"{mine}.seen", f"present.{i}.recurrent_state"]
        self._outputs(
            "LinearAttention", inputs, outputs, MICROSOFT, update_rule="gated", scale=1.0, q_num_heads=config.groups,
            kv_num_heads=config.heads,
        )  # fmt: skip
        return outputs[0]

    def _gate(self, i: int, x: str) -> str:
        mine = self._mine.format(i)
        share = self._node("Sigmoid", [f"{mine}.gate"], f"{mine}.gate_share")
        return self._node("Mul", [x, self._node("Mul", [f"{mine}.gate", share], f"{mine}.silu")], f"{mine}.gated")

    def _faded(self, i: int, shape: tuple[int, ...]) -> str:
        """Return by how much a step of 1 lets states fade, as a logarithm."""
        name = f"{self._mixer.format(i)}.A_log"
        return self._constant(name, -np.exp(self._weights.read(name, shape)))

    def _split(self, x: str, sides: Sequence[int], names: list[str]) -> list[str]:
        lengths = self._constant(f"{x}.sides", np.array(sides, np.int64))
        self._outputs("Split", [x, lengths], names, "", axis=-1)
        return names


class _Writer(ScanWriter):
    """Nodes and weights of a graph in the making."""

    def __init__(self, config: MambaConfiguration, weights: NamedTensors) -> None:
        super().__init__(weights, config.hidden)
        self._config = self._scans = config

    def written(self, name: str) -> Model:
        config = self._config
        embedding = self._weights.read("backbone.embeddings.weight", (config.vocabulary, config.hidden))
        x = self._node("Gather", [self._constant("embedding", embedding), "input_ids"], "embedded")
        normal = self._first_norm(x, "backbone.layers.0.norm", config.epsilon)
        for i in range(config.layers):
            more = self._scanned_layer(i, normal)
            is_last = i + 1 == config.layers
            after = "backbone.norm_f" if is_last else f"backbone.layers.{i + 1}.norm"
            x, normal = self._added(x, more, after, config.epsilon, f"layer.{i}.end", is_last=is_last)
        is_tied = config.is_tied or "lm_head.weight" not in self._weights
        head = embedding if is_tied else self._weights.read("lm_head.weight", embedding.shape)
        self._node("MatMul", [normal, self._constant("lm_head", np.ascontiguousarray(head.T))], "logits")
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [int_port("input_ids", ["batch", "sequence"]), *self._memory("past_key_values")],
            [float_port("logits", ["batch", "sequence", config.vocabulary]), *self._memory("present")],
            self._constants,
        )
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=_IR, producer_name="edgeopt")
        return Model(made, name)

    def _memory(self, prefix: str) -> list[onnx.ValueInfoProto]:
        shapes = self._config.state_shapes.items()
        layers = range(self._config.layers)
        return [float_port(f"{prefix}.{i}.{state}", ["batch", *shape]) for i in layers for state, shape in shapes]
