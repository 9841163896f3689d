"""The table names the tensors that the placed graph rounds, for every form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
from small_nets import ALL, Net, frames

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import Findings, study
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.patterns import LIMITERS, key, name_of
from edgeopt.steps.quantize.scheme import NhwcOptions, Scheme
from edgeopt.steps.quantize.search.choose import choose_scheme
from edgeopt.steps.quantize.search.variant import DIRECT_SUMS, Variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()
WAYS = [
    Variant(Form.QDQ),
    Variant(Form.INPUTS),
    Variant(Form.NHWC),
    Variant(Form.NHWC, NhwcOptions(direct_up_to=DIRECT_SUMS)),
    Variant(Form.NHWC, NhwcOptions(integer_silu=True)),
]
_MAKES_INTEGERS = re.compile(
    r"(.+?)(?:_transpose)?_(?:quantize|QLinearConv|QLinearSigmoid|QLinearMul|NhwcMaxPool)(_\d+)?"
)


@cache
def known(name: str) -> tuple[Model, Findings]:
    model = ALL[name]()
    return model, study(model, open_graph(model), frames(model), RULES)


def chosen(name: str, variant: Variant) -> tuple[Graph, Scheme, set[str]]:
    model, findings = known(name)
    graph = open_graph(model)
    scheme = choose_scheme(graph, findings, RULES, variant)
    return graph, scheme, {*WRITERS[variant.form].tensors(graph, scheme)}


@pytest.mark.parametrize("variant", WAYS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_no_form_needs_the_grid_of_another_tensor(name: str, variant: Variant) -> None:
    graph, scheme, said = chosen(name, variant)
    assert said
    WRITERS[variant.form].place(graph, replace(scheme, affines={one: scheme.affines[one] for one in said}))


def with_the_limiter_that_is_left(source: Graph, names: Iterable[str]) -> set[str]:
    """Call what a convolution makes by the name of its Relu or Clip, which may be part of it."""
    found = set()
    for name in names:
        value = source.value(name)
        reader = source.sole_consumer(value) if value is not None else None
        found.add(key(reader) if reader is not None and reader.op_type in LIMITERS else name)
    return found


@pytest.mark.parametrize("variant", [one for one in WAYS if one.form is Form.NHWC], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_nodes_that_make_integers_are_those_of_the_tensors_said_to_be_rounded(name: str, variant: Variant) -> None:
    graph, scheme, said = chosen(name, variant)
    source = open_graph(known(name)[0])
    WRITERS[Form.NHWC].place(graph, scheme)
    matches = (_MAKES_INTEGERS.fullmatch(str(node.name)) for node in graph.nodes())
    made = {match[1] for match in matches if match}
    moved = {name_of(node.outputs[0]) for node in source.nodes("Concat", "Resize", "Identity")}
    assert with_the_limiter_that_is_left(source, made) - said <= moved
    assert with_the_limiter_that_is_left(source, said - moved) <= with_the_limiter_that_is_left(source, made)


def test_learning_what_is_rounded_leaves_the_graph_as_it_is() -> None:
    graph, scheme, _ = chosen("detector", WAYS[2])
    before = graph.to_model().proto.SerializeToString()
    {*WRITERS[Form.NHWC].tensors(graph, scheme)}
    assert graph.to_model().proto.SerializeToString() == before


def test_with_integer_silu_the_gate_is_rounded_too_and_otherwise_it_is_not() -> None:
    net = Net()
    model = net.model(net.conv(net.silu(net.conv(net.silu(net.conv("x", 3, 16, 3)), 16, 16, 3)), 16, 8))
    findings = study(model, open_graph(model), frames(model), RULES)
    graph, gates = open_graph(model), {"sigmoid_1", "sigmoid_4"}
    for options in (NhwcOptions(), NhwcOptions(integer_silu=True)):
        scheme = choose_scheme(graph, findings, RULES, Variant(Form.NHWC, options))
        assert gates & {*WRITERS[Form.NHWC].tensors(graph, scheme)} == (gates if options.integer_silu else set())
