"""Smooth activations become what an engine computes inside the layer before; what is written is what was fitted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.facts.scaled import scaled_tensors
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.activations.fit import fit_all, keep_worst, place
from edgeopt.steps.activations.forms import all_forms
from edgeopt.steps.activations.readers import reaches
from edgeopt.steps.activations.sites import find_sites
from edgeopt.steps.activations.step import replace_activations
from edgeopt.steps.quantize.api import quantize
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.quantize.forms import Form as Int8Form
from edgeopt.system.declared.target import Int8Rules

FORMS = all_forms()


class Net:
    """Nodes in order, with weights by name; SiLU unless an activation says otherwise."""

    def __init__(self, shape: tuple[int, ...] = (1, 3, 8, 8), seed: int = 0) -> None:
        self.chance, self.shape = np.random.default_rng(seed), shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def op(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        made = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], name=made, domain=domain, **attributes))
        return made

    def constant(self, value: object) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, np.float32)
        return name

    def conv(self, x: str, fan: int, out: int, kernel: int = 1, group: int = 1, pad: bool = True) -> str:
        shape = (out, fan // group, kernel, kernel)
        weight = self.constant(self.chance.normal(0, 1.5 / np.sqrt(np.prod(shape[1:])), shape))
        bias = self.constant(self.chance.normal(0, 0.3, out))
        return self.op("Conv", x, weight, bias, group=group, pads=[kernel // 2 if pad else 0] * 4)

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def model(self, *outputs: str, opset: int = 17) -> Model:
        made = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        proto = onnx.shape_inference.infer_shapes(helper.make_model(made, opset_imports=opsets, ir_version=9))
        return Model(proto, "net")

    def inputs(self, count: int = 6) -> list[dict[str, np.ndarray]]:
        chance = np.random.default_rng(7)
        return [{"x": chance.normal(0, 1, self.shape).astype(np.float32)} for _ in range(count)]


def plain() -> tuple[Net, str]:
    net = Net()
    y = net.silu(net.conv("x", 3, 8, 3))
    return net, net.conv(y, 8, 4)


def padded() -> tuple[Net, str]:
    net = Net()
    y = net.silu(net.conv("x", 3, 8))
    return net, net.conv(net.silu(net.conv(y, 8, 8, 3, group=8)), 8, 4)


def residual() -> tuple[Net, str]:
    net = Net()
    x = net.silu(net.conv("x", 3, 8))
    for _ in range(2):
        x = net.op("Add", x, net.silu(net.conv(net.silu(net.conv(x, 8, 8)), 8, 8, 3)))
    return net, net.conv(x, 8, 4)


def joined() -> tuple[Net, str]:
    net = Net()
    a, b = net.silu(net.conv("x", 3, 4)), net.silu(net.conv("x", 3, 6, 3))
    pooled = net.op("MaxPool", a, kernel_shape=[3, 3], pads=[1] * 4)
    both = net.op("Concat", b, pooled, a, axis=1)
    return net, net.conv(both, 14, 4, 3, group=2)


def resized() -> tuple[Net, str]:
    net = Net()
    y = net.silu(net.conv("x", 3, 8))
    scales = net.constant([1, 1, 2, 2])
    return net, net.conv(net.op("Resize", y, "", scales, mode="nearest"), 8, 4)


def not_taken_over() -> tuple[Net, str]:
    """A Softmax takes no gain over, and neither does a sum with what is no activation."""
    net = Net()
    x = net.conv("x", 3, 8)
    y = net.silu(net.conv(x, 8, 8))
    return net, net.op("Softmax", net.op("Add", y, x), axis=1)


def transformer() -> tuple[Net, str]:
    net = Net((1, 10, 16))
    x = net.op(
        "Add", net.op("MatMul", "x", net.constant(net.chance.normal(0, 0.5, (16, 24)))), net.constant(np.ones(24))
    )
    error = net.op("Erf", net.op("Div", x, net.constant(2**0.5)))
    y = net.op("Mul", net.op("Mul", x, net.op("Add", error, net.constant(1))), net.constant(0.5))
    return net, net.op("MatMul", y, net.constant(net.chance.normal(0, 0.3, (24, 16))))


NETS = (plain, padded, residual, joined, resized, not_taken_over, transformer)


def seen_of(model: Model, net: Net):
    axes = {site.x.name: site.axis for site in find_sites(Graph.from_model(model)).sites}
    return calibrate(model, net.inputs(), axes, processes=1).observations


def run(model: Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    try:
        return np.asarray(next(iter(session.run(inputs).values())), np.float64)
    finally:
        session.close()


def written_out(model: Model, fitted, op: str) -> Model:
    """The same model with all four numbers of each fit computed where the activation was, nothing moved."""
    graph = Graph.from_model(model)
    for one in fitted:
        site = next(site for site in find_sites(graph).sites if site.name == one.name)
        shape = [-1 if i == site.axis else 1 for i in range(graph.rank(site.x) or 4)]
        x = site.x
        for what, numbers in (("Mul", one.fit.slope), ("Add", one.fit.shift)):
            number = graph.add_initializer(f"{one.name}_{what}", numbers.reshape(shape).astype(np.float32))
            x = graph.insert(what, [x, number], before=site.node).outputs[0]
        floor = graph.add_initializer("floor", np.array(one.fit.floor, np.float32))
        inputs = [x, floor] if op == "Clip" else [x]
        z = graph.insert(op, inputs, before=site.node)
        y = z.outputs[0]
        for what, numbers in (("Mul", one.fit.gain), ("Add", one.fit.offset)):
            number = graph.add_initializer(f"{one.name}_{what}_behind", numbers.reshape(shape).astype(np.float32))
            y = graph.insert(what, [y, number], before=site.node).outputs[0]
        graph.bypass(site.node, keep=y)
    graph.remove_unused()
    return graph.to_model()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_what_layers_take_over_computes_the_same(build, form):
    net, y = build()
    model = net.model(y)
    fitted = fit_all(Graph.from_model(model), seen_of(model, net), form)
    assert fitted
    placed = place(model, fitted, form)
    onnx.checker.check_model(placed.proto)
    assert not {"Sigmoid", "Erf"} & {*placed.op_counts}
    added = placed.op_counts.get("Add", 0) - model.op_counts.get("Add", 0)
    assert added <= (build is transformer)  # the offset of a product without a bias
    for inputs in net.inputs(3):
        wanted = run(written_out(model, fitted, form.op), inputs)
        assert np.allclose(run(placed, inputs), wanted, atol=1e-4 * max(np.abs(wanted).max(), 1))


@pytest.mark.parametrize("build", [plain, transformer], ids=lambda build: build.__name__)
def test_a_parabola_is_closer_than_a_line_and_both_are_close(build):
    net, y = build()
    model = net.model(y)
    seen, wanted = seen_of(model, net), [run(model, one) for one in net.inputs()]
    spread = float(np.var(wanted))
    lost = {}
    for name, form in FORMS.items():
        placed = place(model, fit_all(Graph.from_model(model), seen, form), form)
        apart = [run(placed, one) - right for one, right in zip(net.inputs(), wanted, strict=True)]
        lost[name] = float(np.mean(np.square(apart))) / spread
    assert lost["hard_swish"] < lost["line"] < 0.15
    assert lost["hard_swish"] < 0.02


def test_activations_that_are_added_have_one_gain_and_are_kept_together():
    net, y = residual()
    model = net.model(y)
    graph = Graph.from_model(model)
    sites = find_sites(graph).sites
    reach = reaches(graph, sites)
    tied = {one.name: reach[one.name].tied for one in sites}
    assert sorted(map(len, tied.values())) == [1, 1, 3, 3, 3]
    fitted = fit_all(graph, seen_of(model, net), FORMS["hard_swish"])
    for share in (0.0, 0.2, 0.4, 0.6, 1.0):
        kept = {one.name for one in keep_worst(fitted, share)}
        assert all(set(tied[name]) <= kept for name in kept)
        assert sum(one.elements for one in fitted if one.name not in kept) <= share * sum(
            one.elements for one in fitted
        )


def test_every_activation_is_found_in_every_form_and_refusals_have_reasons():
    net = Net()
    x = net.conv("x", 3, 4)
    softplus = net.op("Mul", (b := net.conv(x, 4, 4)), net.op("Tanh", net.op("Softplus", b)))
    kinds = [softplus, net.silu(net.conv(x, 4, 4)), net.op("HardSwish", net.conv(x, 4, 4))]
    kinds.append(net.op("QuickGelu", net.conv(x, 4, 4), domain="com.microsoft", alpha=1.0))
    kinds += [net.op(op, net.conv(x, 4, 4)) for op in ("Mish", "Gelu")]
    shared = net.silu(x)  # many others read x too
    given = net.silu("x")
    found = find_sites(Graph.from_model(net.model(*kinds, shared, given, opset=20)))
    assert [one.kind for one in found.sites] == ["Mish", "SiLU", "HardSwish", "QuickGelu", "Mish", "Gelu"]
    assert dict(found.refused) == {shared: "what it reads is read elsewhere too", given: "an input of the model"}
    values = np.linspace(-4, 4, 9)
    for one in found.sites:
        wanted = {"HardSwish": values * np.clip(values / 6 + 0.5, 0, 1)}.get(one.kind)
        assert one.function(values)[-1] == pytest.approx(4, abs=0.1)
        assert wanted is None or np.allclose(one.function(values), wanted)


def test_training_is_told_which_tensors_are_scaled():
    net, y = plain()
    model = net.model(y)
    site = find_sites(Graph.from_model(model)).sites[0]
    placed = place(
        model, fit_all(Graph.from_model(model), seen_of(model, net), FORMS["hard_swish"]), FORMS["hard_swish"]
    )
    assert scaled_tensors(placed) == {site.name}
    assert not scaled_tensors(model)
    assert site.name in {name for node in placed.proto.graph.node for name in node.output}


def test_the_floor_of_a_line_is_the_end_of_the_layers_grid(tmp_path: Path):
    """On integers nothing is left of the line: the engine's own graph has no op for it."""
    import onnxruntime as ort

    net, y = padded()
    model = net.model(y)
    placed = place(model, fit_all(Graph.from_model(model), seen_of(model, net), FORMS["line"]), FORMS["line"])
    assert placed.op_counts["Clip"] == 1
    made = quantize(placed, net.inputs(), Int8Rules(), form=Int8Form.QDQ, least_db=-100.0).model
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "made.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(made.data, options, providers=["CPUExecutionProvider"])
    ops = {node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node}
    assert not ops & {"Clip", "Relu", "Sigmoid"}
    assert "QLinearConv" in ops
    wanted = run(placed, net.inputs()[0])
    assert np.abs(run(made, net.inputs()[0]) - wanted).max() < 0.1 * np.abs(wanted).max()


def fingerprint() -> str:
    net, y = joined()
    model = net.model(y)
    seen = seen_of(model, net)
    made = [place(model, fit_all(Graph.from_model(model), seen, form), form).data for form in FORMS.values()]
    return hashlib.sha256(b"".join(made)).hexdigest()


def test_two_processes_make_the_same_bytes():
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_activations as t; print(t.fingerprint())"
    folders = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", code, *folders],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == fingerprint()


def test_without_activations_there_is_nothing_to_do():
    net = Net()
    model = net.model(net.op("Relu", net.conv("x", 3, 4)))
    (outcome,) = replace_activations(model, None, None)  # neither pictures nor clock are asked
    assert outcome.is_unchanged
    assert outcome.model is model
