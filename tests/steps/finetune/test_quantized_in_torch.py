"""Quantized models in torch: what is trained is what ONNX Runtime then computes."""

from __future__ import annotations

import numpy as np
import pytest
import small_nets
from fixture_models import model, run
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import Model
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp
from edgeopt.steps.quantize.grids.weights import MOST_OF_TWO, choose_scale
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import Granularity, Int8Rules, find_target

torch = pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.executors._torch.ops.quantization import on_grid  # noqa: E402
from edgeopt.steps.finetune.interpreter import TorchModel, missing_ops  # noqa: E402

RULES = {
    "U8S8": Int8Rules(),
    "S8S8": Int8Rules(activation_dtype="int8", symmetric_activations=True),
    "neighbours that saturate no 16 bits": Int8Rules(reduce_range=True),
    "one scale for all": Int8Rules(weight_granularity=Granularity.PER_TENSOR),
    "powers of two": Int8Rules(power_of_two_scales=True),
    "float biases": Int8Rules(float_bias=True),
}


def prepared(name: str) -> tuple[Model, list[dict[str, np.ndarray]]]:
    net = getattr(small_nets, name)()
    pictures = list(small_nets.frames(net, 4))
    return fuse(simplify(net, {}, pictures[:1]).model, pictures[:1]).model, pictures


def integers(name: str, rules: Int8Rules, form: Form = Form.QDQ) -> tuple[Model, list[dict[str, np.ndarray]]]:
    net, pictures = prepared(name)
    return quantize(net, iter(pictures), rules, form=form, least_db=-100).model, pictures


def trained(made: Model, pictures: list[dict[str, np.ndarray]], steps: int = 2) -> TorchModel:
    """Some steps to nowhere in particular, of all pictures at once."""
    module = TorchModel(made)
    together = {name: torch.from_numpy(np.concatenate([one[name] for one in pictures])) for name in pictures[0]}
    for _ in range(steps):
        module.zero_grad()
        sum(one.square().mean() for one in module(together).values()).backward()
        with torch.no_grad():
            for one in module.parameters():
                one -= 1e-2 * one.square().mean().sqrt() * one.grad.sign()
    assert all(one.grad is not None and torch.isfinite(one.grad).all() for one in module.parameters())
    return module


def error(module: TorchModel, made: Model, pictures: list[dict[str, np.ndarray]]) -> float:
    """Largest distance from ONNX Runtime, which computes each node by itself, over the signal."""
    worst = 0.0
    for one in pictures[:2]:
        with torch.no_grad():
            found = module({name: torch.from_numpy(value) for name, value in one.items()})
        for name, wanted in run(made, one).items():
            signal = np.sqrt(np.square(wanted).mean())
            worst = max(worst, float(np.sqrt(np.square(found[name].numpy() - wanted).mean()) / signal))
    return worst


@pytest.mark.parametrize(("rules", "form"), [*((one, Form.QDQ) for one in RULES), ("U8S8", Form.INPUTS)])
def test_onnxruntime_computes_what_was_trained(rules, form):
    made, pictures = integers("residual", RULES[rules], form)
    assert TorchModel(made).to_model().data == made.data
    assert error(TorchModel(made), made, pictures) < 0.02  # a number on the edge of a step
    module = trained(made, pictures)
    after = module.to_model()
    assert after.data != made.data
    assert error(module, after, pictures) < 0.02
    assert [one.name for one in after.proto.graph.initializer] == [one.name for one in made.proto.graph.initializer]
    assert after.proto.graph.node == made.proto.graph.node


@pytest.mark.parametrize("name", ["mobile", "squeeze_excite", "detector", "u_net", "vision_transformer"])
def test_nets_of_other_families(name):
    made, pictures = integers(name, small_nets.HERE)
    module = trained(made, pictures, 1)
    assert error(module, module.to_model(), pictures) < 0.02
    assert all(way.all is not None for way in module._ways.values())


