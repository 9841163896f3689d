"""Give tensors one grid where an engine would otherwise requantize.

Ops that only move values keep their grid. A Concat of equal grids is a copy; of different ones it is a pass
over all values. Sharing costs a part some resolution, so it is done only where each part still keeps LEAST_DB
on the shared grid, or loses at most MOST_LOST_DB.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeopt.graph.graph import Graph, Value
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.keep_float.scores import score_db
from edgeopt.steps.quantize.patterns import SAME_GRID, key, name_of
from edgeopt.steps.quantize.scheme import Scheme, data_inputs

LEAST_DB = 30.0
MOST_LOST_DB = 1.0


def share_grids(graph: Graph, scheme: Scheme, seen: Mapping[str, Observation]) -> dict[str, Affine]:
    """Return the grids of the scheme with those shared that gain from it."""
    grids = dict(scheme.affines)
    for node in reversed(graph.nodes("Concat")):
        if scheme.is_integer(node):
            _share_with_parts(graph, scheme, node.outputs[0], data_inputs(graph, node), grids, seen)
    for node in graph.nodes(*SAME_GRID):
        if scheme.is_integer(node) and node.inputs[0] is not None:
            grids[key(node)] = grids[name_of(node.inputs[0])]
    return grids


def _share_with_parts(
    graph: Graph,
    scheme: Scheme,
    whole: Value,
    parts: list[Value],
    grids: dict[str, Affine],
    seen: Mapping[str, Observation],
) -> None:
    shared = grids[name_of(whole)]
    sources = [name_of(source) for part in parts for source in moved_from(graph, scheme, part)]
    for name in sources:
        own, common = score_db(seen[name].samples, grids[name]), score_db(seen[name].samples, shared)
        if common < min(LEAST_DB, own - MOST_LOST_DB):
            return
    grids.update(dict.fromkeys(sources, shared))


def moved_from(graph: Graph, scheme: Scheme, value: Value) -> list[Value]:
    """Return `value` and all it was moved from by ops that keep the grid."""
    chain = [value]
    while (node := graph.producer(chain[-1])) is not None and node.op_type in SAME_GRID and scheme.is_integer(node):
        assert node.inputs[0] is not None
        chain.append(node.inputs[0])
    return chain
