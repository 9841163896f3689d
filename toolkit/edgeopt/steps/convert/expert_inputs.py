"""Run a decoder over a calibration text, and sum up what each expert's matrices are multiplied by.

All tokens of a text stand for what the first matrices of a layer's experts read: what single experts read are too few
to round long rows by. The second matrix reads what the first makes, of the tokens that come to its expert alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.graph.facts.mixtures import DOWN, UP, mixtures
from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.graph.model import Model
from edgeopt.steps.convert.experts import expert_name
from edgeopt.steps.convert.fitting.grams import Gram
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.quantize.calibration.watching import groups_of, with_outputs
from edgeopt.system.processes.time_limit import require_time

_HELD = (64 << 20, 1 << 30)
"""Least and most bytes of sums that are held at once, half of the weights between them: so much comes on top of a model
that is open in float, and of one with gigabytes no more than a search of others takes."""


def expert_grams_of(
    model: Model,
    windows: Sequence[Sequence[int]],
    *,
    threads: int,
    free_head: int = 0,
    most_bytes: int = 0,
    tell: Callable[[int, int], None] = lambda *_: None,
    keep: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda array: array,
) -> dict[str, Gram]:
    """Return X^T X of each expert's matrices, by the names under which they are rounded; empty: there are no experts.

    An expert to which fewer tokens come than its second matrix has inputs has no sums for that matrix, which is then
    rounded as a k-quant.

    Args:
        model: A float decoder with a cache.
        windows: Tokens; each is a text that begins with its first token.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.
        most_bytes: Sums that are held at once, beyond them the text is run over again; 0: half of the weights.
        tell: Hears how many windows of how many are done.
        keep: Returns finished sums as they are kept, in a file for example.
    """
    graph = Graph.from_model(model)
    nodes = {node.name or "": node for node in mixtures(graph)}
    if not nodes:
        return {}
    cache = cache_parts(model.inputs, model.outputs, free_head)
    most_bytes = most_bytes or min(max(model.size_bytes // 2, _HELD[0]), _HELD[1])
    groups = groups_of({name: _bytes_of(graph, node) for name, node in nodes.items()}, most_bytes)
    result = dict[str, Gram]()
    for i, group in enumerate(groups):
        sums = [_MixtureSums(graph, nodes[name]) for name in group]
        watched = sorted({tensor for each in sums for tensor in (each.reads, each.scores)})
        session = EXECUTOR.open(with_outputs(model, watched), SessionOptions(threads=threads))
        try:
            for j, window in enumerate(windows):
                require_time()
                tell(i * len(windows) + j, len(groups) * len(windows))
                values = session.run(feeds_of(window, cache, session.inputs))
                for each in sums:
                    each.add(values[each.reads], values[each.scores])
        finally:
            session.close()
        for each in sums:
            made = each.grams()
            for gram in {id(gram): gram for gram in made.values()}.values():  # experts share those of their input
                gram.parts = [keep(array) for array in gram.parts]
            result |= made
    tell(len(groups) * len(windows), len(groups) * len(windows))
    return result


class _MixtureSums:
    """Sums of all that the experts of one mixture have read so far."""

    def __init__(self, graph: Graph, node: Node) -> None:
        up, down = graph.constant(node.inputs[UP]), graph.constant(node.inputs[DOWN])
        assert up is not None
        assert down is not None
        self._node, self._up = node, up
        self._chosen: int = attribute(node, "k", 1)
        self.reads, self.scores = (str(value.name) for value in node.inputs[:2] if value is not None)
        self._all = Gram(up.shape[-1])
        self._own = [Gram(down.shape[-1]) for _ in range(len(up))]

    def add(self, reads: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Add the tokens of a text.

        Args:
            reads: (..., hidden).
            scores: (tokens, experts).
        """
        rows = np.asarray(reads, np.float32).reshape(len(scores), -1)
        self._all.add(rows)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : self._chosen]
        for expert, gram in enumerate(self._own):
            taken = rows[(chosen == expert).any(axis=-1)]
            if len(taken):
                both = taken @ self._up[expert].T
                gate, up = both[:, 0::2], both[:, 1::2]
                gram.add(np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32))

    def grams(self) -> dict[str, Gram]:
        """Return the sums by the names of matrices."""
        ups = {expert_name(self._node, UP, i): self._all for i in range(len(self._own))}
        downs = {expert_name(self._node, DOWN, i): gram for i, gram in enumerate(self._own)}
        return ups | {name: gram for name, gram in downs.items() if gram.rows >= gram.inputs}


def _bytes_of(graph: Graph, node: Node) -> int:
    up, down = graph.constant(node.inputs[UP]), graph.constant(node.inputs[DOWN])
    assert up is not None
    assert down is not None
    return Gram.bytes_of(up.shape[-1]) + len(down) * Gram.bytes_of(down.shape[-1])