def test_every_tensor_on_a_grid_as_a_device_wants_it():
    net, pictures = prepared("mobile")
    target = find_target("qualcomm-htp-v73")
    made = place_htp(net, study_htp(net, pictures, target), target).model
    module = trained(made, pictures, 1)
    assert error(module, module.to_model(), pictures) < 0.02


def test_neighbours_still_saturate_no_16_bits():
    made, pictures = integers("residual", Int8Rules(reduce_range=True))
    module = TorchModel(made)
    with torch.no_grad():
        for weight in module.weights.values():
            if weight.ndim == 4:
                weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * weight.abs().max()
    after = module.to_model()
    kernels = [numpy_helper.to_array(one) for one in after.proto.graph.initializer if len(one.dims) == 4]
    assert kernels
    for one in kernels:
        assert one.dtype == np.int8
        assert (choose_scale(one.astype(float), 0, reduce_range=True) * 127).max() <= MOST_OF_TWO + 1e-3
    assert error(module, after, pictures) < 0.02


def test_the_scale_of_a_bias_stays_the_product_of_its_layers_two():
    made, pictures = integers("residual", Int8Rules())
    after = trained(made, pictures).to_model().proto.graph
    values = {one.name: numpy_helper.to_array(one) for one in after.initializer}
    makers = {name: node for node in after.node for name in node.output}
    checked = 0
    for node in after.node:
        if node.op_type == "Conv" and makers[node.input[2]].op_type == "DequantizeLinear":
            x, weight, bias = (values[makers[name].input[1]] for name in node.input)
            np.testing.assert_allclose(bias, x * weight, rtol=1e-6)
            checked += 1
    assert checked > 3


MOVED = """pooled (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] y) {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)
    d = QuantizeLinear(c, t, z)
    y = DequantizeLinear(d, t, z)
}"""


@pytest.mark.parametrize(("other", "grids"), [(0.02, 1), (0.03, 2)])
def test_one_grid_on_both_sides_of_what_moves_values_stays_one(other, grids):
    made = model(MOVED, s=np.float32(0.02), t=np.float32(other), z=np.array(128, np.uint8))
    pictures = [{"x": np.random.default_rng(0).normal(size=(1, 2, 8, 8)).astype(np.float32)}]
    module = trained(made, pictures)
    after = {one.name: numpy_helper.to_array(one) for one in module.to_model().proto.graph.initializer}
    assert len(module.weights) == grids
    assert (after["s"] == after["t"]) == (grids == 1)
    assert after["s"] != np.float32(0.02)


def test_gradients_are_those_of_the_learned_step_size():
    x = torch.tensor([-30.0, -0.26, 0.1, 0.74, 9.9, 40.0], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    on_grid(x, scale, -128, 127).sum().backward()
    steps = np.array([-128, -3, 1, 7, 99, 127.0])
    inside = np.array([0, 1, 1, 1, 1, 0.0])
    wanted = np.where(inside, steps - x.detach().numpy() / 0.1, steps).sum() / np.sqrt(6 * 128)
    np.testing.assert_allclose(x.grad, inside)
    np.testing.assert_allclose(scale.grad, wanted, rtol=1e-9)


def test_a_pair_rounds_as_its_two_nodes_do():
    nodes = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    made = model(
        f"pair (float[1, 600] x) => (float[1, 600] y) {{ {nodes} }}", s=np.float32(0.1), z=np.array(17, np.uint8)
    )
    x = np.linspace(-4, 30, 600, dtype=np.float32)[None]
    found = TorchModel(made)({"x": torch.from_numpy(x)}, watch=["y"])["y"]
    np.testing.assert_array_equal(found.detach().numpy(), run(made, {"x": x})["y"])


def test_integers_of_onnxruntimes_own_ops_are_refused_by_name():
    made, _ = integers("residual", Int8Rules(forms=("qdq", "nhwc")), Form.NHWC)
    assert missing_ops(made)
    with pytest.raises(EdgeoptError, match=f"(?s){missing_ops(made)[0]}.*QuantizeLinear and its inverse"):
        TorchModel(made)
