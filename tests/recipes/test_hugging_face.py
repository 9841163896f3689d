"""Folders of Hugging Face with ONNX files: which file is the model, and the recipe that their configurations tell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fixture_models import model, numbers

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import find_model, load_model, save_model
from edgeopt.measurement.opening.given import OpenedModel, open_given
from edgeopt.recipes.drafting.hugging_face import Configuration
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.inputs.preprocess import Colour, Resize

PROCESSOR = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "size": {"height": 16, "width": 24}}
CLASSES = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "id2label": {"1": "dog", "0": "cat"}}
PICTURES = (
    "g (float[batch_size, num_channels, height, width] pixel_values) => (float[batch_size, 2] logits) "
    "{ c = Conv(pixel_values, w) m = GlobalAveragePool(c) logits = Flatten(m) }"
)
TEXTS = (
    "g (int64[batch_size, sequence_length] input_ids, int64[batch_size, sequence_length] attention_mask) => "
    "(float[batch_size, sequence_length, 4] last_hidden_state) { e = Gather(table, input_ids) "
    "f = Cast<to = 1>(attention_mask) u = Unsqueeze(f, axis) last_hidden_state = Mul(e, u) }"
)


def write(folder: Path, config: Any, processor: Any = None, *, graph: str = PICTURES, file: str = "model.onnx") -> Path:
    """Write a folder as `optimum-cli export onnx` does."""
    constants = {"w": numbers(2, 3, 3, 3)} if graph == PICTURES else {"table": numbers(9, 4), "axis": _last()}
    save_model(model(graph, **constants), folder / file)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def _last() -> Any:
    return numbers(1).astype("int64") * 0 + 2


def given(folder: Path) -> OpenedModel:
    return open_given(str(folder), "cpu", None)


def test_a_folder_is_a_model_fed_as_its_configurations_say(tmp_path: Path) -> None:
    found = given(write(tmp_path / "net", CLASSES, PROCESSOR))
    recipe = found.recipe
    assert (found.model.name, recipe.name, recipe.task) == ("net", "net", "classification")
    assert recipe.class_names == ("cat", "dog")
    assert recipe.input.size == (16, 24)
    assert (recipe.preprocess.mean, recipe.preprocess.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert recipe.preprocess.scale == pytest.approx(1 / 255)
    assert fixed_shapes(recipe, found.model.inputs) == {"pixel_values": (1, 3, 16, 24)}
    shown = CliRunner().invoke(cli, ["bench", str(tmp_path / "net"), "--target", "cpu", "--seconds", "0.05"])
    assert shown.exit_code in (0, 4), shown.output  # 4: the machine is noisy
    assert "synthetic pictures" in shown.output


def test_a_text_model_is_fed_the_length_that_its_configuration_allows(tmp_path: Path) -> None:
    config = {"architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 20}
    found = given(write(tmp_path / "net", config, graph=TEXTS))
    assert found.recipe.task == "tensors"
    assert fixed_shapes(found.recipe, found.model.inputs) == {"input_ids": (1, 20), "attention_mask": (1, 20)}
    asked = open_given(str(tmp_path / "net"), "cpu", None, sizes={"input_ids": (1, 7), "attention_mask": (1, 7)})
    assert set(fixed_shapes(asked.recipe, asked.model.inputs).values()) == {(1, 7)}


def test_the_hubs_inner_folder_is_found_and_the_name_is_that_of_the_outer_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "net", CLASSES, PROCESSOR, file="onnx/model.onnx")
    shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / "model_fp16.onnx")
    found = given(folder)
    assert found.path == folder / "onnx" / "model.onnx"
    assert (found.model.name, found.recipe.class_names) == ("net", ("cat", "dog"))


def test_of_several_models_none_is_taken_and_all_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "net", CLASSES, PROCESSOR, file="encoder_model.onnx")
    assert find_model(str(folder)).name == "encoder_model.onnx"
    shutil.copy(folder / "encoder_model.onnx", folder / "decoder_model.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert shown.exit_code == 1
    told = " ".join(shown.output.split())
    assert "holds 2 models: decoder_model.onnx, encoder_model.onnx" in told
    assert told.endswith(f"name one of them: {folder / 'encoder_model.onnx'}")
    assert given(folder / "encoder_model.onnx").recipe.task == "classification"


def test_weights_alone_lead_to_an_export_and_other_folders_are_refused_as_before(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CLASSES))
    with pytest.raises(EdgeoptError, match="is a folder"):
        find_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(EdgeoptError, match="no ONNX file") as raised:
        find_model(str(tmp_path))
    assert f"optimize hf:{tmp_path}" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("config", "processor", "said"),
    [
        ("{", None, "config.json"),
        (CLASSES, [1], "holds no settings"),
        (CLASSES, {**PROCESSOR, "image_mean": "grey"}, "could not convert"),
        (CLASSES, {**PROCESSOR, "image_std": [0, 0, 0]}, "std"),
    ],
)
def test_a_spoiled_configuration_is_one_line(tmp_path: Path, config: Any, processor: Any, said: str) -> None:
    shown = CliRunner().invoke(cli, ["bench", str(write(tmp_path, config, processor)), "--target", "cpu"])
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ")
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_a_foreign_config_and_a_missing_processor_leave_the_model_to_its_shapes(tmp_path: Path) -> None:
    for folder, config in (("foreign", {"theme": "dark"}), ("bare", CLASSES)):
        with pytest.raises(EdgeoptError, match="no recipe fits"):
            given(write(tmp_path / folder, config, PROCESSOR if folder == "foreign" else None))


@pytest.mark.parametrize(
    ("name", "outputs", "task", "decoder"),
    [
        ("MobileNetV2ForImageClassification", ["logits"], "classification", "logits"),
        ("SegformerForSemanticSegmentation", ["logits"], "segmentation", "argmax"),
        ("DetrForObjectDetection", ["logits", "pred_boxes"], "detection", "detr"),
        ("YolosForObjectDetection", ["logits", "pred_boxes"], "detection", "detr"),
        ("RTDetrV2ForObjectDetection", ["pred_boxes", "logits"], "detection", "rtdetr"),
        ("ConditionalDetrForObjectDetection", ["logits", "pred_boxes"], "detection", "rtdetr"),
        ("DPTForDepthEstimation", ["predicted_depth"], "image", "none"),
        ("Swin2SRForImageSuperResolution", ["reconstruction"], "image", "none"),
        ("ViTForImageClassification", ["last_hidden_state"], "tensors", "none"),
        ("BertModel", ["last_hidden_state"], "tensors", "none"),
    ],
)
def test_a_class_tells_task_and_decoder_where_its_outputs_are_there(
    name: str, outputs: list[str], task: str, decoder: str
) -> None:
    head = Configuration({"architectures": [name]}).head_of(outputs)
    assert (head.task, head.decoder) == (task, decoder)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"do_rescale": False, "do_normalize": False}, {"scale": 1.0, "mean": (0.0, 0.0, 0.0)}),
        ({"do_flip_channel_order": True, "do_normalize": False}, {"colour": Colour.BGR, "mean": (0.0, 0.0, 0.0)}),
        (
            {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}},
            {"resize": Resize.CENTRE_CROP, "crop_from": 20},
        ),
        (
            {"size": {"height": 20, "width": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}},
            {"resize": Resize.CENTRE_CROP, "crop_from": 20},
        ),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, {"resize": Resize.CENTRE_CROP, "crop_from": 256}),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, {"resize": Resize.STRETCH}),
        ({"rescale_factor": 0.5, "rescale_offset": True}, {"scale": 0.5, "mean": (1.5, 1.4, 1.3)}),
        ({"include_top": True}, {"std": (pytest.approx(0.04),) * 3}),
    ],
)
def test_settings_of_processors_are_kept(tmp_path: Path, processor: dict[str, Any], expected: dict[str, Any]) -> None:
    found = given(write(tmp_path, CLASSES, {**PROCESSOR, **processor})).recipe.preprocess
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_processor_within_those_of_several_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "net", CLASSES)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": PROCESSOR}))
    assert given(folder).recipe.preprocess.mean == (0.5, 0.4, 0.3)


def test_a_recipe_beside_the_model_wins(tmp_path: Path) -> None:
    folder = write(tmp_path / "net", CLASSES, PROCESSOR)
    shown = CliRunner().invoke(cli, ["recipe", str(folder)])
    assert shown.exit_code == 0, shown.output
    text = (folder / "recipe.toml").read_text()
    assert 'task = "classification"' in text
    (folder / "recipe.toml").write_text(text.replace("0.5, 0.4, 0.3", "0.6, 0.4, 0.3"))
    assert given(folder).recipe.preprocess.mean == (0.6, 0.4, 0.3)
    assert load_model(find_model(str(folder))).name == "net"
