from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_nets import HERE, Net, frames

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.formats._float_guards import guard_float_layers
from edgeopt.steps.quantize.inspection.engine_fusion import read_fusion
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = replace(HERE, forms=("qdq", "nhwc"))


def straight(limit: str = "Relu") -> Model:
    """Five convolutions in a row; the channels of the third have weights of very different size."""
    net, x = Net(), "x"
    for i, fan in enumerate((3, 16, 16, 16)):
        x = net.conv(x, fan, 16, 3)
        if i == 2:
            weight = [*net.weights][-2]
            net.weights[weight] = net.weights[weight] * np.geomspace(0.1, 1, 16, dtype=np.float32).reshape(-1, 1, 1, 1)
        if limit == "Clip":
            x = net.op("Clip", x, net.constant(f"low{i}", np.float32(0)), net.constant(f"high{i}", np.float32(1)))
        elif limit:
            x = net.op(limit, x)
    return net.model(net.conv(x, 16, 8))


def third_in_float(model: Model, form: Form, rules: Int8Rules = RULES) -> Model:
    seen = list(frames(model))
    findings = study(model, open_graph(model), seen, rules)
    middle = key(open_graph(model).nodes("Conv")[2])
    return make_variant(model, findings, rules, replace(first_variant(form), front=frozenset({middle})))[0].model


def answer(model: Model, *, optimized: bool) -> np.ndarray:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, frame)[0] for frame in frames(straight(), 3, seed=9)])


def difference_db(model: Model) -> float:
    """How far the engine's optimized graph is from what the file says."""
    said, done = answer(model, optimized=False), answer(model, optimized=True)
    return float(10 * np.log10(np.square(said).sum() / max(np.square(said - done).sum(), 1e-12)))


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
@pytest.mark.parametrize("limit", ["Relu", "Clip", ""])
def test_a_layer_left_in_float_runs_in_float(limit: str, form: Form) -> None:
    counts = read_fusion(third_in_float(straight(limit), form)).op_counts
    assert counts["QLinearConv"] == 4
    assert counts.get("Conv", 0) + counts.get("FusedConv", 0) == 1
    assert not {"LeakyRelu", "Relu", "Clip"} & counts.keys()  # in the convolution's kernel, or in the grid's ends


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
@pytest.mark.parametrize("limit", ["Relu", "Clip", ""])
def test_the_engine_computes_what_the_file_says(limit: str, form: Form) -> None:
    assert difference_db(third_in_float(straight(limit), form)) > 60


def test_without_it_the_engine_rounds_the_layer_with_one_scale() -> None:
    made = third_in_float(straight(), Form.QDQ, HERE)  # for another engine: no op is added
    assert "LeakyRelu" not in made.op_counts
    assert read_fusion(made).op_counts["QLinearConv"] == 5
    assert difference_db(made) < difference_db(third_in_float(straight(), Form.QDQ)) - 10


def guarded(text: str) -> dict[str, int]:
    proto = onnx.parser.parse_model(text)
    graph = Graph.from_model(Model(proto, "net"))
    graph.infer_shapes()
    guard_float_layers(graph)
    return dict(graph.to_model().op_counts)


def pair_around(body: str, high: float = 6.0) -> str:
    weight = ", ".join(["0.5"] * 4)
    return f"""<ir_version: 8, opset_import: ["": 17]> net (float[1,2,4,4] x) => (float[1,2,4,4] y)
    <float s = {{0.1}}, uint8 o = {{128}}, float r = {{{high / 255}}}, uint8 n = {{0}}, float[2,2,1,1] w = {{{weight}}},
     float low = {{0}}, float high = {{6}}> {{
        a = QuantizeLinear (x, s, o) b = DequantizeLinear (a, s, o) c = Conv (b, w)
        {body}
        y = DequantizeLinear (f, r, n)
    }}"""


def test_a_limit_in_the_ends_of_the_grid_goes_and_another_stays() -> None:
    clipped = "d = Clip (c, low, high) f = QuantizeLinear (d, r, n)"
    assert "Clip" not in guarded(pair_around(clipped))
    wide = guarded(pair_around(clipped, high=9.0))
    assert (wide["Clip"], wide["LeakyRelu"]) == (1, 1)


def test_what_no_pair_encloses_is_left() -> None:
    assert "LeakyRelu" not in guarded(pair_around("d = Sigmoid (c) f = QuantizeLinear (d, r, n)"))
    assert guarded(pair_around("d = Identity (c) f = QuantizeLinear (d, r, n)"))["LeakyRelu"] == 1
