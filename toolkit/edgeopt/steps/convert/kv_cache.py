"""Keep the keys and values of a decoder's cache in 8 bits, a scale for every channel of every head.

A text takes a quarter of the memory; a step reads less, and rounds more. It pays with long texts and wide caches alone.
Source: com.microsoft.GroupQueryAttention of ONNX Runtime, inputs k_scale and v_scale, PER_CHANNEL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import SHARING_OP, cache_parts
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.quantize.calibration.watching import with_outputs
from edgeopt.system.processes.time_limit import require_time

_PAST_KEY, _PAST_VALUE, _COSINES, _K_SCALE, _V_SCALE = 3, 4, 7, 12, 13
"""Inputs of the op."""
_MOST = 127
_MICROSOFT = "com.microsoft"


def cache_ranges(
    model: Model, windows: Sequence[Sequence[int]], *, threads: int, free_head: int = 0
) -> dict[str, NDArray[np.float32]]:
    """Return the largest absolute number of each channel of the cache on a text, wherever in a text it may stand.

    A key's channels turn in pairs by its position: a pair that lies on one axis in the short windows of a calibration
    lies on the other further on. What holds at every position is the length of the pair.

    Args:
        model: A float decoder with a cache.
        windows: Tokens; each is a text that begins with its first token.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.

    Returns:
        By the name of the past's input: (1, heads, 1, head); empty for a decoder without attention.
    """
    cache = cache_parts(model.inputs, model.outputs, free_head)
    if not cache:
        return {}
    session = EXECUTOR.open(with_outputs(model, [part.present for part in cache]), SessionOptions(threads=threads))
    arrays = {part.past: np.zeros((1, part.heads, 1, part.head), np.float32) for part in cache}
    partners = _partners(model)
    for window in windows:
        require_time()
        made = session.run(feeds_of(window, cache, session.inputs))
        for part in cache:
            numbers = made[part.present]
            if part.past in partners:
                pairs = partners[part.past]
                turning = np.arange(part.head) != pairs
                numbers = np.where(turning, np.hypot(numbers, numbers[..., pairs]), numbers)
            largest = np.abs(numbers).max(axis=2, keepdims=True)
            arrays[part.past] = np.maximum(arrays[part.past], largest.astype(np.float32))
    session.close()
    return arrays


def _partners(model: Model) -> dict[str, NDArray[np.int64]]:
    """Return with which channel of a head each channel of a key turns; a channel that stands still turns with itself.

    By the name of the past's input. Of keys that are turned before the op (`RotaryEmbedding`) the halves are taken, as
    the networks that are read here have them: of channels that do not turn, the range is at most 1.4 times too wide.
    """
    graph, partners = Graph.from_model(model), dict[str, NDArray[np.int64]]()
    heads = {spec.name: spec.shape[-1] for spec in model.inputs}
    for node in graph.nodes(SHARING_OP, domain=_MICROSOFT):
        past = node.inputs[_PAST_KEY] if len(node.inputs) > _PAST_KEY else None
        head = heads.get(str(past.name)) if past is not None else None
        if past is None or not isinstance(head, int):
            continue
        cosines = graph.constant(node.inputs[_COSINES]) if attribute(node, "do_rotary", 0) else None
        turning = head if cosines is None else min(2 * cosines.shape[1], head)
        channels = np.arange(head)
        if attribute(node, "rotary_interleaved", 0):
            channels[:turning] ^= 1
        else:
            channels[:turning] = np.roll(channels[:turning], turning // 2)
        partners[str(past.name)] = channels
    return partners


def make_integer_cache(model: Model, ranges: Mapping[str, NDArray[np.float32]]) -> Outcome:
    """Return a decoder whose cache holds integers; one whose attention cannot read them is returned as it is.

    Args:
        model: A decoder with a cache; its weights may be in integers.
        ranges: Of `cache_ranges`.
    """
    graph = Graph.from_model(model)
    nodes = graph.nodes(SHARING_OP, domain=_MICROSOFT)
    names = {node: [value.name if value else "" for value in (*node.inputs, *[None] * 5)][3:5] for node in nodes}
    if not nodes or any(name not in ranges for both in names.values() for name in both):
        return Outcome(model, {})
    for node in nodes:
        for past, present, scale in ((_PAST_KEY, 1, _K_SCALE), (_PAST_VALUE, 2, _V_SCALE)):
            value = node.inputs[past]
            assert value is not None
            steps = np.maximum(ranges[str(value.name)] / _MOST, np.float32(1e-6)).astype(np.float32)
            graph.set_input(node, scale, graph.add_initializer(f"{value.name}_scale", steps))
            for other in (value, node.outputs[present]):
                other.type = ir.TensorType(ir.DataType.INT8)
        for name, text in (("k_quant_type", "PER_CHANNEL"), ("v_quant_type", "PER_CHANNEL")):
            graph.set_attribute(node, name, text)
        graph.set_attribute(node, "kv_cache_bit_width", 8)
    return Outcome(graph.to_model(), {"caches in 8 bits": len(nodes)})
