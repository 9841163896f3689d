"""Find the layers that a form computes otherwise than its integers say, so that the rest of it is kept.

A form that agrees badly may be rounded too coarsely, which other proposals mend. Or what is written does something
else than the float model: an op has an attribute that nobody thought of, or the engine refuses a node. Then pairs of
QuantizeLinear and DequantizeLinear on the same grids, computed node by node, are far nearer to the float model. The
layers are halved until the first is found with which the form is off; that one stays in float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.findings import Findings
from edgeopt.steps.quantize.forms import WRITERS, Form
from edgeopt.steps.quantize.patterns import WEIGHTED, key
from edgeopt.steps.quantize.scheme import Scheme, open_graph
from edgeopt.steps.quantize.search.choose import choose_scheme
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Int8Rules

_FRAMES = 2
_MOST_LAYERS, _MOST_BEFORE = 3, 8
_WORSE, _NOISE = 3.0, 0.05
"""A form is off where its error over the signal is so many times that of pairs, and more than this above it."""


def find_off_layers(
    model: Model,
    findings: Findings,
    rules: Int8Rules,
    variant: Variant,
    frames: Sequence[Tensors],
    *,
    runs: Callable[[Model], bool] | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> frozenset[str]:
    """Return the keys of the layers with which a variant is off; empty where it is not, or few layers do not mend it.

    Args:
        model: The float model that the variant is made of.
        findings: Its grids; layers that are known to be off stay in float.
        rules: What INT8 form the target runs.
        variant: What agrees badly, or does not run.
        frames: A few real inputs.
        runs: Whether the target's engine runs a model; None: the numbers are judged.
        may_go_on: Whether there is time for one more form.
    """
    judged = _Numbers(model, findings, rules, variant, frames[:_FRAMES]) if runs is None else None

    def is_off(in_float: frozenset[str]) -> bool:
        scheme = _scheme(model, findings, rules, variant, in_float)
        made = _written(model, scheme, variant.form)
        return judged.is_off(made) if judged is not None else runs is not None and not runs(made)

    def left_by(in_float: frozenset[str]) -> int:
        return len(_scheme(model, findings, rules, variant, in_float).integer)

    off_layers: frozenset[str] = frozenset()
    order = _integer_nodes(model, _scheme(model, findings, rules, variant, off_layers))
    while is_off(off_layers):
        if len(off_layers) == _MOST_LAYERS or not may_go_on():
            return frozenset()
        culprit = _first_off(order, off_layers, is_off, may_go_on)
        if not culprit or culprit in off_layers:
            return frozenset()
        before = [name for name in _before(model, culprit) if name in order]
        mended = [name for name in (culprit, *before) if may_go_on() and not is_off(off_layers | {name})]
        off_layers |= {max(mended, key=lambda name: left_by(off_layers | {name}), default=culprit)}
    return off_layers


def _first_off(
    order: Sequence[str],
    found: frozenset[str],
    is_off: Callable[[frozenset[str]], bool],
    may_go_on: Callable[[], bool],
) -> str:
    """Return the first node with which the form is off, all behind it in float; empty where the time is over."""
    right, off = 0, len(order)
    while off - right > 1:
        if not may_go_on():
            return ""
        middle = (right + off) // 2
        if is_off(found | {*order[middle:]}):
            off = middle
        else:
            right = middle
    return order[off - 1] if order else ""


def _before(model: Model, culprit: str) -> list[str]:
    """Return the ops without weights in front of a layer, the nearest first.

    Such an op runs on integers only where a layer behind it does, so that layer is found in its place.
    """
    start = next((node for node in open_graph(model).nodes() if key(node) == culprit), None)
    result: list[str] = []
    seen: set[str] = set()
    ahead = [*start.predecessors()] if start is not None else []
    while ahead and len(result) < _MOST_BEFORE:
        node = ahead.pop(0)
        if node is None or key(node) in seen:
            continue
        seen.add(key(node))
        result += [key(node)] if node.op_type not in WEIGHTED else []
        ahead += node.predecessors()
    return result


class _Numbers:
    """How far a form is from the float model, and how far it may be: both run node by node."""

    def __init__(
        self, model: Model, findings: Findings, rules: Int8Rules, variant: Variant, frames: Sequence[Tensors]
    ) -> None:
        self._model, self._frames = model, frames
        self._expected = _answers(model, frames)
        pairs = _written(model, _scheme(model, findings, rules, variant, frozenset()), Form.QDQ)
        self._most = _WORSE * self._error(pairs) + _NOISE

    def is_off(self, made: Model) -> bool:
        """Whether a form is farther from the float model than pairs on its grids allow."""
        try:
            return not self._error(made) <= self._most
        except Exception:  # the engine refuses what was written
            return True

    def _error(self, made: Model) -> float:
        """Return the worst error over signal, root mean square, of all outputs; infinite where one is lost."""
        actual = _answers(made, self._frames)
        return max(
            _error_ratio(arrays[name], other[name])
            for arrays, other in zip(self._expected, actual, strict=True)
            for name in arrays
        )


def _error_ratio(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    if expected.shape != actual.shape or expected.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return float("inf")
    x, y = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    noise, signal = float(np.linalg.norm(x - y)), float(np.linalg.norm(x))
    return noise / signal if signal else float(noise > 0)


def _answers(model: Model, frames: Sequence[Tensors]) -> list[Tensors]:
    session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    try:
        return [session.run(frame) for frame in frames]
    finally:
        session.close()


def _scheme(model: Model, findings: Findings, rules: Int8Rules, variant: Variant, in_float: frozenset[str]) -> Scheme:
    """Return what runs on integers with more layers in float; weights are rounded to nearest, which is quick."""
    off = {**findings.off, str(variant.form): findings.off_in(str(variant.form)) | in_float}
    return choose_scheme(open_graph(model), replace(findings, off=off), rules, variant)


def _written(model: Model, scheme: Scheme, form: Form) -> Model:
    graph = open_graph(model)
    WRITERS[form].place(graph, scheme)
    return graph.to_model()


def _integer_nodes(model: Model, scheme: Scheme) -> list[str]:
    graph: Graph = open_graph(model)
    return [key(node) for node in graph.nodes() if scheme.is_integer(node) or key(node) in scheme.float_sums]
