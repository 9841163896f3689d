"""Choose what runs on integers in one variant, and say why the rest does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.activations import SIMPLE
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB, Findings
from edgeopt.steps.quantize.forms import WRITERS, Form
from edgeopt.steps.quantize.grids.shared import share_grids
from edgeopt.steps.quantize.keep_float.islands import branch_island, red_tensors
from edgeopt.steps.quantize.patterns import (
    SAME_GRID,
    WEIGHTED,
    downstream,
    has_weights,
    head_tail,
    key,
    predictions,
    silu_sigmoid,
)
from edgeopt.steps.quantize.scheme import Scheme, candidates, integer_nodes
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.steps.quantize.spatial import is_pointwise
from edgeopt.system.declared.target import Int8Rules
from edgeopt.system.text import plural


def choose_scheme(graph: Graph, findings: Findings, rules: Int8Rules, variant: Variant) -> Scheme:
    """Return what runs on integers in a variant, and on which grids.

    A node that leaves the integers may leave what it reads to a grid that was not needed before: behind a
    convolution whose Relu has left, the sums get one. So tensors are judged again until no bad one is rounded.

    Args:
        graph: The float model.
        findings: Its grids and scores.
        rules: What INT8 form the target runs.
        variant: What stays float beside the tensors that score badly, and in which form integers are written.
    """
    writer = WRITERS[variant.form]
    known_db = findings.scores_by_rows_db(variant.least_db) if has_rows(rules, variant) else findings.scores_db
    scores_db = {**known_db, **dict.fromkeys(variant.forced, math.inf)}
    fast = _nodes(graph, variant.front)
    heads = _heads(graph, rules, variant.form)
    branches = branch_island(graph)
    off = _nodes(graph, findings.off_in(str(variant.form)))
    outside = head_tail(graph) | fast | branches | off | _without_integers(graph, rules, variant.form)
    bad = {name: scores_db[name] for name in variant.kept & scores_db.keys()}
    while True:
        island = writer.island(graph, bad.keys())
        scheme = Scheme(
            integer_nodes(graph, rules, outside | island),
            findings.affines,
            rules,
            bad_db=dict(sorted(bad.items(), key=lambda item: (item[1], item[0]))),
            options=variant.options,
            float_sums=frozenset(key(node) for node in heads - fast - island - branches - off),
        )
        others = red_tensors({name: score for name, score in scores_db.items() if name not in bad}, variant.least_db)
        rounded = others.keys() & {*writer.tensors(graph, scheme)} if others else set()
        if not rounded:
            break
        bad |= {name: others[name] for name in rounded}
    return replace(scheme, affines=share_grids(graph, scheme, findings.calibration.observations))


def has_rows(rules: Int8Rules, variant: Variant) -> bool:
    """Whether each row of what a product reads has a grid of its own."""
    return variant.form is Form.DYNAMIC and rules.grids_of_rows


def scales_in_words(rules: Int8Rules, variant: Variant) -> str:
    """Return the words for the scales that a tensor has in a variant."""
    return "a scale for each row" if has_rows(rules, variant) else "one scale"


def integer_share(graph: Graph, scheme: Scheme) -> Note:
    """Return how many of the layers with weights run on integers."""
    weighted = candidates(graph, scheme.rules)
    count = len(weighted) - len(_float_layers(graph, scheme))
    return Note(NoteKind.CHOICE, f"INT8 covers {count} of {plural(len(weighted), 'weighted layer')}")


def why_float(graph: Graph, scheme: Scheme, variant: Variant, off: Set[str] = frozenset()) -> Iterator[Note]:
    """Yield why layers with weights stay in float, one note for each reason.

    Args:
        graph: The float model.
        scheme: What `choose_scheme` returned.
        variant: Of which.
        off: Keys of the nodes that its form computes otherwise.
    """
    if not candidates(graph, scheme.rules):
        yield _without_layers(graph, scheme.rules)
    form, tail, layers = variant.form, head_tail(graph), _float_layers(graph, scheme)
    lacking, heads = _without_integers(graph, scheme.rules, form), _heads(graph, scheme.rules, form)
    fast, branches, wrong = _nodes(graph, variant.front), branch_island(graph), _nodes(graph, off)
    if wrong:
        text = f"{plural(len(wrong), 'operator')} in float, which the form {form} computes otherwise"
        yield Note(NoteKind.CHOICE, text, _names(sorted(wrong, key=key)))
    if last := [node for node in candidates(graph, scheme.rules) if node in tail]:
        outputs = f"the outputs of {plural(len(last), 'prediction layer')} stay in float"
        detail = f"{outputs}: one scale cannot hold boxes and scores"
        yield Note(NoteKind.CHOICE, detail, _names(last))
    if others := [node for node in layers if node in lacking]:
        detail = f"{_stay(others)} in float: the form {form} has integers for {WRITERS[form].only} only"
        yield Note(NoteKind.CHOICE, detail, _names(others))
    if faster := [node for node in layers if node in fast and node not in lacking]:
        detail = f"{_stay(faster)} in float because integers are slower there"
        yield Note(NoteKind.CHOICE, detail, _names(faster))
    if captured := [node for node in layers if node in branches - tail - fast - lacking]:
        detail = f"{_stay(captured)} in float: branches of If, bodies of Loop or Scan read what comes out"
        yield Note(NoteKind.CHOICE, detail, _names(captured))
    if spoiled := [node for node in layers if node not in (tail - heads) | fast | lacking | branches | wrong]:
        detail = f"{_stay(spoiled)} in float: {_why_tensors(scheme, variant)}"
        yield Note(NoteKind.CHOICE, detail, _names(spoiled))


def _without_layers(graph: Graph, rules: Int8Rules) -> Note:
    """Return why no layer of a model could run on integers."""
    layers = graph.nodes(*rules.ops)
    if not layers:
        return Note(NoteKind.CHOICE, f"the model has no layer that could run on integers ({', '.join(rules.ops)})")
    makers = [graph.producer(node.inputs[1]) for node in layers if len(node.inputs) > 1]
    ops = dict.fromkeys(maker.op_type for maker in makers if maker is not None and maker.op_type != "Constant")
    why = f"they come out of {', '.join(ops)}" if ops else "they are of another type or shape"
    detail = f"no weight of {plural(len(layers), 'layer')} is a constant in float32 that integers could hold: {why}"
    return Note(NoteKind.CHOICE, detail, _names(layers))


def _float_layers(graph: Graph, scheme: Scheme) -> list[Node]:
    weighted = candidates(graph, scheme.rules)
    return [node for node in weighted if not scheme.is_integer(node) and key(node) not in scheme.float_sums]


def _nodes(graph: Graph, keys: Set[str]) -> set[Node]:
    return {node for node in graph.nodes() if key(node) in keys}


def _without_integers(graph: Graph, rules: Int8Rules, form: Form) -> set[Node]:
    """Return the layers that a form would leave in float in any case."""
    layers = WRITERS[form].layers
    return set() if layers is None else set(candidates(graph, rules)) - {*layers(graph)}


def _heads(graph: Graph, rules: Int8Rules, form: Form) -> set[Node]:
    """Return the prediction layers that may read integers and make floats."""
    if form is not Form.NHWC:
        return set()
    last = feature_readers(graph)
    return {node for node in candidates(graph, rules) if node in last and is_pointwise(graph, node)}


def _why_tensors(scheme: Scheme, variant: Variant) -> str:
    """Say which tensors no scale can hold, and which are kept in float for the answer's sake."""
    kept, scales = variant.kept, scales_in_words(scheme.rules, variant)
    scores = {name: score for name, score in scheme.bad_db.items() if name not in kept}
    bad = [f"{name!r} {score:.1f} dB" for name, score in scores.items() if score > NO_GRID_DB]
    endless = [repr(name) for name, score in scores.items() if score <= NO_GRID_DB]
    asked = [repr(name) for name in scheme.bad_db if name in kept]
    said = [f"no scale holds infinity or NaN ({', '.join(endless[:3])})"] if endless else []
    said += [f"{scales} cannot hold {plural(len(bad), 'tensor')} ({', '.join(bad[:3])})"] if bad else []
    said += [f"the answer suffers most from {plural(len(asked), 'tensor')} ({', '.join(asked[:3])})"] if asked else []
    return "; ".join(said)


