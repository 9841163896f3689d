"""Qwen-VL is exported without torch, and answers what transformers answers on the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from qwen_models import CLASSES, HIDDEN, LEAST, MOST, PATCH, photo, processor_settings, write_qwen_folder, write_tensors

from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export, names_decoder
from edgeopt.recipes.inputs.pillow_resize import Resample
from edgeopt.recipes.inputs.seen.patches import PIXELS, patches_of, row_grid
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

MANY = 12
TWO = "<|vision_start|><|image_pad|><|vision_end|> and <|vision_start|><|image_pad|><|vision_end|> what"


def pictures_of_hugging_face(kind: str):
    """Return Hugging Face's own processor of pictures, the one with Pillow."""
    pytest.importorskip("PIL.Image")
    pytest.importorskip("transformers")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = processor_settings(kind)
    del settings["image_processor_type"]
    return Qwen2VLImageProcessorPil(**settings)


@pytest.mark.parametrize("size", [(90, 120), (200, 60), (16, 16), (5, 400), (300, 310), (9, 11)])
def test_patches_are_those_of_the_processor_of_hugging_face(size):
    processor = pictures_of_hugging_face("qwen2_vl")
    from PIL import Image

    settings = processor_settings("qwen2_vl")
    table = ImageTable(
        "encoder.onnx",
        "<|image_pad|>",
        patch=PATCH,
        merge=2,
        least_pixels=LEAST,
        most_pixels=MOST,
        resample=Resample.BICUBIC,
        scale=1 / 255,
        mean=tuple(settings["image_mean"]),
        std=tuple(settings["image_std"]),
    )
    frame = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    answer = processor(Image.fromarray(frame[:, :, ::-1]), return_tensors="np")
    lines, columns = row_grid(*size, table)
    assert answer["image_grid_thw"].tolist() == [[1, 2 * lines, 2 * columns]]
    twice = answer["pixel_values"].reshape(-1, 3, 2, PATCH * PATCH)
    for half in (0, 1):
        ours = patches_of(frame, table)[PIXELS].reshape(-1, 3, PATCH * PATCH)
        np.testing.assert_allclose(ours, twice[:, :, half], atol=1e-6)


