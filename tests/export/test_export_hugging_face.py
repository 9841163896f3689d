"""Networks of Hugging Face, built here from configurations, and the recipes that their processors tell."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_brief import briefly
from fixture_pretrained import build

from edgeopt.cli import cli
from edgeopt.graph.model import load_model
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.runtime import Runtime

missing = [name for name in ("torch", "onnxscript", "transformers") if not importlib.util.find_spec(name)]
if missing:
    pytest.skip(f"{', '.join(missing)} not installed: an export needs it", allow_module_level=True)


@pytest.mark.parametrize(
    ("kind", "task", "inputs"),
    [
        ("vit", "classification", {"pixel_values": (1, 3, 32, 32)}),
        ("segformer", "segmentation", {"pixel_values": (1, 3, 64, 64)}),
        ("detr", "detection", {"pixel_values": (1, 3, 64, 64)}),
        ("whisper", "tensors", {"input_features": (1, 16, 64)}),
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
    assert (file.parent / "config.json").read_bytes() == (tmp_path / kind / "config.json").read_bytes()
    assert {one.name: one.shape for one in load_model(file).inputs} == inputs
    recipe = read_recipe(file.parent / "recipe.toml")
    assert recipe.task == task
    if task != "tensors":
        assert recipe.preprocess.mean == (0.5, 0.4, 0.3)
        assert recipe.preprocess.scale == pytest.approx(1 / 255)
        inspected = CliRunner().invoke(cli, ["inspect", str(file)])
        assert f"{kind}: recipe.toml lies beside the model" in " ".join(inspected.output.split())


def test_a_network_goes_from_its_folder_to_a_bundle_that_answers_as_it_does(tmp_path: Path) -> None:
    import torch
    from transformers import ViTForImageClassification

    build("vit", tmp_path / "vit")
    words = ["optimize", f"hf:{tmp_path / 'vit'}", "--target", "cpu", "--calib", "synthetic", "--skip", "prune"]
    with briefly():
        shown = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "out")])
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    assert "int8" in shown.output
    bundle = tmp_path / "out" / "bundle"
    assert (bundle / "config.json").is_file(), "optimum would not load it"
    assert "ORTModelForImageClassification.from_pretrained" in (tmp_path / "out" / "report.json").read_text()
    picture = np.random.default_rng(0).normal(0, 1, (1, 3, 32, 32)).astype("float32")
    runtime = Runtime.load(bundle)
    ours = runtime.session.run({"pixel_values": picture})["logits"]
    is_float = runtime.bundle.artefacts[0].precision == "fp32"
    runtime.close()
    with torch.no_grad():
        module = ViTForImageClassification.from_pretrained(tmp_path / "vit").eval()
        theirs = module(torch.from_numpy(picture)).logits.numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5 if is_float else 0.1 * np.abs(theirs).max())


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
