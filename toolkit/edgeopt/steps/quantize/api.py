"""Quantize a model in one form, without a search: calibrate, choose, repair, write."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB
from edgeopt.steps.quantize.scheme import candidates, open_graph
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Int8Rules

__all__ = ["Form", "is_quantizable", "open_graph", "quantize"]


def quantize(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    form: Form = Form.QDQ,
    method: Method = FIRST_METHOD,
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
    findings = study(model, open_graph(model), calibration_inputs, rules, method=method, progress=progress)
    return make_variant(model, findings, rules, Variant(form, least_db=least_db))[0]


def is_quantizable(model: Model, rules: Int8Rules) -> bool:
    """Whether the model has a layer that could run on integers."""
    return bool(candidates(Graph.from_model(model), rules))