def _stay(layers: list[Node]) -> str:
    return f"{plural(len(layers), 'layer')} {'stays' if len(layers) == 1 else 'stay'}"


def _names(nodes: list[Node]) -> str:
    shown = ", ".join(str(node.name) for node in nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"


# Tell the prediction layers that read features from the layers behind them, which decode.

_ACTIVATIONS = (*SIMPLE, "Clip", "LeakyRelu", "HardSigmoid")


def feature_readers(graph: Graph) -> set[Node]:
    """Return the prediction layers of a many-headed model, without its decoder's layers.

    Rounding what a decoder reads would move boxes. Its layers read shares of a Softmax (the expected distance of
    distribution focal loss), or lie behind a prediction layer. Where only activations lie between, that one was the
    last feature layer, and those behind it are predictions too small to count as features.
    """
    behind = downstream(predictions(graph))
    weighted = [node for node in head_tail(graph) if node.op_type in WEIGHTED and has_weights(graph, node)]
    return {
        node
        for node in weighted
        if not _reads_shares(graph, node) and (node not in behind or _reads_features(graph, node))
    }


def _reads_shares(graph: Graph, node: Node) -> bool:
    """Whether a layer reads what a Softmax makes, moved or not."""
    maker = graph.producer(node.inputs[0])
    while maker is not None and maker.op_type in SAME_GRID:
        maker = graph.producer(maker.inputs[0])
    return maker is not None and maker.op_type == "Softmax"


def _reads_features(graph: Graph, node: Node) -> bool:
    """Whether nothing but an activation lies between a layer and the one before it."""
    source: Value | None = node.inputs[0]
    while (maker := graph.producer(source)) is not None and maker.op_type not in WEIGHTED:
        gate = silu_sigmoid(graph, maker)
        if gate is None and maker.op_type not in _ACTIVATIONS:
            return False
        source = (gate or maker).inputs[0]
    return maker is not None
