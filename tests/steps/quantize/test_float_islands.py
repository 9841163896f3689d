"""A tensor that no grid can hold stays in float, with all that would be rounded in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_nets import Net, frames, sqnr_db

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import Findings, study
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.search.choose import choose_scheme, why_float
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import Variant, first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()
STATIC = [Form.QDQ, Form.NHWC, Form.INPUTS]


def spread_channels(net: Net, x: str, spread: np.ndarray) -> str:
    """A 3x3 convolution whose output channels differ by orders of magnitude."""
    made = net.conv(x, 16, spread.size, 3)
    weight, bias = [*net.weights][-2:]
    net.weights[weight] = net.weights[weight] * spread.reshape(-1, 1, 1, 1)
    net.weights[bias] = net.weights[bias] * spread
    return made


def uneven(activation: str) -> tuple[Model, str, str]:
    """A network in which one activation's channels differ, and a depthwise layer makes them alike again."""
    net = Net()
    spread = np.geomspace(0.03, 300, 32, dtype=np.float32)
    sums = spread_channels(net, net.op("Relu", net.conv("x", 3, 16, 3)), spread)
    limits = [net.constant("low", np.float32(0)), net.constant("high", np.float32(1e4))] if activation == "Clip" else []
    bad = net.op(activation, sums, *limits)
    x = net.conv(bad, 32, 32, 3, depthwise=True)
    net.weights[[*net.weights][-2]] /= spread.reshape(-1, 1, 1, 1)
    x = net.op("Relu", net.conv(net.op("Relu", x), 32, 32, 3))
    return net.model(net.conv(x, 32, 8)), sums, bad


def studied(model: Model) -> Findings:
    return study(model, open_graph(model), frames(model), RULES)


@pytest.mark.parametrize("form", STATIC)
@pytest.mark.parametrize("activation", ["Relu", "Clip", "LeakyRelu"])
def test_a_bad_tensor_leaves_no_bad_one_behind_that_is_rounded_in_its_place(activation: str, form: Form) -> None:
    model, sums, bad = uneven(activation)
    findings = studied(model)
    assert max(findings.scores_db[sums], findings.scores_db[bad]) < LEAST_DB
    graph = open_graph(model)
    scheme = choose_scheme(graph, findings, RULES, first_variant(form))
    rounded = {*WRITERS[form].tensors(graph, scheme)}
    assert [name for name in rounded if findings.scores_db[name] < LEAST_DB] == []
    made = make_variant(model, findings, RULES, first_variant(form))[0]
    assert sqnr_db(made.model, model) > 20
    said = " ".join(note.detail for note in made.notes)
    assert f"{bad!r} 3.0 dB" in said
    if form is not Form.INPUTS:  # that form rounds no sums
        assert "INT8 covers 3 of 5 weighted layers" in said
        assert "2 layers stay in float: one scale cannot hold 2 tensors" in said
        assert f"{sums!r} 3.0 dB" in said


def kept_layers(model: Model, findings: Findings, variant: Variant) -> tuple[list[str], str]:
    graph = open_graph(model)
    scheme = choose_scheme(graph, findings, RULES, variant)
    layers = [key(node) for node in graph.nodes("Conv") if not scheme.is_integer(node)]
    return layers, " ".join(note.detail for note in why_float(graph, scheme, variant))


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
def test_a_tensor_that_is_kept_stays_real_although_an_activation_would_be_rounded_in_its_place(form: Form) -> None:
    net = Net()
    sums = net.conv(net.op("Relu", net.conv("x", 3, 16, 3)), 16, 16, 3)
    model = net.model(net.conv(net.op("Relu", net.conv(net.op("Relu", sums), 16, 16, 3)), 16, 8))
    findings, variant = studied(model), first_variant(form)
    assert kept_layers(model, findings, variant)[0] == []
    layers, said = kept_layers(model, findings, replace(variant, kept=frozenset({sums})))
    assert layers == [sums]
    assert f"1 layer stays in float: the answer suffers most from 1 tensor ({sums!r})" in said
    assert "one scale cannot hold" not in said


def test_a_tensor_that_is_forced_onto_its_grid_is_rounded_whatever_its_score() -> None:
    model, sums, bad = uneven("Relu")
    variant = replace(first_variant(Form.NHWC), forced=frozenset({sums, bad}))
    assert kept_layers(model, studied(model), variant)[0] == []
