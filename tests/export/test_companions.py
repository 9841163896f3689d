"""Files that Hugging Face wrote beside a model go into its bundle, as the bundle's model needs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeopt.export.companions import companions_of, copy_companions
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.preprocess import Input, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.recipes.texts.chat_template import chat_files, read_chat_template
from edgeopt.recipes.texts.encoder_decoder import configurations

CONFIG = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}
SQUARE = {"size": {"height": 32, "width": 32}}
CROP = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}


def folder(place: Path, processor: dict[str, Any]) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "preprocessor_config.json").write_text(json.dumps(processor))
    (place / "notes.txt").write_text("not for the bundle")
    return place


def recipe(side: int, **preprocess: Any) -> Recipe:
    return replace(find_recipe("imagenet"), input=Input(size=(side, side)), preprocess=Preprocess(**preprocess))


@pytest.mark.parametrize(
    ("processor", "of_model", "expected"),
    [
        (SQUARE, recipe(32), SQUARE),
        (SQUARE, recipe(24), {"size": {"height": 24, "width": 24}}),
        (CROP, recipe(32, resize=Resize.CENTRE_CROP, crop_from=40), CROP),
        (
            CROP,
            recipe(24, resize=Resize.CENTRE_CROP, crop_from=30),
            {**CROP, "size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 24}},
        ),
    ],
)
def test_a_bundles_processor_makes_pictures_of_its_models_size(
    tmp_path: Path, processor: dict[str, Any], of_model: Recipe, expected: dict[str, Any]
) -> None:
    files, (note,) = companions_of(folder(tmp_path / "net", processor), tmp_path / "bundle", "model.onnx", of_model)
    assert "ORTModelForImageClassification" in note.detail
    assert files.keys() == {"config.json", "preprocessor_config.json"}
    assert json.loads(files["preprocessor_config.json"]) == expected


def test_a_model_that_optimum_cannot_feed_gets_nothing_and_a_note(tmp_path: Path) -> None:
    source = folder(tmp_path / "net", SQUARE)
    inside = recipe(32).with_embedded(Embedded.PREPROCESS)
    for model, of_model in (("model.onnx", inside), ("model.rknn", recipe(32))):
        files, (note,) = companions_of(source, tmp_path / "bundle", model, of_model)
        assert files == {}
        assert "optimum does not load the bundle" in note.detail
    assert companions_of(tmp_path, tmp_path / "bundle", "model.onnx", recipe(32)) == ({}, ())


def test_a_link_out_of_the_folder_is_not_copied(tmp_path: Path) -> None:
    """Neither a companion, nor a chat template; a link inside the folder is."""
    secret = tmp_path / "secret"
    secret.write_text("[the key of somebody else]")
    source = folder(tmp_path / "net", SQUARE)
    for name in ("vocab.txt", "tokenizer_config.json", "chat_template.jinja"):
        (source / name).symlink_to(secret)
    (source / "special_tokens_map.json").symlink_to("config.json")
    files, _ = companions_of(source, tmp_path / "bundle", "model.onnx", recipe(32))
    assert files.keys() == {"config.json", "preprocessor_config.json", "special_tokens_map.json"}
    assert chat_files(source / "tokenizer.json") == []
    assert configurations(source) == [source / "config.json", source / "preprocessor_config.json"]
    assert read_chat_template(tmp_path) is None


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    source, there = folder(tmp_path / "net", SQUARE), tmp_path / "there"
    there.mkdir()
    (there / "config.json").write_text("mine")
    copied = copy_companions([source / "config.json", source / "preprocessor_config.json"], there)
    assert [one.name for one in copied] == ["preprocessor_config.json"]
    assert (there / "config.json").read_text() == "mine"
    assert copy_companions([source / "preprocessor_config.json"], there) == copied
