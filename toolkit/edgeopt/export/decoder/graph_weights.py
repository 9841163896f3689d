"""The weights of a decoder in float that `export` wrote, read back from its graph under Hugging Face's names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.llama import LlamaConfiguration, require_sizes
from edgeopt.export.decoder.positions import Positions
from edgeopt.graph.model import load_model
from edgeopt.recipes.texts.generation import GenerationTable

_REMEDY = "name the folder of Hugging Face that it was made of"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)_proj\.(weight|bias)")
_SIDES = ("q", "k", "v")
_TOLERANCE = 1e-4
"""Between the positions in the graph and those of the base that was read from them."""


@dataclass(frozen=True, slots=True)
class GraphWeights:
    """The tensors of a graph."""

    file: Path
    config: LlamaConfiguration
    _stored: Mapping[str, TensorProto]

    def __contains__(self, name: str) -> bool:
        return self._place_of(name)[0] in self._stored

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32.

        Raises:
            InvalidFileError: If it is not there, or of another shape.
        """
        place, side = self._place_of(name)
        stored = self._stored.get(place)
        if stored is None:
            raise InvalidFileError(f"{self.file} lacks the weights {name}", remedy=_REMEDY)
        array = np.asarray(numpy_helper.to_array(stored, str(self.file.parent)), np.float32)
        is_turned = place.endswith(".weight") and not place.startswith("model.")
        array = array.T if is_turned or place == "lm_head" else array
        if side:
            start, end = self._rows_of(side)
            array = array[start:end]
        if array.shape != shape:
            text = f"{'x'.join(map(str, array.shape))}, not {'x'.join(map(str, shape))}"
            raise InvalidFileError(f"{self.file}: {name} is {text}", remedy=_REMEDY)
        return np.ascontiguousarray(array)

    def _place_of(self, name: str) -> tuple[str, str]:
        """Return the constant that holds a tensor, and which of queries, keys and values it is there, if one."""
        whole = {"model.embed_tokens.weight": "embedding", "lm_head.weight": "lm_head"}
        part = _LAYER.fullmatch(name)
        if part is None:
            return whole.get(name, name), ""
        layer, block, matrix, kind = part.groups()
        alone = f"layer.{layer}.{matrix}.{kind}"
        if block == "self_attn" and matrix in _SIDES and alone not in self._stored:
            return f"layer.{layer}.qkv.{kind}", matrix
        return alone, ""

    def _rows_of(self, side: str) -> tuple[int, int]:
        counts = (self.config.heads, self.config.kv_heads, self.config.kv_heads)
        ends = np.cumsum([0, *counts]) * self.config.head
        place = _SIDES.index(side)
        return int(ends[place]), int(ends[place + 1])


def read_graph_weights(file: Path, table: GenerationTable) -> GraphWeights:
    """Return the weights of a decoder that `export` wrote.

    Args:
        file: Its ONNX file.
        table: Of its recipe.

    Raises:
        UnsupportedError: If it was written by another tool, or its weights are no floats any more.
    """
    proto = load_model(file).proto
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    attention = next((node for node in proto.graph.node if node.op_type == "GroupQueryAttention"), None)
    floats = {name for name, tensor in stored.items() if tensor.data_type == TensorProto.FLOAT}
    odd = {"MoE": "a mixture of experts", "QMoE": "a mixture of experts", "CausalConvWithState": "layers with states"}
    if what := next((odd[node.op_type] for node in proto.graph.node if node.op_type in odd), ""):
        raise UnsupportedError(f"{file} has {what}, whose weights are not read back from the graph", remedy=_REMEDY)
    sizes = ("embedding", "layer.0.gate.weight", "epsilon", "cos_cache")
    if attention is None or not floats.issuperset(sizes) or proto.producer_name != "edgeopt":
        problem = f"{file} does not hold its weights in float as edgeopt export writes them"
        raise UnsupportedError(problem, remedy=_REMEDY)
    values = _attributes(attention)
    scale = float(values.get("scale", 0.0)) * math.sqrt(2 * stored["cos_cache"].dims[1])  # over what heads usually have
    if any(name.endswith("scaled.by") for name in stored) or not math.isclose(scale or 1, 1, rel_tol=1e-3):
        raise UnsupportedError(f"{file} multiplies its sums or scores by factors of its own", remedy=_REMEDY)
    vocabulary, hidden = stored["embedding"].dims
    layers = sum(node.op_type == "GroupQueryAttention" for node in proto.graph.node)
    cos = numpy_helper.to_array(stored["cos_cache"], str(file.parent))
    is_normed = "model.layers.0.self_attn.q_norm.weight" in stored
    config = LlamaConfiguration(
        kind="qwen3" if is_normed else "qwen2" if "layer.0.qkv.bias" in stored else "llama",
        vocabulary=int(vocabulary),
        hidden=int(hidden),
        inner=int(stored["layer.0.gate.weight"].dims[1]),
        layers=layers,
        heads=int(values["num_heads"]),
        kv_heads=int(values["kv_num_heads"]),
        head=2 * int(cos.shape[1]),
        epsilon=float(numpy_helper.to_array(stored["epsilon"], str(file.parent))),
        positions=_positions(cos, file),
        context=table.context or len(cos),
        is_tied="lm_head" not in stored or _is_tied(stored, file),
        window=max(int(values.get("local_window_size", -1)), 0),
        end=table.end,
        begin=table.begin,
    )
    require_sizes(config, file)
    return GraphWeights(file, config, stored)


def _attributes(node: NodeProto) -> dict[str, int | float]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _is_tied(stored: Mapping[str, TensorProto], file: Path) -> bool:
    """Return whether the last matrix is the table of tokens: the graph holds both."""
    table, head = (numpy_helper.to_array(stored[name], str(file.parent)) for name in ("embedding", "lm_head"))
    return bool(np.array_equal(table, head.T))


def _positions(cos: NDArray[np.float32], file: Path) -> Positions:
    """Return positions that turn as the graph's table says.

    Raises:
        UnsupportedError: If no base alone gives it: positions are scaled.
    """
    count = cos.shape[1]
    # the slowest pair, far from the start, tells the base best; the cosine of a small angle tells little
    angle = float(np.arccos(np.clip(cos[_far(cos), -1], -1, 1))) / _far(cos)
    theta = float(f"{angle ** (-count / (count - 1)):.4g}") if angle > 0 and count > 1 else 0.0
    positions = Positions(theta)
    if theta > 0 and np.abs(positions.tables(2 * count, len(cos))[0] - cos).max() < _TOLERANCE:
        return positions
    raise UnsupportedError(f"{file} scales its positions, which cannot be read back from the graph", remedy=_REMEDY)


def _far(cos: NDArray[np.float32]) -> int:
    """Return the last position before the slowest pair has turned by a right angle."""
    beyond = np.flatnonzero(cos[:, -1] < 0)
    return max(int(beyond[0]) - 1 if beyond.size else len(cos) - 1, 1)