@pytest.mark.parametrize("kind", CLASSES)
def test_answers_to_pictures_are_those_of_transformers(kind, tmp_path):
    processor = pictures_of_hugging_face(kind)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    from PIL import Image

    folder = write_qwen_folder(tmp_path / "net", kind)
    assert names_decoder(f"hf:{folder}")
    result = export(f"hf:{folder}", out=tmp_path / "out" / "model.onnx")
    assert result.sees
    assert {output.name: output.drift.sqnr_db > 80 for output in result.outputs} == {"image_rows": True, "logits": True}
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    net = getattr(transformers, f"{CLASSES[kind]}ForConditionalGeneration").from_pretrained(folder, **options).eval()
    frames = [photo(1, 90, 120), photo(2, 200, 60)]
    fed = processor(images=[Image.fromarray(frame[:, :, ::-1]) for frame in frames], return_tensors="pt")
    with open_language_model(result.file, 1)[0] as model, torch.no_grad():
        seen = torch.cat(list(net.model.get_image_features(**fed).pooler_output)).numpy()
        rows = np.concatenate(
            [model.images.rows_of(feeds) for each in frames for feeds in model.images.feeder.feeds(each)]
        )
        np.testing.assert_allclose(rows[:, :HIDDEN], seen, atol=1e-4 * np.abs(seen).max())
        for text in ("What is this?", TWO):
            prompt = model.seen(text, frames)
            ids = torch.tensor([list(prompt)])
            marks = {"input_ids": ids, "mm_token_type_ids": (ids == net.config.image_token_id).int()}
            ends = {"do_sample": False, "max_new_tokens": MANY, "eos_token_id": None, "pad_token_id": 0}
            expected = net.generate(**marks, **fed, **ends, attention_mask=torch.ones_like(ids))[
                0, len(prompt) :
            ].tolist()
            answer = model.generate(prompt, AnswerOptions(most_tokens=MANY, ends=False))
            assert [piece.token for piece in answer] == expected
            net.model.rope_deltas = None
            theirs = net(**marks, **fed).logits[0].numpy()
            ours = model.logits(model.images.read(prompt).tokens)
            np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_the_recipe_tells_how_pictures_are_cut_and_torch_is_not_needed(tmp_path):
    folder = write_qwen_folder(tmp_path / "net", "qwen2_5_vl")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from edgeopt.export.export import export\n"
        "from pathlib import Path\n"
        f"print(export({f'hf:{folder}'!r}, out=Path({str(tmp_path / 'out' / 'model.onnx')!r})).framework)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "NumPy" in done.stdout, done.stderr
    recipe = read_recipe(tmp_path / "out" / "recipe.toml")
    table = recipe.image
    assert (table.token, table.before, table.behind) == ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
    assert (table.patch, table.merge, table.window, table.least_pixels, table.most_pixels) == (8, 2, 4, LEAST, MOST)
    assert recipe.description.startswith("Qwen2.5-VL, qwen2, 3 layers")
    with pytest.raises(ValueError, match="into tiles or into patches"):
        replace(table, tile=16)
    with pytest.raises(ValueError, match="needs token, least_pixels and most_pixels"):
        replace(table, most_pixels=0)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    folder = write_qwen_folder(tmp_path / "net", "qwen2_vl")

    def refused(file: str, change, message: str) -> None:
        before = (folder / file).read_text("utf-8")
        values = json.loads(before)
        change(values)
        (folder / file).write_text(json.dumps(values), "utf-8")
        with pytest.raises(EdgeoptError, match=message):
            export(f"hf:{folder}", out=tmp_path / "refused" / "model.onnx")
        (folder / file).write_text(before, "utf-8")

    refused("config.json", lambda values: values["rope_scaling"].pop("mrope_section"), "has no mrope_section")
    refused(
        "config.json", lambda values: values["rope_scaling"].update(mrope_section=[1, 1, 1]), r"\[1, 1, 1\] of 8 pairs"
    )
    refused(
        "config.json",
        lambda values: values["vision_config"].update(hidden_act="relu"),
        "hidden_act = relu is not written",
    )
    refused("config.json", lambda values: values["vision_config"].pop("depth"), "lacks a size")
    refused("config.json", lambda values: values.update(image_token_id=3), "no special token 3, image_token_id")
    pictures = "preprocessor_config.json"
    refused(pictures, lambda values: values.update(patch_size=14), "cuts patches of 14 pixels, 2x2 a row; the encoder")
    refused(pictures, lambda values: values.update(do_normalize=False), "do_normalize = false is not done here")
    write_tensors(folder / "model.safetensors", {"model.embed_tokens.weight": np.zeros((4, 4))})
    with pytest.raises(EdgeoptError, match="lacks the weights visual"):
        export(f"hf:{folder}", out=tmp_path / "refused" / "model.onnx")
    assert not (tmp_path / "refused").exists()


def test_weights_above_two_gigabytes_go_to_files_while_they_are_written(tmp_path, monkeypatch):
    """The same answers come out of files beside the graphs; nothing else is left there."""
    folder = write_qwen_folder(tmp_path / "net", "qwen3_vl")
    plain = export(f"hf:{folder}", out=tmp_path / "plain" / "model.onnx").file
    monkeypatch.setattr("edgeopt.export.decoder.tensors_file.LARGE_BYTES", 1000)
    outside = export(f"hf:{folder}", out=tmp_path / "outside" / "model.onnx").file
    names = {path.name for path in outside.parent.iterdir()}
    assert names - {path.name for path in plain.parent.iterdir()} == {"model.onnx.data", "image_encoder.onnx.data"}
    answers = []
    for file in (plain, outside):
        with open_language_model(file, 1)[0] as model:
            prompt = model.seen("What is this?", [photo(1, 90, 120)])
            answers.append(model.logits(model.images.read(prompt).tokens))
    np.testing.assert_array_equal(*answers)
