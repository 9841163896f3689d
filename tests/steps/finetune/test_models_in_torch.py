"""Real models in torch against ONNX Runtime, several pictures at once, and back into the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_models import run

from edgeopt.graph.model import Model, find_model, load_model

torch = pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.steps.finetune.interpreter import TorchModel  # noqa: E402

REAL = {"digits_detector": 1.0, "yolox_nano_416": 100.0, "squeezenet_224": 50.0}
"""The spread of what each is fed."""


def opened(name: str, data: Path) -> Model:
    return load_model(find_model(name) if name == "digits_detector" else data / "models" / f"{name}.onnx")


@pytest.mark.parametrize("name", REAL)
def test_answers_are_those_of_onnxruntime_and_the_model_comes_back_unchanged(name, data):
    model = opened(name, data)
    (spec,) = model.inputs
    pictures = np.random.default_rng(0).normal(0, REAL[name], (2, *spec.shape[1:])).astype(np.float32)
    module = TorchModel(model)
    with torch.no_grad():
        made = module({spec.name: torch.from_numpy(pictures)})
    wanted = [run(model, {spec.name: one[None]}) for one in pictures]
    for out in model.outputs:
        expected = np.concatenate([one[out.name] for one in wanted])
        np.testing.assert_allclose(made[out.name].numpy(), expected, rtol=1e-4, atol=1e-4)
    assert module.to_model().data == model.data
