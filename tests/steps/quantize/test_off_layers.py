"""A layer that a form computes otherwise stays in float, and the rest is kept: faults are put into the writer here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from small_nets import HERE, Net, frames
from unoptimized import answers_here, error_ratio

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.formats import nhwc
from edgeopt.steps.quantize.search.attempt import SearchResult
from edgeopt.steps.quantize.search.off_layers import find_off_layers
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.variant import first_variant


def pyramid() -> Model:
    """Convolutions around a pool and a Resize."""
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    y = net.op("Relu", net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 16, 16, 3))
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "ceil"}
    large = net.op("Resize", y, "", scales, **how)
    joined = net.op("Relu", net.conv(net.op("Concat", x, large, axis=1), 32, 16, 3))
    return net.model(net.conv(joined, 16, 8), name="pyramid")


def searched(model: Model) -> SearchResult:
    inputs = list(frames(model, 4))
    expected = answers_here(model.data, inputs)

    def agreement(made: Model) -> float:
        session = EXECUTOR.open(made.source, SessionOptions())
        answers = [dict(session.run(one)) for one in inputs]
        session.close()
        return max(0.0, 1 - error_ratio(expected, answers))

    return search_int8(
        model, inputs, HERE, agreement=agreement, speed=lambda _: 1.5, forms=(Form.NHWC,), time_limit_s=4.0
    )


def shifted(written: Any) -> Any:
    """Attributes as the writer has them, but a Resize that takes the pixel above."""

    def other(node: Any, names: Any) -> Mapping[str, Any]:
        found = dict(written(node, names))
        return found | {"nearest_mode": "floor"} if node.op_type == "Resize" else found

    return other


def refused(written: Any) -> Any:
    """Attributes as the writer has them, but a pool whose window the engine refuses."""

    def other(node: Any, names: Any) -> Mapping[str, Any]:
        found = dict(written(node, names))
        return found | {"kernel_shape": (2,)} if node.op_type == "MaxPool" else found

    return other


@pytest.mark.parametrize(
    ("fault", "op", "named"),
    [(shifted, "Resize", {"node_resize_5", "node_concat_6"}), (refused, "MaxPool", {"node_maxpool_2"})],
)
def test_the_operator_that_is_off_stays_in_float_and_the_rest_on_integers(
    fault: Any, op: str, named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what reads it, without which it is not written."""
    monkeypatch.setattr(nhwc, "written", fault(nhwc.written))
    found = searched(pyramid())
    best = next(one for one in found.attempts if "for speed" not in one.name)  # as that hangs on times
    assert best.agreement > 0.9
    counts = best.outcome.model.op_counts
    assert counts[op] == 1
    assert counts["QLinearConv"] + counts.get("MatMulIntegerToFloat", 0) == 4
    (note,) = [one for one in best.outcome.notes if "computes otherwise" in one.detail]
    assert note.detail == "1 operator in float, which the form nhwc computes otherwise"
    assert note.hint in named


def test_a_form_that_is_right_is_not_looked_into() -> None:
    model = pyramid()
    inputs = list(frames(model, 2))
    findings = study(model, open_graph(model), inputs, HERE)
    for form in Form:
        assert find_off_layers(model, findings, HERE, first_variant(form), inputs) == frozenset()


def test_what_few_layers_do_not_mend_stays_as_it_is() -> None:
    model = pyramid()
    inputs = list(frames(model, 2))
    findings = study(model, open_graph(model), inputs, HERE)
    found = find_off_layers(model, findings, HERE, first_variant(Form.NHWC), inputs, runs=lambda _: False)
    assert found == frozenset()
