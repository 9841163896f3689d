"""Quantize one model: calibrate, choose grids, choose what stays float, repair, place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from enum import StrEnum

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph.graph import Graph, Node
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB, Findings, study
from edgeopt.steps.quantize.formats._float_guards import guard_float_layers
from edgeopt.steps.quantize.formats.dynamic import place_dynamic
from edgeopt.steps.quantize.formats.inputs_only import place_inputs, readers_of, tensors_read
from edgeopt.steps.quantize.formats.matmul_integer import place_matrices, plain_products
from edgeopt.steps.quantize.formats.nhwc import has_kernel, place_nhwc, rounded_tensors
from edgeopt.steps.quantize.formats.qdq import place_qdq, quantized_tensors
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.grids.shared import share_grids
from edgeopt.steps.quantize.heads import feature_readers
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB, float_island, red_tensors
from edgeopt.steps.quantize.patterns import head_tail, key, name_of
from edgeopt.steps.quantize.repairs._apply import repair_weights
from edgeopt.steps.quantize.scheme import NhwcOptions, Scheme, candidates, integer_nodes
from edgeopt.steps.quantize.spatial import is_pointwise
from edgeopt.system.target import Int8Rules
from edgeopt.system.text import plural

_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""


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
_ONLY = {Form.NHWC: "convolutions of pictures and plain matrix products", Form.DYNAMIC: "plain matrix products"}
"""What forms have integers for that do not have them for every layer."""


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
        UnsupportedError: If the weights of a layer are NaN or infinite, or the opset is too old.
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


def place(graph: Graph, scheme: Scheme, form: Form) -> Mapping[str, int]:
    """Write the scheme into the graph, in place; return how often what was rewritten."""
    if form is Form.QDQ:
        done = place_qdq(graph, scheme)
        return {**done, **_guarded(graph)} if Form.NHWC in scheme.rules.forms else done
    if form is Form.INPUTS:
        return place_inputs(graph, scheme)
    if form is Form.DYNAMIC:
        return place_dynamic(graph, scheme)
    products = place_matrices(graph, scheme)
    return {**products, **place_nhwc(graph, scheme), **_guarded(graph)}


def _guarded(graph: Graph) -> Mapping[str, int]:
    """Keep ONNX Runtime's CPU engine, of which the NHWC form is, from rounding what was left in float."""
    count = guard_float_layers(graph)
    return {"float layers kept from the engine": count} if count else {}


def choose_scheme(
    graph: Graph,
    findings: Findings,
    rules: Int8Rules,
    least_db: float = LEAST_DB,
    kept_float: Set[Node] = frozenset(),
    form: Form = Form.QDQ,
    options: NhwcOptions = NhwcOptions(),  # noqa: B008, frozen
    kept: Set[str] = frozenset(),
) -> tuple[Scheme, tuple[Note, ...]]:
    """Return what runs on integers, and why the rest does not.

    A node that leaves the integers may leave what it reads to a grid that was not needed before: behind a
    convolution whose Relu has left, the sums get one. So tensors are judged again until no bad one is rounded.

    Args:
        graph: The float model.
        findings: Grids and scores.
        rules: What INT8 form the target runs.
        least_db: Tensors whose normalised SQNR is below it stay float, with their neighbours.
        kept_float: Further nodes that stay float, for their speed.
        form: Where only what layers read is quantized, just the layers that read a bad tensor stay float.
        options: Of the NHWC form.
        kept: Tensors that stay real whatever their score.
    """
    lacking, heads = _without_integers(graph, rules, form), _heads(graph, rules, form)
    outside = head_tail(graph) | kept_float | lacking
    bad = {name: findings.scores_db[name] for name in kept & findings.scores_db.keys()}
    while True:
        island = island_of(graph, bad.keys(), form)
        scheme = Scheme(
            integer_nodes(graph, rules, outside | island),
            findings.affines,
            rules,
            bad_db=dict(sorted(bad.items(), key=lambda item: (item[1], item[0]))),
            options=options,
            float_sums=frozenset(key(node) for node in heads - kept_float - island),
        )
        others = red_tensors({name: one for name, one in findings.scores_db.items() if name not in bad}, least_db)
        found = others.keys() & tensors_on_grids(graph, scheme, form) if others else set()
        if not found:
            break
        bad |= {name: others[name] for name in found}
    scheme = replace(scheme, affines=share_grids(graph, scheme, findings.calibration.observations))
    return scheme, tuple(_notes(graph, scheme, kept, kept_float, form))


