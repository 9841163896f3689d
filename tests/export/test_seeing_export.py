"""A language model that sees is exported as encoder and decoder, which write what transformers' `generate` writes."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from seeing_models import PROCESSOR, ROWS, TABLE, TEMPLATE, picture, write_network

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export, names_decoder
from edgeopt.recipes.inputs.seen.tiles import grid_of, pixels_of, tiles_of
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

MOST = 16
LONG = pytest.mark.skipif("EDGEOPT_OPTIMUM" not in os.environ, reason="a second kind takes torch ten seconds")
KINDS = ["idefics3", pytest.param("smolvlm", marks=LONG)]


def pictures_of_hugging_face(**changes):
    """Return Hugging Face's own processor of pictures, the one with Pillow."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    known = {key: value for key, value in PROCESSOR.items() if key not in ("processor_class", "image_processor_type")}
    return Idefics3ImageProcessorPil(**known | changes)


def processor_of(folder):
    """Return Hugging Face's own processor of pictures and texts."""
    import transformers
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return Idefics3Processor(pictures_of_hugging_face(), tokenizer, image_seq_len=ROWS, chat_template=TEMPLATE)


@pytest.mark.parametrize("size", [(90, 120), (64, 64), (40, 41), (128, 128), (30, 128)])
@pytest.mark.parametrize("splits", [True, False])
def test_tiles_are_those_of_the_processor_of_hugging_face(size, splits):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("transformers")
    processor = pictures_of_hugging_face(do_image_splitting=splits)
    frame = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    answer = processor(image.fromarray(frame[:, :, ::-1]), return_row_col_info=True)
    table = replace(TABLE, splits=splits)
    tiles = tiles_of(frame, table)
    expected = np.asarray(answer["pixel_values"][0])
    assert tiles.grid == (answer["rows"][0][0], answer["cols"][0][0]) == grid_of(*frame.shape[:2], table)
    assert np.array_equal(np.concatenate([pixels_of(tile, table) for tile in tiles.pixels]), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_pictures_are_those_of_transformers(kind, tmp_path):
    image = pytest.importorskip("PIL.Image")
    net = write_network(tmp_path / kind, kind)
    if kind == "idefics3":  # as older processors were saved
        (tmp_path / kind / "chat_template.jinja").unlink()
        (tmp_path / kind / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}), "utf-8")
    assert names_decoder(f"hf:{tmp_path / kind}")
    result = export(f"hf:{tmp_path / kind}", out=tmp_path / "out" / "model.onnx")
    assert result.sees
    assert {output.name: output.drift.sqnr_db > 80 for output in result.outputs} == {"image_rows": True, "logits": True}
    beside = {"image_encoder.onnx", "recipe.toml", "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"}
    assert {path.name for path in result.beside} == beside
    assert (tmp_path / "out" / "chat_template.jinja").read_text("utf-8") == TEMPLATE
    table = read_recipe(tmp_path / "out" / "recipe.toml").image
    assert (table.tile, table.longest, table.rows, table.splits) == (64, 128, ROWS, True)
    processor = processor_of(tmp_path / kind)
    frames = [picture(1), picture(2, 60, 120)]
    pictures = [image.fromarray(frame[:, :, ::-1]) for frame in frames]
    said = [{"role": "user", "content": [*[{"type": "image"}] * 2, {"type": "text", "text": "What is this?"}]}]
    written = processor.apply_chat_template(said, add_generation_prompt=True)
    asked = AnswerOptions(most_tokens=MOST)
    with open_language_model(tmp_path / "out" / "model.onnx", 1)[0] as model:
        for prompt, text in (("What is this?", written), ("<image>and<image> what", "<image>and<image> what")):
            fed = processor(text=text, images=[pictures], return_tensors="pt")
            assert list(model.seen(prompt, frames)) == fed["input_ids"][0].tolist()
            expected = net.generate(**fed, max_new_tokens=MOST, do_sample=False)[0].tolist()
            answer = [piece.token for piece in model.generate(prompt, asked, frames)]
            assert answer == expected[len(fed["input_ids"][0]) :]
        logits = model.logits(model.images.read(model.seen(prompt, frames)).tokens)
    import torch

    with torch.no_grad():
        theirs = net(**fed).logits[0].numpy()
    np.testing.assert_allclose(logits, theirs, atol=2e-4 * np.abs(theirs).max())


def refused(folder, file, change, message):
    """Export with a changed configuration, and put it back."""
    path = folder / file
    before = path.read_text("utf-8")
    values = json.loads(before)
    change(values)
    path.write_text(json.dumps(values), "utf-8")
    try:
        with pytest.raises(EdgeoptError, match=message):
            export(f"hf:{folder}", out=folder.parent / "refused" / "model.onnx")
    finally:
        path.write_text(before, "utf-8")


def test_what_is_not_done_is_refused_by_name(tmp_path):
    folder = tmp_path / "net"
    write_network(folder)
    experts = {"model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"]}
    refused(folder, "config.json", lambda values: values.update(experts), "experts beside pictures are not done here")
    llava = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    refused(folder, "config.json", lambda values: values.update(llava), "is a llava: its pictures are not done here")
    pictures = "preprocessor_config.json"
    refused(folder, pictures, lambda values: values.update(do_resize=False), "do_resize = false is not done here")
    refused(folder, pictures, lambda values: values.update(resample=9), "holds what is not known here")
    other = {"max_image_size": {"longest_edge": 32}}
    refused(folder, pictures, lambda values: values.update(other), "cuts tiles of 32 pixels, the encoder .* takes 64")
    refused(folder, "processor_config.json", lambda values: values.update(image_seq_len=9), "tells of 9 rows a tile")
    (folder / pictures).rename(folder / "elsewhere.json")
    with pytest.raises(EdgeoptError, match=r"has no preprocessor_config\.json"):
        export(f"hf:{folder}", out=tmp_path / "refused" / "model.onnx")
    (folder / "elsewhere.json").rename(folder / pictures)
    done = CliRunner().invoke(
        cli, ["export", f"hf:{folder}", "-o", str(tmp_path / "refused" / "model.onnx"), "--input", "a=1x2"]
    )
    assert "leave --input and --dynamic out" in done.output
    assert not (tmp_path / "refused").exists()
