"""Which matrices of a decoder lose most in few bits: each is exchanged in the float model, which then reads a text.

The loss is the divergence (Kullback-Leibler) of the next token's probabilities from the float model's, in nats a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.executors import SessionOptions, Source
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LOGITS, cache_parts
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model
from edgeopt.steps.convert.blocks import Rounding, fitting_block
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.convert.weight_only import columns_of, large_products
from edgeopt.steps.quantize.calibration.watching import with_outputs
from edgeopt.system.processes.time_limit import require_time

_MOST_GROUPS = 24
_MOST_TEXTS, _MOST_TOKENS = 3, 128
"""A run of the float model for each group: what is read is kept short."""


def sensitive_products(
    model: Model,
    windows: Sequence[Sequence[int]],
    rounding: Rounding,
    *,
    bits: int,
    block: int,
    most_left: float,
    threads: int,
    free_head: int = 0,
    apart: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda *_: None,
) -> tuple[str, ...]:
    """Return the nodes that make up half of what all matrices together lose, or more, in as few bytes as possible.

    Args:
        model: A float decoder with a cache.
        windows: Tokens of a text; the first of the first three are read.
        rounding: How a matrix becomes integers.
        bits: Of each.
        block: Weights that share a scale.
        most_left: Nats a token that the others may lose together; half of all is taken in any case.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.
        apart: Nodes that are left out.
        tell: Hears how many groups of how many are read.

    Returns:
        Names of nodes; up to 24 groups of neighbours are told apart.
    """
    graph = Graph.from_model(model)
    nodes = [node for node in large_products(graph) if node.name not in apart]
    if not nodes:
        return ()
    cache = cache_parts(model.inputs, model.outputs, free_head)
    weights = {str(node.inputs[1].name): node for node in nodes if node.inputs[1]}
    session = EXECUTOR.open(_exchangeable(model, list(weights)), SessionOptions(threads=threads))
    texts = [feeds_of(list(window)[:_MOST_TOKENS], cache, session.inputs) for window in list(windows)[:_MOST_TEXTS]]
    expected = [_log_shares(session.run(text)[LOGITS]) for text in texts]
    groups = [list(part) for part in np.array_split(np.array(list(weights)), min(_MOST_GROUPS, len(weights)))]
    losses, sizes = list[float](), list[int]()
    for i, group in enumerate(groups):
        require_time()
        tell(i, len(groups))
        arrays = dict[str, NDArray[np.float32]]()
        for name in group:
            node = weights[str(name)]
            columns = columns_of(graph, node)
            length = fitting_block(columns.shape[1], block, bits)
            real = rounding(node.name or "", columns, bits, length).real(columns.shape[1])
            arrays[str(name)] = real if attribute(node, "transB", 0) else np.ascontiguousarray(real.T)
        found = [_log_shares(session.run({**text, **arrays})[LOGITS]) for text in texts]
        losses.append(float(np.mean([_divergence(*both) for both in zip(expected, found, strict=True)])))
        sizes.append(sum(array.size for array in arrays.values()))
    session.close()
    tell(len(groups), len(groups))
    return _named(groups, losses, sizes, most_left, {name: node.name or "" for name, node in weights.items()})


def _named(
    groups: Sequence[Sequence[str]],
    losses: Sequence[float],
    sizes: Sequence[int],
    most_left: float,
    nodes: Mapping[str, str],
) -> tuple[str, ...]:
    order = sorted(range(len(groups)), key=lambda i: -losses[i] / sizes[i])
    chosen, kept, wanted = list[str](), 0.0, max(sum(losses) / 2, sum(losses) - most_left)
    for i in order:
        if kept >= wanted:
            break
        chosen += [nodes[str(name)] for name in groups[i]]
        kept += losses[i]
    return tuple(chosen)


def _exchangeable(model: Model, weights: Sequence[str]) -> Source:
    """Return the model with its logits alone, and some weights as inputs that need not be given."""
    source = with_outputs(model, [LOGITS])
    assert not isinstance(source, Path)
    proto = onnx.load_model_from_string(source.graph if isinstance(source, Outside) else source)
    shapes = {constant.name: list(constant.dims) for constant in proto.graph.initializer}
    proto.graph.input.extend(
        helper.make_tensor_value_info(weight, TensorProto.FLOAT, shapes[weight]) for weight in weights
    )
    made: bytes = proto.SerializeToString()
    return replace(source, graph=made) if isinstance(source, Outside) else made


def _log_shares(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = logits.reshape(-1, logits.shape[-1]).astype(np.float64)
    rows = rows - rows.max(axis=-1, keepdims=True)
    array: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return array


def _divergence(expected: NDArray[np.float64], array: NDArray[np.float64]) -> float:
    return float((np.exp(expected) * (expected - array)).sum(axis=-1).mean())
