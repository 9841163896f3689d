"""Quantize one model: calibrate, choose grids, choose what stays float, repair, place. It measures no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from enum import StrEnum

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph import Graph, Node
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.quantization.dynamic import place_dynamic
from edgeopt.quantization.findings import Findings, study
from edgeopt.quantization.float_islands import LEAST_DB, float_island, red_tensors
from edgeopt.quantization.inputs_only import place_inputs, readers_of, tensors_read
from edgeopt.quantization.matrices import place_matrices, plain_products
from edgeopt.quantization.nhwc import NhwcOptions, place_nhwc
from edgeopt.quantization.qdq import place_qdq, quantized_tensors
from edgeopt.quantization.ranges import Method
from edgeopt.quantization.repair import repair_weights
from edgeopt.quantization.scheme import Scheme, candidates, integer_nodes
from edgeopt.quantization.shared_grids import share_grids
from edgeopt.quantization.structure import head_tail, key
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors
from edgeopt.text import plural

_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""
_LATEST_OPSET = 17
"""Newest opset whose ReduceMean takes its axes as an attribute, as the NHWC form writes it."""


class Form(StrEnum):
    """How integers are written into the graph."""

    QDQ = "qdq"
    """Pairs of QuantizeLinear and DequantizeLinear: every engine reads them."""
    NHWC = "nhwc"
    """ONNX Runtime's own integer ops: for its CPU kernels only, and faster there."""
    INPUTS = "inputs"
    """Pairs on what weighted layers read, and nowhere else: the form that OpenVINO runs fast."""
    DYNAMIC = "dynamic"
    """Matrix products on grids that are found as the model runs; convolutions in float. For ONNX Runtime."""


_READING = (Form.INPUTS, Form.DYNAMIC)
"""Forms that round only what layers read."""


def quantize(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    form: Form = Form.QDQ,
    method: Method = Method.MSE,
    least_db: float = LEAST_DB,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Return the model in static INT8, and in float what integers would spoil.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once.
        rules: What INT8 form the target runs.
        form: How integers are written.
        method: How activation ranges are chosen.
        least_db: Tensors whose normalised SQNR is below it stay float, with their neighbours.
        progress: Called with the number of images done.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    graph = open_graph(model)
    findings = study(model, graph, calibration_inputs, rules, method=method, progress=progress)
    scheme, notes = choose_scheme(graph, findings, rules, least_db, form=form)
    scheme = repair_weights(graph, scheme, findings.calibration, rounding=False)
    changes = place(graph, scheme, form)
    return Outcome(graph.to_model(), changes, (*findings.notes, *notes))


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


def place(
    graph: Graph,
    scheme: Scheme,
    form: Form,
    options: NhwcOptions = NhwcOptions(),  # noqa: B008, frozen
) -> Mapping[str, int]:
    """Write the scheme into the graph, in place; return how often what was rewritten."""
    if form is Form.QDQ:
        return place_qdq(graph, scheme)
    if form is Form.INPUTS:
        return place_inputs(graph, scheme)
    if form is Form.DYNAMIC:
        return place_dynamic(graph, scheme)
    weighted = candidates(graph, scheme.rules)
    tail = head_tail(graph)
    predicting = frozenset(key(node) for node in weighted if node in tail)
    products = place_matrices(graph, scheme)
    return {**products, **place_nhwc(graph, scheme, options, predicting)}


def choose_scheme(
    graph: Graph,
    findings: Findings,
    rules: Int8Rules,
    least_db: float = LEAST_DB,
    kept_float: Set[Node] = frozenset(),
    form: Form = Form.QDQ,
) -> tuple[Scheme, tuple[Note, ...]]:
    """Return what runs on integers, and why the rest does not.

    Args:
        graph: The float model.
        findings: Grids and scores.
        rules: What INT8 form the target runs.
        least_db: Tensors whose normalised SQNR is below it stay float, with their neighbours.
        kept_float: Further nodes that stay float, for their speed.
        form: Where only what layers read is quantized, just the layers that read a bad tensor stay float.
    """
    tail = head_tail(graph)
    if form is Form.DYNAMIC:
        kept_float = {*kept_float, *candidates(graph, rules)} - set(plain_products(graph))
    outside = tail | kept_float
    first = Scheme(integer_nodes(graph, rules, outside), findings.affines, rules)
    red = red_tensors({name: findings.scores_db[name] for name in tensors_on_grids(graph, first, form)}, least_db)
    island = island_of(graph, red.keys(), form)
    scheme = Scheme(integer_nodes(graph, rules, outside | island), findings.affines, rules, bad_db=red)
    scheme = replace(scheme, affines=share_grids(graph, scheme, findings.calibration.observations))
    return scheme, tuple(_notes(graph, scheme, red, tail, kept_float))


def tensors_on_grids(graph: Graph, scheme: Scheme, form: Form) -> Set[str]:
    """Return the names of the tensors that are rounded to integers."""
    return (tensors_read(graph, scheme) if form in _READING else quantized_tensors(graph, scheme)).keys()


def island_of(graph: Graph, bad: Set[str], form: Form) -> Set[Node]:
    """Return the nodes that stay float because of tensors that must not be rounded."""
    return readers_of(graph, bad) if form in _READING else float_island(graph, bad)


def _notes(
    graph: Graph, scheme: Scheme, red: Mapping[str, float], tail: Set[Node], kept_float: Set[Node]
) -> Iterable[Note]:
    weighted = candidates(graph, scheme.rules)
    kept = [node for node in weighted if not scheme.is_integer(node)]
    yield Note(NoteKind.CHOICE, f"{len(weighted) - len(kept)} of {plural(len(weighted), 'weighted layer')} in INT8")
    if head := [node for node in kept if node in tail]:
        detail = f"{plural(len(head), 'prediction layer')} keep real outputs: one scale cannot hold boxes and scores"
        yield Note(NoteKind.CHOICE, detail, _names(head))
    if fast := [node for node in kept if node in kept_float]:
        yield Note(NoteKind.CHOICE, f"{plural(len(fast), 'layer')} in float because integers are slower", _names(fast))
    if flagged := [node for node in kept if node not in tail and node not in kept_float]:
        worst = ", ".join(f"{name!r} {score:.1f} dB" for name, score in [*red.items()][:3])
        reason = f"one scale cannot hold {plural(len(red), 'tensor')} ({worst})"
        yield Note(NoteKind.CHOICE, f"{plural(len(flagged), 'layer')} in float: {reason}", _names(flagged))


def _names(nodes: list[Node]) -> str:
    shown = ", ".join(str(node.name) for node in nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"


def is_quantizable(model: Model, rules: Int8Rules) -> bool:
    """Whether the model has a layer that could run on integers."""
    return bool(candidates(Graph.from_model(model), rules))
