"""Whatever opset a model has: what is written into it is valid there, and means the same."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from onnx import version_converter
from small_nets import ALL, Net, answers, frames

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import Findings, study
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()
BUILT_AT = 17
OPSETS = (13, 18, 20, 21, 23)
YOUNGER = {"squeeze_excite": 14, "vision_transformer": 17}
"""Families with an op that opset 13 does not know, and the opset that brought it."""


def classifier() -> Model:
    """A global pool between integer layers, as every classifier has it."""
    net = Net()
    x = net.op("Relu", net.conv(net.op("Relu", net.conv("x", 3, 16, 3)), 16, 32, 3))
    pooled = net.op("Flatten", net.op("GlobalAveragePool", x))
    w = net.constant("fc_w", net.chance.normal(0, 0.2, (1000, 32)).astype(np.float32))
    return net.model(net.op("Gemm", pooled, w, net.constant("fc_b", np.zeros(1000, np.float32)), transB=1))


def enlarged() -> Model:
    """A Resize that no copy of whole pixels can stand for."""
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    x = net.op("Resize", x, "", net.constant("scales", np.array([1, 1, 1.5, 1.5], np.float32)), mode="nearest")
    return net.model(net.conv(net.op("Relu", net.conv(x, 16, 16, 3)), 16, 8))


FAMILIES = {**ALL, "classifier": classifier, "enlarged": enlarged}
CASES = [(name, opset) for name in FAMILIES for opset in OPSETS if opset >= YOUNGER.get(name, 0)]


@cache
def known(name: str) -> tuple[Model, Findings]:
    """The family as it is built, and what calibration says of it: names stay the same whatever the opset."""
    model = FAMILIES[name]()
    return model, study(model, open_graph(model), frames(model), RULES)


@cache
def answers_as_built(name: str, form: Form) -> np.ndarray:
    model, findings = known(name)
    return answers(make_variant(model, findings, RULES, first_variant(form))[0].model, model)


def at_opset(model: Model, opset: int) -> Model:
    """The model at another opset; down to 13 no op of these families changed its signature."""
    if opset > BUILT_AT:
        return Model(version_converter.convert_version(model.proto, opset), model.name)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.opset_import[0].version = opset
    onnx.checker.check_model(proto)
    return Model(proto, model.name)


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC, Form.INPUTS])
@pytest.mark.parametrize(("name", "opset"), CASES)
def test_the_answer_does_not_depend_on_the_opset(name: str, opset: int, form: Form) -> None:
    model, findings = known(name)
    moved = at_opset(model, opset)
    assert moved.opset == opset != BUILT_AT
    made = make_variant(moved, findings, RULES, first_variant(form))[0].model
    onnx.checker.check_model(made.proto)
    expected = answers_as_built(name, form)
    np.testing.assert_allclose(answers(made, model), expected, atol=0.02 * np.abs(expected).max())
