"""Detectors by their own exporters, from configurations, against a plain reference.

Weights are random. transformers and torchvision are no part of the extra `test`: what is absent skips.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from detector_decoders import DECODERS

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.recipes.recognise import choose_recipe

if missing := [name for name in ("torch", "onnxscript") if not importlib.util.find_spec(name)]:
    pytest.skip(f"{', '.join(missing)} not installed: an export needs it", allow_module_level=True)
SIZE = (64, 96)
THRESHOLD = 0.1
SMALL = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "num_labels": 5,
}


def backbone(*stages: str) -> dict[str, Any]:
    widths = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
    return {**widths, "layer_type": "basic", "out_features": [*stages]}


def detr(t: Any) -> Any:
    return t.DetrForObjectDetection(
        t.DetrConfig(backbone_config=t.ResNetConfig(**backbone("stage4")), num_queries=300, **SMALL)
    )


def yolos(t: Any) -> Any:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return t.YolosForObjectDetection(
        t.YolosConfig(image_size=[*SIZE], patch_size=16, num_detection_tokens=20, num_labels=5, **small)
    )


def conditional(t: Any) -> Any:
    config = t.ConditionalDetrConfig(backbone_config=t.ResNetConfig(**backbone("stage4")), num_queries=100, **SMALL)
    return t.ConditionalDetrForObjectDetection(config)


def rtdetr(t: Any) -> Any:
    config = t.RTDetrConfig(
        backbone_config=t.RTDetrResNetConfig(**backbone("stage2", "stage3", "stage4")),
        encoder_hidden_dim=32,
        encoder_in_channels=[16, 16, 16],
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        d_model=32,
        num_queries=30,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_n_points=2,
        num_labels=5,
        num_denoising=0,
    )
    return t.RTDetrForObjectDetection(config)


FAMILIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "detr": (detr, "detr"),
    "yolos": (yolos, "detr"),
    "conditional": (conditional, "rtdetr"),
    "rtdetr": (rtdetr, "rtdetr"),
}
"""Network, and the recipe that must be recognised."""


def exported(module: Any, given: Any, outputs: Sequence[str], name: str) -> Model:
    import torch

    data = io.BytesIO()
    torch.onnx.export(
        module, (given,), data, input_names=["images"], output_names=[*outputs], opset_version=17, dynamo=False
    )
    return Model(onnx.load_model_from_string(data.getvalue()), name)


def shaken(module: Any) -> Any:
    """Return a network whose answers differ from place to place, as random weights alone do not."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for one in module.parameters():
            if one.dim() > 1:
                one.add_(torch.randn_like(one) * 0.1)
    return module.eval()


def picture(*size: int) -> Any:
    import torch

    return torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, *size)).astype(np.float32))


def found_in(model: Model, given: Any, name: str, threshold: float) -> tuple[np.ndarray, dict[str, Any]]:
    """Return (n, 6) corners, score, class by the recipe that is recognised, and the raw outputs."""
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == name
    raw = EXECUTOR.open(model.data, SessionOptions()).run({"images": given.numpy()})
    recipe = choice.recipe
    decode = DECODERS[recipe.postprocess.decoder]
    outputs = [np.asarray(raw[one.name]) for one in model.outputs]
    boxes, scores, classes = decode(outputs, recipe.postprocess, tuple(recipe.input.size), threshold)
    return np.column_stack([boxes, scores, classes]), dict(raw)


def require_same(found: np.ndarray, wanted: np.ndarray, least: int = 5) -> None:
    assert len(wanted) >= least
    ordered = [rows[np.lexsort(np.round(rows, 2).T)] for rows in (found, wanted)]
    np.testing.assert_allclose(*ordered, rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_queries_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    make, name = FAMILIES[family]

    class Outputs(torch.nn.Module):
        """The two outputs that exporters write."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, images: Any) -> Any:
            made = self.inner(pixel_values=images)
            return made.logits, made.pred_boxes

    torch.manual_seed(0)
    given = picture(*SIZE)
    model = exported(Outputs(shaken(make(transformers))), given, ("logits", "pred_boxes"), family)
    found, raw = found_in(model, given, name, THRESHOLD)
    require_same(found, boxes_of(raw, is_softmax=name == "detr"))


def boxes_of(raw: dict[str, Any], *, is_softmax: bool) -> np.ndarray:
    """Go through the queries as the image processors of transformers do, `post_process_object_detection`."""
    height, width = SIZE
    kept = []
    for logits, (x, y, w, h) in zip(raw["logits"][0].astype(np.float64), raw["pred_boxes"][0], strict=True):
        box = (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height
        shares = np.exp(logits) / np.exp(logits).sum()
        best = int(shares[:-1].argmax())
        pairs = [(best, shares[best])] if is_softmax else enumerate(1 / (1 + np.exp(-logits)))
        kept += [(*box, score, label) for label, score in pairs if score > THRESHOLD]
    return np.array(kept)
