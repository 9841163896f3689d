"""Every op against the cases that ONNX itself ships."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
from onnx.backend.test.case import node as cases
from onnx.backend.test.case.test_case import TestCase

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import Model

torch = pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.executors._torch.ops import known_ops  # noqa: E402
from edgeopt.steps.finetune.interpreter import TorchModel, missing_ops  # noqa: E402

LEFT_OUT = {"maxpool", "lppool", "averagepool", "cast", "castlike"}
"""Seconds to make, or not in numbers; other tests have them."""
KINDS = {"float32", "float64", "int64", "int32", "bool", "uint8", "int8"}
OTHERWISE = (
    *("test_quantizelinear", "test_quantize_linear"),
    *("test_training_dropout", "test_batchnorm_epsilon_training_mode", "test_batchnorm_example_training_mode"),
    *("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
)
"""Integers are kept as floats, Dropout is off, statistics are frozen, two sizes are rounded as ONNX Runtime does."""
REFUSED = {
    "test_gathernd_example_int32_batch_dim1": "batch_dims",
    "test_reduce_max_empty_set": "non-zero size",
    "test_reduce_min_empty_set": "non-zero size",
    "test_scatternd_m": "the reduction",
    "test_lstm_with_peepholes": "peepholes",
    "test_dequantizelinear_blocked": "scales of blocks",
}


def shipped_cases() -> list[TestCase]:
    known = {name.lower() for name in known_ops()}
    for module in iter_modules(cases.__path__):
        if module.name not in LEFT_OUT and (module.name in known or module.name.startswith("reduce")):
            import_module(f"{cases.__name__}.{module.name}")
    return list(cases._NodeTestCases)


def readable(case: TestCase) -> Model | None:
    """The model of a case, if all of it is numbers that torch has, and no op is spelled out in others."""
    values = (*case.model.graph.input, *case.model.graph.output)
    if "_expanded" in case.name or case.name.startswith(OTHERWISE):
        return None
    if any(one.type.WhichOneof("value") != "tensor_type" for one in values):
        return None
    model = Model(case.model, case.name)
    is_known = model.opset >= 7 and not missing_ops(model)
    return model if is_known and {one.dtype for one in (*model.inputs, *model.outputs)} <= KINDS else None


@pytest.mark.filterwarnings("ignore")
def test_the_cases_of_onnx():
    done, wrong = set[str](), dict[str, str]()
    for case in shipped_cases():
        model = readable(case)
        if model is None:
            continue
        told = next((told for name, told in REFUSED.items() if case.name.startswith(name)), None)
        try:
            compare(model, case)
        except (AssertionError, EdgeoptError) as error:
            if told is None or told not in str(error):
                wrong[case.name] = " ".join(str(error).split())[:200]
        done |= set(model.op_counts)
    assert not wrong, f"{len(wrong)}: {wrong}"
    assert len(done) > 110, sorted(done)


def compare(model: Model, case: TestCase) -> None:
    (inputs, expected), *_ = case.data_sets
    given = {one.name: torch.from_numpy(np.array(x)) for one, x in zip(model.inputs, inputs, strict=True)}
    made = TorchModel(model, trainable=())(given)
    for spec, wanted in zip(model.outputs, expected, strict=True):
        found = made[spec.name].detach().numpy()
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=5e-5)
