"""Every op on random inputs against ONNX Runtime, and its gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_models import run
from op_cases import SMOOTH

torch = pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.executors._torch.ops import known_ops  # noqa: E402
from edgeopt.steps.finetune.interpreter import TorchModel  # noqa: E402
from edgeopt.steps.finetune.interpreter.roles import stored_floats  # noqa: E402

WITHOUT_GRADIENT = {
    *("And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf", "Sign", "Floor"),
    *(
        "Ceil",
        "Round",
        "ArgMax",
        "ArgMin",
        "NonZero",
        "Shape",
        "Size",
        "Range",
        "ConstantOfShape",
        "Hardmax",
        "Constant",
    ),
    *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear", "Swish", "com.microsoft.FusedGemm"),
}
"""`test_ops_in_torch.py` has ONNX's own cases of them; the last is Gemm and an activation."""
SETTINGS = {
    "Clip": ("a", "b"),
    "Resize": ("k", "r"),
    "Pad": ("v",),
    "Upsample": ("s",),
    "Pow-0": ("c",),
    "Mod": ("c",),
} | {"BatchNormalization": ("m", "v")}
"""Constants that say what is computed, and are no numbers to train."""


def test_no_op_is_left_out():
    tried = {name.partition("-")[0] for name in SMOOTH}
    tried |= {node.op_type for case in SMOOTH.values() for node in case.model().proto.graph.node}
    assert known_ops().keys() - tried <= WITHOUT_GRADIENT


@pytest.mark.parametrize("name", SMOOTH)
def test_answers_are_those_of_onnxruntime(name):
    case = SMOOTH[name]
    made, x = case.model(), case.input()
    found = TorchModel(made)({"x": torch.from_numpy(x)})
    for output, wanted in run(made, {"x": x}).items():
        np.testing.assert_allclose(found[output].detach().numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SMOOTH.keys() - {"DequantizeLinear"}))
def test_gradients_are_those_of_finite_differences(name):
    case = SMOOTH[name]
    made = case.model()
    settings = next((names for op, names in SETTINGS.items() if name.startswith(op)), ())
    module = TorchModel(made, [one for one in stored_floats(made.proto) if one not in settings]).double()
    names = [one for one, _ in module.named_parameters()]

    def answers(x: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.func.functional_call(module, dict(zip(names, values, strict=True)), ({"x": x},))
        return tuple(one for one in found.values() if one.is_floating_point())

    x = torch.from_numpy(case.input()).double().requires_grad_()
    assert torch.autograd.gradcheck(answers, (x, *module.parameters()), fast_mode=True)
