"""A tokenizer of another model is told or refused, and the unused rows that models come with are neither."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from exported_pairs import unpacked
from onnx import numpy_helper
from small_decoders import SHIPPED

from edgeopt.cli import cli
from edgeopt.errors import NoteKind, UnsupportedError
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.texts.vocabulary import require_vocabulary
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model, open_writer

WORDS = ("the", "room", "was", "good")


def widen(file: Path, axes: dict[str, int], rows: int) -> None:
    """Give a model more rows for tokens than it was made with: zeros behind its own, along an axis of each tensor."""
    proto = onnx.load(file)
    for one in proto.graph.initializer:
        if one.name in axes:
            array, axis = numpy_helper.to_array(one), axes[one.name]
            more = [(0, rows - size if i == axis else 0) for i, size in enumerate(array.shape)]
            one.CopyFrom(numpy_helper.from_array(np.pad(array, more), one.name))
    for one in proto.graph.output:
        if len(one.type.tensor_type.shape.dim) == 3 and one.name == "logits":
            one.type.tensor_type.shape.dim[2].dim_value = rows
    file.write_bytes(proto.SerializeToString())


def of_words(file: Path) -> None:
    """Write a tokenizer that knows some words."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")
    names = ["[PAD]", "[UNK]", *WORDS]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(names[:2])
    file.write_text(made.to_str(), "utf-8")


def tiny(folder: Path, rows: int = 1024, **names: list[int]) -> Path:
    """Return the shipped language model with so many rows, and other tokens in its recipe."""
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json"):
        shutil.copy(SHIPPED / name, folder / name)
    recipe = (SHIPPED / "recipe.toml").read_text("utf-8")
    recipe = recipe.replace('draft = "draft/model.onnx"\n', "").replace('calib = "held_out.txt"\n', "")
    for name, tokens in names.items():
        recipe = recipe.replace(f"{name} = [0]", f"{name} = {tokens}")
    (folder / "recipe.toml").write_text(recipe, "utf-8")
    if rows > 1024:
        widen(folder / "model.onnx", {"embedding": 0, "lm_head": 1}, rows)
    return folder


@pytest.mark.parametrize(
    ("tokens", "rows", "special"),
    [
        (32011, 32064, ()),  # Phi-3
        (50295, 51200, ()),  # Phi-2
        (151665, 151936, ()),  # Qwen2.5 0.5B
        (151665, 152064, ()),  # Qwen2.5 7B
        (100015, 102400, ()),  # DeepSeek LLM
        (32100, 32128, ()),  # T5
        (128000, 128256, range(128000, 128256)),  # Llama 3: those that stand for no text lie behind all others
        (50257, 51865, range(50257, 50364)),  # Whisper, with a tokenizer older than its times
        (32000, 32000, (32000,)),  # a fill that was added behind the rows, and is never asked for
        (65, 128, ()),  # single characters, filled up
        (30522, 30522, ()),  # BERT
    ],
)
def test_rows_that_models_come_with_are_not_told(tokens, rows, special):
    assert require_vocabulary("tokenizer.json", tokens, rows, special) == ()


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(28996, 30522), (30522, 32000), (257, 1024), (32000, 50257), (1000, 2000), (50257, 100514)],
)
def test_more_unused_rows_are_told_and_do_not_block(tokens, rows):
    (note,) = require_vocabulary("tokenizer.json", tokens, rows)
    assert note.kind is NoteKind.WARNING
    assert str(note).startswith(f"tokenizer.json has {tokens} tokens, the model {rows}: it may be another model's")


@pytest.mark.parametrize(("tokens", "rows"), [(32000, 128256), (1024, 50257), (100, 1101), (0, 1001)])
def test_more_than_twice_the_rows_are_refused(tokens, rows):
    with pytest.raises(UnsupportedError, match=f"has {tokens} tokens, the model {rows}: it is another") as caught:
        require_vocabulary("tokenizer.json", tokens, rows)
    assert caught.value.remedy == "take the tokenizer.json that the model was trained with"


