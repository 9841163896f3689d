"""Quick INT8 forms, fit to be timed and not to be kept: of single layers, and of whole models."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.errors import EdgeoptError
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.grids.affine import Affine, make_affine
from edgeopt.steps.quantize.integer_types import confirmed_rules
from edgeopt.steps.quantize.patterns import LIMITERS
from edgeopt.steps.quantize.scheme import Scheme, candidates, integer_nodes, watched
from edgeopt.system.declared.target import Int8Rules, Target

_REACH = 4.0
"""Numbers of the normal distribution, and what layers of unit gain make of them, lie within."""


def integer_layers(model: Model, target: Target) -> Model:
    """Return branches of layers on integers by a target's rules; nothing is calibrated.

    Args:
        model: Float layers side by side, opset 13 or later, fed with numbers of mean 0 and deviation 1.
        target: Whose rules hold.

    Raises:
        UnsupportedError: If the opset is too old.
    """
    rules, form = _rules_and_form(target)
    graph = open_graph(model)
    takes = WRITERS[form].layers
    kept = set() if takes is None else set(candidates(graph, rules)) - {*takes(graph)}
    affines = {name: _grid(graph, value, rules) for name, value in watched(graph, rules).items()}
    WRITERS[form].place(graph, Scheme(integer_nodes(graph, rules, kept), affines, rules))
    return graph.to_model()


def integer_model(model: Model, inputs: Sequence[Tensors], target: Target) -> Model:
    """Return a model's first INT8 form by a target's rules, or the model itself where it has none.

    Args:
        model: Float.
        inputs: A few real ones.
        target: Whose rules hold.
    """
    rules, form = _rules_and_form(target)
    try:
        return quantize(model, iter(inputs), rules, form=form).model
    except EdgeoptError:  # what cannot be quantized will run in float
        return model


def _rules_and_form(target: Target) -> tuple[Int8Rules, Form]:
    rules, _ = confirmed_rules(target)
    return rules, Form.NHWC if Form.NHWC in rules.forms else Form(rules.forms[0])


def _grid(graph: Graph, value: Value, rules: Int8Rules) -> Affine:
    maker, reader = graph.producer(value), graph.sole_consumer(value)
    is_limited = any(node is not None and node.op_type in LIMITERS for node in (maker, reader))
    low = 0.0 if is_limited else -_REACH
    return make_affine(
        low,
        _REACH,
        rules.activation_dtype,
        symmetric=rules.symmetric_activations,
        power_of_two=rules.power_of_two_scales,
    )
