"""Move what is loud in a channel of activations into the weights that read it: the same numbers, a finer grid.

    norm(x) * g -> X @ W          becomes   norm(x) * (g / s) -> (X / s) @ (s * W)
    (gate * (x @ U)) @ W          becomes   (gate * (x @ (U / s))) @ (s * W)

with s = peak(X)^a / peak(W)^(1 - a) for each channel, a = 0.5. Nothing is computed that was not before.

Source: "SmoothQuant" (Xiao et al. 2023), equation 4; the second line is that of AWQ (Lin et al. 2024, appendix A).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.loud_tokens.product_inputs import ProductInput
from edgeopt.steps.quantize.formats.matmul_integer import plain_products

_SHARE = 0.5
"""Share of the loudness that goes into weights. Of SmolLM2-135M in `w8a8+mixed` 0.5 keeps most: perplexity +1.1 %, with
0.6 +2.2 %."""
_LEAST, _LEAST_SHARE = 1e-5, 0.01
"""A channel that shows next to nothing is taken for so loud, and for so loud in shares of the middle one, so that its
scale stays finite and another text may use it."""
_SCALES: Mapping[str, tuple[int, ...]] = {
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
    "LayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (2,),
    "SkipLayerNormalization": (2, 3),
}
"""Inputs of norms that are multiplied with, or added to, each channel of what they make."""


def smooth_inputs(model: Model, inputs: Mapping[str, ProductInput]) -> Outcome:
    """Return the model with the inputs of its products smoothed, where a norm or a gated product makes them.

    Inputs that something else reads too, or that attention makes, stay as they are.

    Args:
        model: A float decoder.
        inputs: What its products read, by the names of tensors.
    """
    graph = Graph.from_model(model)
    readers = dict[Value, list[Node]]()
    for node in plain_products(graph):
        if node.inputs[0] is not None:
            readers.setdefault(node.inputs[0], []).append(node)
    tables = [rows for node in graph.nodes("Gather") if (rows := graph.constant(node.inputs[0])) is not None]
    count = 0
    for source, nodes in readers.items():
        known = inputs.get(str(source.name))
        if (
            known is None
            or not np.isfinite(known.peaks).all()
            or graph.is_output(source)
            or set(graph.consumers(source)) != set(nodes)
        ):
            continue
        if any(len(graph.consumers(weight)) > 1 for node in nodes if (weight := node.inputs[1])):
            continue  # a table that is the head as well: look-ups read it too
        if any(_is_table(_rows(graph, node).T, tables) for node in nodes):
            continue  # the same as two constants: in blocks they are one
        scales = _scales(graph, nodes, known.peaks)
        if scales is not None and _divide(graph, source, scales):
            for node in nodes:
                _multiply(graph, node, scales)
            count += 1
    graph.remove_unused()
    return Outcome(graph.to_model(), {"inputs smoothed": count}) if count else Outcome(model, {})


def _is_table(columns: NDArray[np.float32], tables: list[NDArray[Any]]) -> bool:
    return any(columns.shape == table.shape and np.array_equal(columns, table) for table in tables)


def _scales(graph: Graph, nodes: list[Node], peaks: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return what each channel is divided by, 1 on average; None: weights do not fit."""
    rows = [np.abs(_rows(graph, node)).max(axis=1) for node in nodes]
    if any(len(row) != len(peaks) for row in rows):
        return None
    weights = np.maximum(np.max(rows, axis=0), _LEAST)
    floor = max(_LEAST, _LEAST_SHARE * float(np.median(peaks)))
    logs = _SHARE * np.log(np.maximum(peaks, floor)) - (1 - _SHARE) * np.log(weights)
    array: NDArray[np.float32] = np.exp(logs - logs.mean()).astype(np.float32)
    return array


def _rows(graph: Graph, node: Node) -> NDArray[np.float32]:
    """Return the matrix of a product: (inputs, outputs)."""
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    return weight.T if attribute(node, "transB", 0) else weight


def _multiply(graph: Graph, node: Node, scales: NDArray[np.float32]) -> None:
    scaled = _rows(graph, node) * scales[:, None]
    graph.set_input(node, 1, np.ascontiguousarray(scaled.T if attribute(node, "transB", 0) else scaled))


def _divide(graph: Graph, source: Value, scales: NDArray[np.float32]) -> bool:
    """Divide what makes a tensor by scales, in place; return whether that can be done in its constants."""
    maker = graph.producer(source)
    if maker is None:
        return False
    if maker.op_type in _SCALES and maker.outputs[0] is source:
        places = [place for place in _SCALES[maker.op_type] if place < len(maker.inputs) and maker.inputs[place]]
        return _divide_constants(graph, maker, places, scales)
    if maker.op_type == "Mul":
        for place, value in enumerate(maker.inputs):
            if _divide_constants(graph, maker, [place], scales):  # the weight of a norm that is written out
                return True
            product = graph.sole_producer(value, "MatMul")
            if product is not None and _divide_product(graph, product, scales):
                return True
    return False


def _divide_constants(graph: Graph, node: Node, places: list[int], scales: NDArray[np.float32]) -> bool:
    arrays = [graph.constant(node.inputs[place]) for place in places]
    if not arrays or any(array is None or array.shape != scales.shape for array in arrays):
        return False
    for place, array in zip(places, arrays, strict=True):
        assert array is not None
        graph.set_input(node, place, (array / scales).astype(np.float32))
    return True


def _divide_product(graph: Graph, product: Node, scales: NDArray[np.float32]) -> bool:
    """Divide the columns of a product's matrix, whose result a gate multiplies."""
    weight = graph.constant(product.inputs[1])
    if weight is None or weight.ndim != 2 or weight.shape[1] != len(scales) or weight.dtype != np.float32:
        return False
    graph.set_input(product, 1, np.ascontiguousarray(weight / scales))
    return True
