"""Round the matrices of a decoder one after the other, each on what the rounded ones before it make of a text.

What was lost so far is made up for where it can be. With X the rows that a matrix W reads in the float model, Y those
that it reads behind rounded ones, and R what the sum behind its product lost so far (the float model's residual
stream minus the rounded one's, where a product is added to it), the matrix to be rounded is no longer W but

    W' = argmin |Y W' - (X W + R)|^2 + d |W' - W|^2 = W + (Y^T Y + d I)^-1 Y^T ((X - Y) W + R).

Long columns are done in parts of up to 1,024 inputs; each part then makes up for those before it as well.

Source: Arai and Ichikawa, Quantization error propagation (QEP), 2025, equation 5, for X and Y; R is ours: the sum is
where the next layer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.steps.convert.blocks import Blocks, fitting_block, joined, to_nearest
from edgeopt.steps.convert.fitting.fitted_blocks import MOST_TOGETHER, Curvature, fit_blocks
from edgeopt.steps.convert.fitting.pieces import Held, TwoRuns, has_nested
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.convert.weight_only import columns_of, large_products
from edgeopt.steps.quantize.formats.matmul_integer import product_bias
from edgeopt.system.processes.time_limit import require_pace, require_time

Matrix = NDArray[np.float32]

_PACED = 8
"""The pace is known behind the first eighth of the matrices, some layers of all."""
_MOST_COLUMNS = 4096
"""Outputs whose losses are held at once."""
_SUMS = ("Add", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization")


def bytes_needed(inputs: int) -> int:
    """Return about what the curvatures of a matrix take, beside the rows of the text.

    Args:
        inputs: Of the widest matrix.
    """
    return 8 * inputs * min(inputs, MOST_TOGETHER)


def round_layer_by_layer(
    model: Model,
    windows: Sequence[Sequence[int]],
    form: Callable[[str], tuple[int, int]],
    *,
    threads: int,
    free_head: int = 0,
    left_out: Collection[str] = (),
    tell: Callable[[int, int], None] = lambda *_: None,
    keep: Callable[[NDArray[Any]], NDArray[Any]] = lambda array: array,
) -> dict[str, Blocks]:
    """Return the blocks of each large matrix by the name of its node; none where the graph cannot be cut.

    Args:
        model: A float decoder with a cache.
        windows: Tokens of a text; each is a text that begins with its first token.
        form: Bits of a node's matrix, 4 or 8, which is rounded to nearest, and how many weights share a scale.
        threads: Of the engine.
        free_head: Numbers of a head where the model leaves them free.
        left_out: Nodes behind all others whose matrix is not rounded.
        tell: Hears how many tensors of how many are done.
        keep: Returns what is made of a matrix as it is kept until the end, in a file for example.

    Raises:
        UnsupportedError: If it is no decoder with a cache.
        OutOfTime: At the end of a time limit, or as soon as it does not end before it at its pace.
    """
    cache = cache_parts(model.inputs, model.outputs, free_head)
    graph = Graph.from_model(model)
    if has_nested(graph):
        return {}
    stages = dict[Value, list[Node]]()
    for node in large_products(graph):
        if node.inputs[0] is not None and node.name not in left_out:
            stages.setdefault(node.inputs[0], []).append(node)
    feeds = [feeds_of(window, cache, model.inputs) for window in windows]
    runs = TwoRuns(graph, feeds, list(stages), threads)
    result, others, stored = dict[str, Blocks](), dict[str, Matrix](), dict[Value, Blocks]()
    began_s = monotonic()
    for i, (value, nodes) in enumerate(stages.items()):
        tell(i, len(stages))
        if i == 1:
            began_s = monotonic()  # the first one opens engines too
        if i * _PACED >= len(stages):
            require_pace(began_s, i - 1, len(stages) - 1)
        runs.go_to(value, others)
        rows = _Rows(runs.own, runs.other, value)
        for node in nodes:
            require_time()
            name, weight = node.name or "", node.inputs[1]
            assert weight is not None
            if weight not in stored:
                columns = columns_of(graph, node)
                bits, block = form(name)
                block = fitting_block(columns.shape[1], block, bits)
                made = _rounded(columns, rows, _stream(graph, node, len(columns), runs), bits, block)
                stored[weight] = replace(made, integers=keep(made.integers), scale=keep(made.scale))
                real = made.real(columns.shape[1])
                others[str(weight.name)] = keep(real if attribute(node, "transB", 0) else np.ascontiguousarray(real.T))
            result[name] = stored[weight]
        runs.forget(value)
    tell(len(stages), len(stages))
    return result


class _Rows:
    """Rows that the matrices of a stage read, in the float model and behind rounded ones; curvatures as asked for."""

    def __init__(self, own: Sequence[Held], other: Sequence[Held], value: Value) -> None:
        self.own, self.other = ([_flat(held[str(value.name)]) for held in side] for side in (own, other))
        inputs = self.own[0].shape[1]
        count = -(-inputs // MOST_TOGETHER)
        limits = [inputs * i // count for i in range(count + 1)]
        self._inputs, self._limits = inputs, limits
        self._curvatures = dict[tuple[int, int], Curvature]()

    def parts(self, block: int) -> list[slice]:
        """Return the parts in which inputs are rounded, cut where blocks begin."""
        limits = sorted({limit // block * block for limit in self._limits[:-1]} | {self._inputs})
        return [slice(start, stop) for start, stop in pairwise(limits)]

    def curvature(self, part: slice, block: int) -> Curvature:
        """Return it for some inputs behind rounded matrices."""
        key = part.start, block
        if key not in self._curvatures:
            gram = np.zeros((part.stop - part.start,) * 2, np.float32)
            for rows in self.other:
                gram += rows[:, part].T @ rows[:, part]
            self._curvatures[key] = Curvature.of(gram, block)
        return self._curvatures[key]


def _rounded(
    columns: Matrix, rows: _Rows, stream: Sequence[tuple[Matrix, Matrix]] | None, bits: int, block: int
) -> Blocks:
    """Return the blocks of an (outputs, inputs) matrix.

    Args:
        columns: The matrix.
        rows: What it reads.
        stream: What its product is added to, for each text: the float model's and the rounded one's; None: to nothing.
        bits: Of each integer.
        block: Inputs that share a scale.
    """
    parts = list[Blocks]()
    for start in range(0, len(columns), _MOST_COLUMNS):
        some = slice(start, start + _MOST_COLUMNS)
        parts.append(_rounded_columns(columns[some], rows, stream, some, bits, block))
    return joined(parts)


def _rounded_columns(
    columns: Matrix, rows: _Rows, stream: Sequence[tuple[Matrix, Matrix]] | None, some: slice, bits: int, block: int
) -> Blocks:
    lost = [(own - other) @ columns.T for own, other in zip(rows.own, rows.other, strict=True)]
    for text, (own, other) in zip(lost, stream or (), strict=bool(stream)):
        text += own[:, some] - other[:, some]
    made = list[Blocks]()
    parts = rows.parts(block)
    for part in parts:
        curvature, weights = rows.curvature(part, block), columns[:, part]
        right = np.zeros((part.stop - part.start, len(columns)), np.float32)
        for read, text in zip(rows.other, lost, strict=True):
            right += read[:, part].T @ text
        wanted = weights + curvature.solved(right).T
        made.append(fit_blocks(wanted, curvature, bits, block) if bits < 8 else to_nearest("", wanted, bits, block))
        if part is not parts[-1]:
            moved = (made[-1].real(part.stop - part.start) - weights).T
            for read, text in zip(rows.other, lost, strict=True):
                text -= read[:, part] @ moved
    return joined(made, axis=1)


def _stream(graph: Graph, node: Node, outputs: int, runs: TwoRuns) -> list[tuple[Matrix, Matrix]] | None:
    """Return what a product is added to in each text, in the float model and behind rounded matrices; None: nothing."""
    made, _ = product_bias(graph, node, outputs)
    readers = graph.consumers(made)
    if len(readers) != 1 or readers[0].op_type not in _SUMS:
        return None
    beside = [input_ for input_ in readers[0].inputs[:2] if input_ is not None and input_ is not made]
    name = str(beside[0].name) if len(beside) == 1 else ""
    if not all(name in held and held[name].shape[-1] == outputs for held in (*runs.own, *runs.other)):
        return None
    return [(_flat(own[name]), _flat(other[name])) for own, other in zip(runs.own, runs.other, strict=True)]


def _flat(array: NDArray[np.float32]) -> Matrix:
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]), np.float32)