def test_the_shipped_model_and_a_padded_form_of_it_are_silent(tmp_path):
    padded = tiny(tmp_path / "padded", 1024 + 128)
    with open_language_model(SHIPPED, 1)[0] as shipped, open_language_model(padded, 1)[0] as opened:
        assert shipped.origin.notes == opened.origin.notes == ()
        tokens, same = (list(one.generate("import os", AnswerOptions(8, guesses=0))) for one in (shipped, opened))
    assert [one.token for one in tokens] == [one.token for one in same]


def test_a_language_model_with_many_unused_rows_answers_and_says_so(tmp_path):
    model = tiny(tmp_path / "model", 1400)
    done = CliRunner().invoke(cli, ["run", str(model), "--prompt", "import os", "--output-tokens", "4"])
    assert done.exit_code == 0, done.output
    assert done.output.count("has 1024 tokens, the model 1400: it may be another model's tokenizer") == 1


def test_a_language_model_with_a_foreign_tokenizer_is_refused_in_a_line(tmp_path):
    model = tiny(tmp_path / "model")
    of_words(model / "tokenizer.json")
    done = CliRunner().invoke(cli, ["run", str(model), "--prompt", "the room", "--threads", "1"])
    assert done.exit_code == 1
    assert "the tokenizer has 6 tokens, the model 1024: it is another model's tokenizer\n  -> take the" in done.output


@pytest.mark.parametrize(("name", "does"), [("end", "ends an answer"), ("begin", "stands before each prompt")])
def test_a_token_of_the_recipe_beyond_the_rows_is_refused(name, does, tmp_path):
    model = tiny(tmp_path / "model", **{name: [0, 1024]})
    with pytest.raises(UnsupportedError, match=f"the token 1024 that {does} is none of the model's, 0 to 1023"):
        open_language_model(model, 1)


def test_an_encoder_with_a_decoder_is_judged_alike(tmp_path):
    folder = unpacked("t5", tmp_path / "t5")
    of_words(folder / "tokenizer.json")
    with open_writer(folder, 1) as opened:
        assert [one.kind for one in opened.files.notes] == [NoteKind.WARNING]
        assert "has 6 tokens, the model 262: it may be another" in opened.files.notes[0].detail
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        proto = onnx.load(folder / name)
        heads = {one.name: 1 for one in proto.graph.initializer if list(one.dims) == [16, 262]}
        widen(folder / name, heads, 1400)
    with pytest.raises(UnsupportedError, match="has 6 tokens, the model 1400: it is another"):
        open_writer(folder, 1)


def test_a_start_of_answers_beyond_the_rows_is_refused(tmp_path):
    folder = unpacked("t5", tmp_path / "t5", decoder_start_token_id=262)
    with pytest.raises(UnsupportedError, match="the token 262 that begins an answer is none of the model's, 0 to 261"):
        open_writer(folder, 1)


def test_a_network_of_texts_is_judged_alike(tmp_path):
    (tmp_path / "model").mkdir()
    model = tmp_path / "model" / "model.onnx"
    shutil.copy(Path(__file__).parents[1] / "trained" / "moods.onnx", model)
    (model.parent / "recipe.toml").write_text(
        'name = "moods"\ntask = "text_classification"\ndescription = ""\nlicense = ""\nsource = ""\n'
        'labels = "labels.txt"\n[tokenizer]\nfile = "tokenizer.json"\n[postprocess]\ndecoder = "logits"\n'
        '[evaluation]\nmetric = "top1"\n'
    )
    (model.parent / "labels.txt").write_text("bad\neven\ngood\n")
    of_words(model.parent / "tokenizer.json")
    widen(model, {"words.weight": 0}, 300)
    (note,) = open_given(str(model), "cpu", None).choice.notes
    assert str(note).startswith("tokenizer.json has 6 tokens, the model 300: it may be another model's")
    widen(model, {"words.weight": 0}, 1400)
    with pytest.raises(UnsupportedError, match="has 6 tokens, the model 1400: it is another model's"):
        open_given(str(model), "cpu", None)
