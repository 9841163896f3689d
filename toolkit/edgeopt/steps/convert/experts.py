"""Store the experts of a mixture in 4 or 8 bits, a scale for every few weights of a row, as other matrices are.

`QMoE` runs the products of a chosen expert with the kernels of `MatMulNBits`, activations rounded to 8 bits in blocks.
Its shares are those of the chosen experts among themselves; where a model takes them among all experts, it is given
them beside the scores.
Source: com.microsoft.QMoE of ONNX Runtime 1.32, accuracy_level 4.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.facts.mixtures import DOWN, SCORES, UP, activation_of, mixtures
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.blocks import INT8_ACTIVATIONS, Blocks, Rounding, to_nearest
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.system.processes.time_limit import require_time

_LEAST_BLOCK = 16


def expert_name(node: Node, place: int, expert: int) -> str:
    """Return under which name a matrix of a mixture is rounded."""
    return f"{node.name}/{'up' if place == UP else 'down'}/{expert}"


def with_experts(outcome: Outcome, block: int) -> Outcome:
    """Return what a form is with its experts in blocks of 8 bits, each weight to the nearest step.

    Args:
        outcome: The form, its experts in float.
        block: Weights that share a scale.
    """
    graph = Graph.from_model(outcome.model)
    count = store_experts(graph, 8, block, to_nearest)
    if not count:
        return outcome
    graph.remove_unused()
    return replace(
        outcome,
        model=graph.to_model(),
        changes={**outcome.changes, "matrices of experts in 8 bits": count},
    )


def store_experts(graph: Graph, bits: int, block: int, rounding: Rounding, wide: Collection[str] = ()) -> int:
    """Rewrite the mixtures in float, in place; return how many matrices are stored.

    Args:
        graph: The model.
        bits: 4 or 8.
        block: Weights that share a scale, at most; fewer where rows are no multiple of it.
        rounding: How a matrix becomes integers.
        wide: Names of nodes whose experts are stored in 8 bits all the same.

    Raises:
        UnsupportedError: If a weight is NaN or infinite.
        OutOfTime: At the end of a time limit.
    """
    stored = 0
    for node in mixtures(graph):
        require_finite_weights([node], graph)
        up, down = graph.constant(node.inputs[UP]), graph.constant(node.inputs[DOWN])
        assert up is not None
        assert down is not None
        size = _block(block, up.shape[-1], down.shape[-1])
        if size:
            _rewrite(graph, node, 8 if node.name in wide else bits, size, rounding, (up, down))
            stored += 2 * len(up)
    return stored


def _block(most: int, *rows: int) -> int:
    """Return the longest block that rows of each of these lengths have two or more of; 0: there is none.

    A zero of its own for a single block a row is stored in another layout, which no kernel for blocks takes.
    """
    size = most
    while size >= _LEAST_BLOCK:
        if all(row % size == 0 and row >= 2 * size for row in rows):
            return size
        size //= 2
    return 0


def _rewrite(
    graph: Graph, node: Node, bits: int, block: int, rounding: Rounding, experts: tuple[NDArray[np.float32], ...]
) -> None:
    inputs: list[Value | None] = [node.inputs[0], node.inputs[SCORES]]
    zeros = list[Value | None]()
    for place, matrices in zip((UP, DOWN), experts, strict=True):
        blocks = list[Blocks]()
        for i, matrix in enumerate(matrices):
            require_time()
            blocks.append(rounding(expert_name(node, place, i), matrix, bits, block))
        name = f"{node.name}_{'up' if place == UP else 'down'}"
        packed = np.stack([each.packed() for each in blocks]).reshape(*matrices.shape[:2], -1)
        inputs += [graph.add_initializer(f"{name}_blocks", packed)]
        inputs += [graph.add_initializer(f"{name}_scales", np.stack([each.scale for each in blocks])), None]
        own = [zero for each in blocks if (zero := each.packed_zero()) is not None]
        zeros.append(graph.add_initializer(f"{name}_zeros", np.stack(own)) if own else None)
    inputs += [None, None, None, *zeros, None]
    is_normed = bool(attribute(node, "normalize_routing_weights", 0))
    inputs.append(None if is_normed else graph.insert("Softmax", [node.inputs[SCORES]], {"axis": -1}).outputs[0])
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, int | float | str] = {
        **activation_of(node),
        "normalize_routing_weights": int(is_normed),
        "expert_weight_bits": bits,
        "block_size": block,
        "accuracy_level": INT8_ACTIVATIONS,
    }
    made = graph.insert("QMoE", inputs, attributes, domain="com.microsoft", name=f"{node.name}_QMoE")
    graph.replace(node.outputs[0], made.outputs[0])
