"""Read what the products of a decoder multiply, and whose input is too loud for one grid of 8 bits for a whole run.

Trained decoders send a few tokens, the first of a text mostly, through some layers with numbers hundreds of times as
large as the others' ("Massive Activations in Large Language Models", Sun et al. 2024, section 2). On one grid for all
tokens of a prompt (DynamicQuantizeLinear) the others are then rounded to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, MEMORY_PATTERN
from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.graph.facts.mixtures import routers
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.quantize.calibration.watching import with_outputs
from edgeopt.steps.quantize.formats.matmul_integer import plain_products
from edgeopt.system.processes.time_limit import require_time

MOST_TEXTS, MOST_TOKENS = 4, 256
"""Few texts are read, of the length in which prompts run: what is loud is so in every text."""
MOST_NOISE = 0.002
"""Share of a token's energy that its grid may lose, on average over all tokens: 27 dB, where tokens as loud as each
other lose about 0.0003 (35 dB). SmolLM2-135M's perplexity rose by 1.1 % with it, by 1.6 % with 0.003."""
_STEPS = 255


@dataclass(frozen=True, slots=True)
class ProductInput:
    """A tensor that products of constant matrices read, as texts show it."""

    noise: float
    """Share of a token's energy that one grid of 8 bits takes, on average over the tokens of a text; of the worst."""
    peaks: NDArray[np.float32]
    """(inputs,): the largest absolute number of each channel."""


def product_inputs_of(
    model: Model,
    windows: Sequence[Sequence[int]],
    *,
    threads: int,
    free_head: int = 0,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, ProductInput]:
    """Return what products of constant matrices read, by the names of tensors; what chooses experts is none of them.

    Args:
        model: A float decoder with a cache.
        windows: Tokens; each is a text that begins with its first token. The first of the first four are read.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.
        tell: Hears how many windows of how many are read.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    watched = sorted(set(_reads(Graph.from_model(model)).values()))
    if not watched:
        return {}
    cache = cache_parts(model.inputs, model.outputs, free_head)
    texts = [list(window)[:MOST_TOKENS] for window in windows[:MOST_TEXTS]]
    result = dict[str, ProductInput]()
    session = EXECUTOR.open(
        with_outputs(model, watched), SessionOptions(threads=threads, entries={MEMORY_PATTERN: "0"})
    )
    try:
        for i, text in enumerate(texts):
            require_time()
            tell(i, len(texts))
            values = session.run(feeds_of(text, cache, session.inputs))
            for name in watched:
                result[name] = _joined(result.get(name), values[name])
            del values  # the next text's come beside them
    finally:
        session.close()
    tell(len(texts), len(texts))
    return result


def loud_products(model: Model, inputs: Mapping[str, ProductInput]) -> tuple[str, ...]:
    """Return the names of the products whose inputs lose too much on one grid.

    Args:
        model: A float decoder.
        inputs: What its products read.
    """
    reads = _reads(Graph.from_model(model))
    return tuple(name for name, tensor in reads.items() if tensor in inputs and inputs[tensor].noise > MOST_NOISE)


def noise_on_one_grid(values: NDArray[np.float32]) -> float:
    """Return the mean share of a token's energy that rounding all tokens to one grid of 8 bits takes.

    Args:
        values: (..., numbers of a token).

    Returns:
        0 where all is zero; 1 or more where nothing is left.
    """
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    step = (max(rows.max(initial=0.0), 0.0) - min(rows.min(initial=0.0), 0.0)) / _STEPS
    energy = np.square(rows).sum(axis=1)
    heard = energy > 0
    if step == 0 or not heard.any():
        return 0.0
    lost = np.square(np.round(rows / step) * step - rows).sum(axis=1)
    return float((lost[heard] / energy[heard]).mean())


def _reads(graph: Graph) -> dict[str, str]:
    """Return what each product of a constant matrix reads, by their names."""
    exact = routers(graph)
    nodes = [node for node in plain_products(graph) if node not in exact]
    return {node.name or "": str(node.inputs[0].name) for node in nodes if node.inputs[0] is not None}


def _joined(known: ProductInput | None, values: NDArray[np.float32]) -> ProductInput:
    noise = noise_on_one_grid(values)
    peaks = np.abs(values.reshape(-1, values.shape[-1])).max(axis=0).astype(np.float32)
    return (
        ProductInput(max(noise, known.noise), np.maximum(peaks, known.peaks)) if known else ProductInput(noise, peaks)
    )