def _without_integers(graph: Graph, rules: Int8Rules, form: Form) -> set[Node]:
    """Return the layers that a form would leave in float in any case."""
    if form not in _ONLY:
        return set()
    known = set(plain_products(graph))
    weighted = candidates(graph, rules)
    return {node for node in weighted if node not in known and not (form is Form.NHWC and has_kernel(graph, node))}


def _heads(graph: Graph, rules: Int8Rules, form: Form) -> set[Node]:
    """Return the prediction layers that may read integers and make real numbers."""
    if form is not Form.NHWC:
        return set()
    last = feature_readers(graph)
    return {node for node in candidates(graph, rules) if node in last and is_pointwise(graph, node)}


def tensors_on_grids(graph: Graph, scheme: Scheme, form: Form) -> Set[str]:
    """Return the names of the tensors that are rounded to integers."""
    if form in _READING:
        return tensors_read(graph, scheme).keys()
    if form is Form.QDQ:
        return quantized_tensors(graph, scheme).keys()
    products = (node.inputs[0] for node in plain_products(graph) if scheme.is_integer(node))
    return rounded_tensors(graph, scheme) | {name_of(value) for value in products if value is not None}


def island_of(graph: Graph, bad: Set[str], form: Form) -> Set[Node]:
    """Return the nodes that stay float because of tensors that must not be rounded."""
    return readers_of(graph, bad) if form in _READING else float_island(graph, bad)


def _notes(graph: Graph, scheme: Scheme, kept: Set[str], kept_float: Set[Node], form: Form) -> Iterable[Note]:
    weighted, tail = candidates(graph, scheme.rules), head_tail(graph)
    lacking, heads = _without_integers(graph, scheme.rules, form), _heads(graph, scheme.rules, form)
    real = [node for node in weighted if not scheme.is_integer(node) and key(node) not in scheme.float_sums]
    yield Note(NoteKind.CHOICE, f"{len(weighted) - len(real)} of {plural(len(weighted), 'weighted layer')} in INT8")
    if last := [node for node in weighted if node in tail]:
        detail = f"{plural(len(last), 'prediction layer')} keep real outputs: one scale cannot hold boxes and scores"
        yield Note(NoteKind.CHOICE, detail, _names(last))
    if others := [node for node in real if node in lacking]:
        detail = f"{plural(len(others), 'layer')} in float: form {form} has integers for {_ONLY[form]} only"
        yield Note(NoteKind.CHOICE, detail, _names(others))
    if fast := [node for node in real if node in kept_float and node not in lacking]:
        yield Note(NoteKind.CHOICE, f"{plural(len(fast), 'layer')} in float because integers are slower", _names(fast))
    if flagged := [node for node in real if node not in (tail - heads) | kept_float | lacking]:
        detail = f"{plural(len(flagged), 'layer')} in float: {_why_real(scheme, kept)}"
        yield Note(NoteKind.CHOICE, detail, _names(flagged))


def _why_real(scheme: Scheme, kept: Set[str]) -> str:
    """Say which tensors no grid can hold, and which are kept from it for the answer's sake."""
    told = {name: score for name, score in scheme.bad_db.items() if name not in kept}
    bad = [f"{name!r} {score:.1f} dB" for name, score in told.items() if score > NO_GRID_DB]
    endless = [repr(name) for name, score in told.items() if score <= NO_GRID_DB]
    asked = [repr(name) for name in scheme.bad_db if name in kept]
    said = [f"no scale holds infinity or NaN ({', '.join(endless[:3])})"] if endless else []
    said += [f"one scale cannot hold {plural(len(bad), 'tensor')} ({', '.join(bad[:3])})"] if bad else []
    said += [f"the answer suffers most from {plural(len(asked), 'tensor')} ({', '.join(asked[:3])})"] if asked else []
    return ", ".join(said)


def _names(nodes: list[Node]) -> str:
    shown = ", ".join(str(node.name) for node in nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"


def is_quantizable(model: Model, rules: Int8Rules) -> bool:
    """Whether the model has a layer that could run on integers."""
    return bool(candidates(Graph.from_model(model), rules))
