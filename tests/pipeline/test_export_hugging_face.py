"""Networks of Hugging Face, built here from configurations, and the recipes that their processors tell."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.graph.model import load_model
from edgeopt.recipes.recipe import read_recipe

missing = [name for name in ("torch", "onnxscript", "transformers") if not importlib.util.find_spec(name)]
if missing:
    pytest.skip(f"{', '.join(missing)} not installed: an export needs it", allow_module_level=True)
NORMAL = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def build(kind: str, folder: Path) -> None:
    """Write a small network with random weights, and its processor's configuration."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    processor: dict[str, Any] = {}
    if kind == "mobilenet":
        names = {0: "cat", 1: "dog", 2: "bird"}
        config = t.MobileNetV2Config(image_size=32, depth_multiplier=0.25, id2label=names)
        module = t.MobileNetV2ForImageClassification(config)
        processor = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
    elif kind == "vit":
        module = t.ViTForImageClassification(t.ViTConfig(image_size=32, patch_size=16, **SMALL))
        processor = {"size": {"height": 32, "width": 32}}
    elif kind == "segformer":
        sizes = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}
        module = t.SegformerForSemanticSegmentation(t.SegformerConfig(**sizes, decoder_hidden_size=8, num_labels=4))
        processor = {"size": {"height": 64, "width": 64}}
    elif kind == "yolos":
        config = t.YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=5, **SMALL)
        module = t.YolosForObjectDetection(config)
        processor = {"size": {"shortest_edge": 32, "longest_edge": 64}}
    else:
        module = t.BertModel(t.BertConfig(vocab_size=50, max_position_embeddings=16, **SMALL))
    module.save_pretrained(folder)
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor | NORMAL))


@pytest.mark.parametrize(
    ("kind", "task", "inputs"),
    [
        ("mobilenet", "classification", {"pixel_values": (1, 3, 32, 32)}),
        ("vit", "classification", {"pixel_values": (1, 3, 32, 32)}),
        ("segformer", "segmentation", {"pixel_values": (1, 3, 64, 64)}),
        ("yolos", "detection", {"pixel_values": (1, 3, 32, 32)}),
        ("bert", "tensors", {"input_ids": (1, 16), "attention_mask": (1, 16), "token_type_ids": (1, 16)}),
    ],
)
def test_a_folder_becomes_a_model_that_answers_alike_and_a_recipe(
    tmp_path: Path, kind: str, task: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    build(kind, tmp_path / kind)
    file = tmp_path / "out" / "model.onnx"
    shown = CliRunner().invoke(cli, ["export", f"hf:{tmp_path / kind}", "-o", str(file)])
    assert shown.exit_code == 0, shown.output
    assert {one.name: one.shape for one in load_model(file).inputs} == inputs
    recipe = read_recipe(file.parent / "recipe.toml")
    assert recipe.task == task
    if task != "tensors":
        assert recipe.preprocess.mean == (0.5, 0.4, 0.3)
        assert recipe.preprocess.scale == pytest.approx(1 / 255)
        inspected = CliRunner().invoke(cli, ["inspect", str(file)])
        assert f"{kind}: recipe.toml lies beside the model" in " ".join(inspected.output.split())
    if kind == "mobilenet":
        assert recipe.class_names == ("cat", "dog", "bird")
        assert recipe.preprocess.crop_from == 40


def test_a_folder_without_a_network_and_an_id_without_a_network_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{")
    shown = CliRunner().invoke(cli, ["export", f"hf:{tmp_path}", "-o", str(tmp_path / "no.onnx")])
    assert shown.exit_code == 1
    assert "its configuration cannot be read" in shown.output
    monkeypatch.setattr(socket, "getaddrinfo", _unreachable)
    shown = CliRunner().invoke(cli, ["export", "hf:nobody/nothing-of-edgeopt", "-o", str(tmp_path / "no.onnx")])
    assert shown.exit_code == 1
    assert "cannot be fetched" in shown.output
    assert not (tmp_path / "no.onnx").exists()


def _unreachable(*_: object, **__: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")
