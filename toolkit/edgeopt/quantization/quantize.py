"""Quantize one model: calibrate, choose grids, choose what stays float, place. It measures no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph import Graph, Node, Value
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.quantization.affine import Affine, make_affine
from edgeopt.quantization.calibration import Calibration, Observation, calibrate
from edgeopt.quantization.float_islands import LEAST_DB, float_island, red_tensors
from edgeopt.quantization.qdq import place_qdq, quantized_tensors
from edgeopt.quantization.ranges import Method, choose_affine
from edgeopt.quantization.scheme import Scheme, candidates, integer_nodes, watched
from edgeopt.quantization.scores import score_db
from edgeopt.quantization.shared_grids import share_grids
from edgeopt.quantization.structure import channel_axis, following_activation, head_tail, name_of
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors
from edgeopt.text import plural

_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""
_ALIKE = 0.01


@dataclass(frozen=True, slots=True)
class Findings:
    """What calibration says of a model: enough to make any scheme without running it again."""

    calibration: Calibration
    affines: Mapping[str, Affine]
    scores_db: Mapping[str, float]
    """Per-channel-normalised SQNR of each tensor on its grid."""


def quantize(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    method: Method = Method.MSE,
    least_db: float = LEAST_DB,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Return the model with static INT8 Q/DQ pairs, and in float what integers would spoil.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once.
        rules: What INT8 form the target runs.
        method: How activation ranges are chosen.
        least_db: Tensors whose normalised SQNR is below it stay float, with their neighbours.
        progress: Called with the number of images done.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    graph = open_graph(model)
    findings = study(model, graph, calibration_inputs, rules, method=method, progress=progress)
    scheme, notes = choose_scheme(graph, findings, rules, least_db)
    changes = place_qdq(graph, scheme)
    return Outcome(graph.to_model(), changes, (*calibration_notes(findings.calibration), *notes))


def open_graph(model: Model) -> Graph:
    """Return a copy of the model to work on, its shapes known.

    Raises:
        UnsupportedError: If the opset is too old for scales per channel.
    """
    if model.opset < _OPSET:
        raise UnsupportedError(
            f"{model.name} has opset {model.opset}; INT8 with a scale per channel needs {_OPSET} or later",
            remedy="let the step simplify run first: it upgrades the opset",
        )
    graph = Graph.from_model(model)
    graph.infer_shapes()
    return graph


def study(
    model: Model,
    graph: Graph,
    frames: Iterable[Tensors],
    rules: Int8Rules,
    *,
    method: Method = Method.MSE,
    progress: Callable[[int], None] | None = None,
) -> Findings:
    """Calibrate, and choose and score the grid of every tensor that may be quantized."""
    values = watched(graph, rules)
    axes = {name: channel_axis(graph, value) for name, value in values.items()}
    calibration = calibrate(model, frames, axes, progress=progress)
    affines = {
        name: grid_of(graph, values[name], one, rules, method) for name, one in calibration.observations.items()
    }
    scores = {name: score_db(one.samples, affines[name]) for name, one in calibration.observations.items()}
    return Findings(calibration, affines, scores)


def grid_of(graph: Graph, value: Value, seen: Observation, rules: Int8Rules, method: Method) -> Affine:
    """Return the grid of one tensor; pixels that are whole numbers keep their own."""
    histogram, dtype = seen.histogram, rules.activation_dtype
    if graph.producer(value) is None and _is_pixels(seen) and dtype == "uint8" and not rules.symmetric_activations:
        return make_affine(0.0, 255.0)
    return choose_affine(
        histogram,
        method,
        dtype=dtype,
        symmetric=rules.symmetric_activations,
        after=following_activation(graph, value),
    )


def _is_pixels(seen: Observation) -> bool:
    whole = bool((seen.samples == np.rint(seen.samples)).all())
    return whole and seen.histogram.low >= 0 and 1 < seen.histogram.high <= 255


def choose_scheme(
    graph: Graph, findings: Findings, rules: Int8Rules, least_db: float = LEAST_DB, kept_float: Set[Node] = frozenset()
) -> tuple[Scheme, tuple[Note, ...]]:
    """Return what runs on integers, and why the rest does not."""
    tail = head_tail(graph)
    outside = tail | kept_float
    first = Scheme(integer_nodes(graph, rules, outside), findings.affines, rules)
    used = quantized_tensors(graph, first)
    red = red_tensors({name: findings.scores_db[name] for name in used}, least_db)
    island = float_island(graph, red.keys())
    scheme = Scheme(integer_nodes(graph, rules, outside | island), findings.affines, rules)
    scheme = replace(scheme, affines=share_grids(graph, scheme, findings.calibration.observations))
    return scheme, tuple(_notes(graph, scheme, rules, red, tail))


def _notes(graph: Graph, scheme: Scheme, rules: Int8Rules, red: Mapping[str, float], tail: set[Node]) -> list[Note]:
    weighted = candidates(graph, rules)
    kept = [node for node in weighted if not scheme.is_integer(node)]
    head = [node for node in kept if node in tail]
    notes = [Note(NoteKind.CHOICE, f"{plural(len(weighted) - len(kept), 'weighted layer')} of {len(weighted)} in INT8")]
    if head:
        notes.append(Note(NoteKind.CHOICE, f"{plural(len(head), 'prediction layer')} kept in float", _names(head)))
    if red:
        worst = ", ".join(f"{name!r} {score:.1f} dB" for name, score in [*red.items()][:3])
        flagged = [node for node in kept if node not in tail]
        detail = f"{plural(len(flagged), 'layer')} kept in float: one scale cannot hold {plural(len(red), 'tensor')}"
        notes.append(Note(NoteKind.CHOICE, f"{detail} ({worst})", _names(flagged)))
    return notes


def _names(nodes: list[Node]) -> str:
    shown = ", ".join(str(node.name) for node in nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"


def calibration_notes(calibration: Calibration) -> tuple[Note, ...]:
    """Return a warning where the images cannot show what the model will meet."""
    if calibration.images > 1 and calibration.spread_ratio < _ALIKE:
        return (
            Note(
                NoteKind.WARNING,
                f"the {calibration.images} calibration images are alike: they differ by "
                f"{calibration.spread_ratio:.2%} of the spread inside one image",
                "give images of different scenes",
            ),
        )
    return ()


def is_quantizable(model: Model, rules: Int8Rules) -> bool:
    """Whether the model has a layer that could run on integers."""
    return bool(candidates(Graph.from_model(model), rules))
