"""The encoder of pictures of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: its configuration, and its graph, from its weights.

One graph takes any number of patches. All that hangs on the grid of a picture is computed outside and fed in: lines and
columns, and which patches lie in which window (`recipes.inputs.seen.patches`). A picture is one frame, which the
checkpoint's kernels see twice, as videos have two; here the two halves of a kernel are added up.

Source: Wang et al., 2024, arXiv:2409.12191; Bai et al., 2025, arXiv:2502.13923; transformers, modeling_qwen2_vl,
modeling_qwen2_5_vl and modeling_qwen3_vl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.nodes import MICROSOFT, NodeWriter, float_port, int_port
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.seen.patches import IN_WINDOWS, PIXELS, PLACES, SHARES, TAPS, WINDOWS

IMAGE_ROWS_OUT = "image_rows"
EPSILON = 1e-6
"""Epsilon of all norms of these encoders."""
_OPSET, _IR = 21, 10
_ACTIVATIONS = {"qwen2_vl": "quick_gelu", "qwen2_5_vl": "silu", "qwen3_vl": "gelu_pytorch_tanh"}
_REMEDY = "copy the folder again"


@dataclass(frozen=True, slots=True)
class VisionConfiguration:
    """The configuration of an encoder, from `vision_config`."""

    kind: str
    hidden: int
    inner: int
    layers: int
    heads: int
    outputs: int
    """Numbers of a row: those of a token of the decoder."""
    patch: int
    merge: int
    frames: int
    """Frames that a kernel sees at once."""
    window: int = 0
    """Patches of a side of the windows in which layers look; 0: there are none."""
    whole_layers: tuple[int, ...] = ()
    """Layers that look at all patches although there are windows."""
    positions: int = 0
    """Lines and columns of the table of learned positions; 0: there is none."""
    deep_layers: tuple[int, ...] = ()
    """Layers whose output goes into the first layers of the decoder too, one each (DeepStack)."""
    theta: float = 10000.0

    @property
    def gated(self) -> bool:
        """Whether its layers are gated products with root mean square norms, as those of a decoder."""
        return self.kind == "qwen2_5_vl"

    @property
    def pixels(self) -> int:
        """Numbers of a patch."""
        return 3 * self.patch * self.patch

    @property
    def row(self) -> int:
        """Numbers of a row with those that go into deeper layers."""
        return self.outputs * (1 + len(self.deep_layers))

    def sees_all(self, layer: int) -> bool:
        """Return whether a layer looks at all patches."""
        return not self.window or layer in self.whole_layers

    @classmethod
    def read(cls, values: Mapping[str, Any], kind: str, hidden: int, file: Path) -> VisionConfiguration:
        """Return what `vision_config` tells.

        Args:
            values: Its entries.
            kind: `model_type` of the whole.
            hidden: Numbers of a token of the decoder.
            file: Named in messages.

        Raises:
            InvalidFileError: If a size is missing or wrong.
            UnsupportedError: If it asks for what the graph does not compute.
        """
        try:
            is_second = kind == "qwen2_vl"
            width = int(values["embed_dim" if is_second else "hidden_size"])
            inner = int(width * float(values.get("mlp_ratio", 4))) if is_second else int(values["intermediate_size"])
            patch, merge = int(values.get("patch_size", 14)), int(values.get("spatial_merge_size", 2))
            window = int(values.get("window_size", 112)) // merge // patch * merge if kind == "qwen2_5_vl" else 0
            whole = values.get("fullatt_block_indexes", (7, 15, 23, 31)) if window else ()
            table = int(values["num_position_embeddings"]) if kind == "qwen3_vl" else 0
            deep = values.get("deepstack_visual_indexes", (8, 16, 24)) if kind == "qwen3_vl" else ()
            made = cls(
                kind=kind,
                hidden=width,
                inner=inner,
                layers=int(values["depth"]),
                heads=int(values["num_heads"]),
                outputs=hidden if is_second else int(values.get("out_hidden_size", hidden)),
                patch=patch,
                merge=merge,
                frames=int(values.get("temporal_patch_size", 2)),
                window=window,
                whole_layers=tuple(int(layer) for layer in whole),
                positions=int(table**0.5),
                deep_layers=tuple(int(layer) for layer in deep),
                theta=float((values.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
            )
            channels = int(values.get("in_channels", values.get("in_chans", 3)))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            text = f"{file}: vision_config lacks a size, or holds no number there: {error}"
            raise InvalidFileError(text, remedy=_REMEDY) from error
        made._require_sound(values, channels, file)
        return made

    def _require_sound(self, values: Mapping[str, Any], channels: int, file: Path) -> None:
        sizes = (self.hidden, self.inner, self.layers, self.heads, self.outputs, self.patch, self.merge, self.frames)
        if min(sizes) < 1 or self.hidden % self.heads or self.hidden // self.heads % 4 or channels != 3:
            raise InvalidFileError(f"{file}: vision_config holds a size that fits no other", remedy=_REMEDY)
        wanted = _ACTIVATIONS[self.kind]
        if values.get("hidden_act", wanted) != wanted:
            raise UnsupportedError(
                f"{file}: vision_config: hidden_act = {str(values['hidden_act'])[:40]} is not written here",
                remedy=f"take a model with {wanted}",
            )
        if self.kind == "qwen2_5_vl" and not self.window:
            raise InvalidFileError(f"{file}: vision_config: a window has less than one row", remedy=_REMEDY)


def rotary_turns(config: VisionConfiguration) -> NDArray[np.float32]:
    """Return (head / 4,) radians by which each pair is turned from one line, or column, to the next."""
    half = config.hidden // config.heads // 2
    turns: NDArray[np.float64] = config.theta ** (-np.arange(0, half, 2, dtype=np.float64) / half)
    return turns.astype(np.float32)


def write_vision(config: VisionConfiguration, weights: NamedTensors, name: str) -> Model:
    """Return the encoder as a graph for one picture of any grid.

    Inputs as `recipes.inputs.seen.patches` makes them; output `image_rows`, (rows, numbers) float32.

    Args:
        config: Of the encoder.
        weights: Of it, whose names have nothing before them: `patch_embed.proj.weight`.
        name: Of the model.

    Raises:
        InvalidFileError: If weights are missing or of another shape.
    """
    return _VisionWriter(config, weights).written(name)


class _VisionWriter(NodeWriter):
    def __init__(self, config: VisionConfiguration, weights: NamedTensors) -> None:
        super().__init__(weights, config.hidden)
        self._config = config

    def written(self, name: str) -> Model:
        config = self._config
        for constant, array in (
            ("epsilon", np.array(EPSILON, np.float32)),
            ("two", np.array(2, np.float32)),
            ("steepness", np.array(1.702, np.float32)),
            ("last_axis", np.array([-1], np.int64)),
            ("first_axis", np.array([0], np.int64)),
        ):
            self._constant(constant, array)
        self._angles()
        ports = [float_port(PIXELS, ["patches", config.pixels]), int_port(PLACES, ["patches", 2])]
        x = self._embedded()
        if config.positions:
            x = self._with_positions(x)
            ports += [int_port(TAPS, ["patches", 4]), float_port(SHARES, ["patches", 4])]
        if config.window:
            self._window_ports()
            ports += [int_port(WINDOWS, ["windows", config.window**2]), int_port(IN_WINDOWS, ["patches"])]
        deep = dict[int, str]()
        for i in range(config.layers):
            x = self._layer(i, x)
            if i in config.deep_layers:
                number = config.deep_layers.index(i)
                deep[number] = self._merged(x, f"deepstack_merger_list.{number}", f"deep.{number}", norms_rows=True)
        rows = [self._merged(x, "merger", "merger"), *(deep[number] for number in sorted(deep))]
        if len(rows) > 1:
            self._node("Concat", rows, IMAGE_ROWS_OUT, axis=-1)
        else:
            self._node("Identity", rows, IMAGE_ROWS_OUT)
        graph = helper.make_graph(
            self._nodes, "encoder", ports, [float_port(IMAGE_ROWS_OUT, ["image_rows", config.row])], self._constants
        )
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return Model(helper.make_model(graph, opset_imports=imports, ir_version=_IR, producer_name="edgeopt"), name)

    def _angles(self) -> None:
        """Write cosines and sines of each patch, and its number, by which `RotaryEmbedding` looks them up."""
        config = self._config
        turns = self._constant("turns", rotary_turns(config))
        exact = self._node("Cast", [PLACES], "places_exact", to=TensorProto.FLOAT)
        angles = self._node(
            "Mul", [self._node("Unsqueeze", [exact, "last_axis"], "places_apart"), turns], "angles_apart"
        )
        flat = self._shaped(angles, [0, config.hidden // config.heads // 2], "angles")
        self._node("Cos", [flat], "cos")
        self._node("Sin", [flat], "sin")
        shape = self._node("Shape", [PLACES], "places_shape", start=0, end=1)
        count = self._node("Squeeze", [shape, "first_axis"], "patch_count")
        first, step = self._constant("zero", np.array(0, np.int64)), self._constant("step", np.array(1, np.int64))
        numbers = self._node("Range", [first, count, step], "numbers")
        self._node("Unsqueeze", [numbers, "first_axis"], "patch_numbers")

    def _embedded(self) -> str:
        """Return (1, patches, hidden); both frames that a kernel sees are the picture."""
        config, theirs = self._config, "patch_embed.proj"
        shape = (config.hidden, 3, config.frames, config.patch, config.patch)
        kernel = self._weights.read(f"{theirs}.weight", shape).sum(axis=2).reshape(config.hidden, -1)
        matrix = self._constant("patches.weight", np.ascontiguousarray(kernel.T))
        whole = self._node("Unsqueeze", [PIXELS, "first_axis"], "one_picture")
        x = self._node("MatMul", [whole, matrix], "patches")
        if f"{theirs}.bias" not in self._weights:
            return x
        return self._node("Add", [x, self._read_as(f"{theirs}.bias")], "patches.biased")

    def _with_positions(self, x: str) -> str:
        """Return patches with their learned positions, four of the table in shares."""
        config = self._config
        table = self._read_as("pos_embed.weight", (config.positions**2, config.hidden))
        near = self._node("Gather", [table, TAPS], "positions_near")
        parts = self._node("Mul", [near, self._node("Unsqueeze", [SHARES, "last_axis"], "shares")], "position_parts")
        axis = self._constant("taps_axis", np.array([1], np.int64))
        added = self._node("ReduceSum", [parts, axis], "positions", keepdims=0)
        return self._node("Add", [x, added], "patches.placed")

    def _window_ports(self) -> None:
        """Write which patches stand in windows, and which places of those are none."""
        zero = self._constant("no_patch", np.array(0, np.int64))
        self._node("Max", [WINDOWS, zero], "window_patches")
        is_patch = self._node("GreaterOrEqual", [WINDOWS, zero], "is_patch")
        self._node("Cast", [is_patch], "window_mask", to=TensorProto.INT32)

    def _layer(self, i: int, x: str) -> str:
        config, mine, theirs = self._config, f"layer.{i}", f"blocks.{i}"
        normal = self._norm(x, f"{theirs}.norm1", f"{mine}.first")
        seen = self._attention(i, normal)
        back = self._product(seen, [f"{theirs}.attn.proj"], [config.hidden], config.hidden, f"{mine}.proj")
        x = self._node("Add", [x, back], f"{mine}.middle")
        normal = self._norm(x, f"{theirs}.norm2", f"{mine}.second")
        if config.gated:
            down = self._gated(normal, f"{theirs}.mlp", (config.hidden, config.inner), mine)
        else:
            first, second = ("fc1", "fc2") if config.kind == "qwen2_vl" else ("linear_fc1", "linear_fc2")
            up = self._product(normal, [f"{theirs}.mlp.{first}"], [config.inner], config.hidden, f"{mine}.up")
            bent = self._quick_gelu(up, mine) if config.kind == "qwen2_vl" else self._gelu(up, mine, "tanh")
            down = self._product(bent, [f"{theirs}.mlp.{second}"], [config.hidden], config.inner, f"{mine}.down")
        return self._node("Add", [x, down], f"{mine}.end")

    def _norm(self, x: str, theirs: str, mine: str, numbers: int = 0) -> str:
        shape = (numbers or self._hidden,)
        scale = self._read_as(f"{theirs}.weight", shape)
        if self._config.gated:
            return self._normal(x, scale, mine)
        inputs = [x, scale, self._read_as(f"{theirs}.bias", shape)]
        return self._node("LayerNormalization", inputs, mine, axis=-1, epsilon=EPSILON)

    def _attention(self, i: int, normal: str) -> str:
        config, mine = self._config, f"layer.{i}"
        whole = self._product(normal, [f"blocks.{i}.attn.qkv"], [3 * config.hidden], config.hidden, f"{mine}.qkv")
        parts = [f"{mine}.{part}" for part in "qkv"]
        self._outputs("Split", [whole], parts, "", axis=-1, num_outputs=3)
        q, k = (
            self._node(
                "RotaryEmbedding", [part, "patch_numbers", "cos", "sin"], f"{part}.turned", MICROSOFT,
                interleaved=0, num_heads=config.heads,
            )
            for part in parts[:2]
        )  # fmt: skip
        if config.sees_all(i):
            return self._outlook([q, k, parts[2]], f"{mine}.seen")
        side = config.window**2
        windows = [
            self._shaped(
                self._node("Gather", [part, "window_patches"], f"{part}.windows", axis=1),
                [-1, side, config.hidden],
                f"{part}.in_windows",
            )
            for part in (q, k, parts[2])
        ]
        seen = self._outlook([*windows, "", "window_mask"], f"{mine}.seen_in_windows")
        flat = self._shaped(seen, [1, -1, config.hidden], f"{mine}.seen_flat")
        return self._node("Gather", [flat, IN_WINDOWS], f"{mine}.seen", axis=1)

    def _outlook(self, inputs: list[str], mine: str) -> str:
        # which holds no scores of all patches with all others, so that memory grows with patches, not with their square
        return self._node("MultiHeadAttention", inputs, mine, MICROSOFT, num_heads=self._config.heads)

    def _quick_gelu(self, x: str, mine: str) -> str:
        steep = self._node("Mul", [x, "steepness"], f"{mine}.steep")
        return self._node("Mul", [x, self._node("Sigmoid", [steep], f"{mine}.share")], f"{mine}.bent")

    def _gelu(self, x: str, mine: str, approximate: str) -> str:
        return self._node("Gelu", [x], f"{mine}.bent", approximate=approximate)

    def _merged(self, x: str, theirs: str, mine: str, *, norms_rows: bool = False) -> str:
        """Return (rows, outputs): each square of patches as one row; `norms_rows`: the norm is that of a whole row."""
        config, numbers = self._config, self._config.hidden * self._config.merge**2
        norm, first, second = ("norm", "linear_fc1", "linear_fc2")
        if config.kind != "qwen3_vl":
            norm, first, second = ("ln_q", "mlp.0", "mlp.2")
        if norms_rows:
            squares = self._shaped(x, [-1, numbers], f"{mine}.squares")
            squares = self._norm(squares, f"{theirs}.{norm}", f"{mine}.normal", numbers)
        else:
            squares = self._shaped(
                self._norm(x, f"{theirs}.{norm}", f"{mine}.normal"), [-1, numbers], f"{mine}.squares"
            )
        up = self._product(squares, [f"{theirs}.{first}"], [numbers], numbers, f"{mine}.up")
        bent = self._gelu(up, mine, "none")
        return self._product(bent, [f"{theirs}.{second}"], [config.outputs], numbers, f"{mine}.row")
