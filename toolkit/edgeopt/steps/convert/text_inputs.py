"""Run a decoder over a calibration text, and sum up what each of its matrices is multiplied by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import IDS, MASK, POSITIONS, CachePart, cache_parts
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.convert.blocks_with_inputs import Gram
from edgeopt.steps.convert.weight_only import large_products, product_inputs
from edgeopt.steps.quantize.calibration.watching import groups_of, with_outputs
from edgeopt.system.processes.time_limit import require_time

MOST_HELD_BYTES = 1 << 30
"""Sums of tensors that one session hands out; what is beyond that takes another session."""
_LEAST_HELD_BYTES = 64 << 20


def most_held_bytes(weights_bytes: int) -> int:
    """Return how many bytes of sums are held at once: half of the weights, beyond it the text is run over again."""
    return min(MOST_HELD_BYTES, max(_LEAST_HELD_BYTES, weights_bytes // 2))


def grams_of(
    model: Model,
    windows: Sequence[Sequence[int]],
    *,
    threads: int,
    free_head: int = 0,
    most_bytes: int = MOST_HELD_BYTES,
    tell: Callable[[int, int], None] = lambda *_: None,
    keep: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda array: array,
) -> dict[str, Gram]:
    """Return X^T X of each large matrix by the name of its node; those that read one tensor share it.

    Args:
        model: A float decoder with a cache.
        windows: Tokens; each is a text that begins with its first token.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.
        most_bytes: Sums that are held at once, at most `MOST_HELD_BYTES`; what is beyond takes another run.
        tell: Hears how many windows of how many are done.
        keep: Returns finished sums as they are kept, in a file for example.

    Raises:
        UnsupportedError: If it is no decoder with a cache.
    """
    cache = cache_parts(model.inputs, model.outputs, free_head)
    graph = Graph.from_model(model)
    sizes = {node.name or "": product_inputs(graph, node) for node in large_products(graph)}
    reads = {node.name or "": str(node.inputs[0].name) for node in large_products(graph) if node.inputs[0]}
    tensors = {reads[node]: size for node, size in sizes.items()}
    held = {name: Gram.bytes_of(size) for name, size in tensors.items()}
    groups = groups_of(held, MOST_HELD_BYTES)
    passes = [groups_of({name: held[name] for name in group}, most_bytes) for group in groups]
    result, done, of = dict[str, Gram](), 0, sum(map(len, passes)) * len(windows)
    for group, parts in zip(groups, passes, strict=True):
        session = EXECUTOR.open(with_outputs(model, group), SessionOptions(threads=threads))
        known = {spec.name for spec in session.inputs}
        for part in parts:  # of one session: which tensors are fetched changes none of its numbers
            grams = {name: Gram(tensors[name]) for name in part}
            for window in windows:
                require_time()
                tell(done, of)
                for name, value in zip(part, session.fetch(part, feeds_of(window, cache, known)), strict=True):
                    grams[name].add(np.asarray(value, np.float32).reshape(-1, tensors[name]))
                done += 1
            for gram in grams.values():
                gram.parts = [keep(array) for array in gram.parts]
            result |= grams
        session.close()
    tell(of, of)
    return {node: result[name] for node, name in reads.items()}


def feeds_of(window: Sequence[int], cache: Sequence[CachePart], known: Collection[str]) -> Tensors:
    """Return the inputs of a decoder for a text from its first token on, with nothing before it.

    Args:
        window: Tokens.
        cache: Of the decoder.
        known: Names of the inputs that it takes.
    """
    arrays = {
        IDS: np.array([window], np.int64),
        MASK: np.ones((1, len(window)), np.int64),
        POSITIONS: np.arange(len(window), dtype=np.int64)[None],
        **{part.past: np.zeros((1, part.heads, 0, part.head), part.dtype) for part in cache},
    }
    return {name: value for name, value in arrays.items() if name in known}
