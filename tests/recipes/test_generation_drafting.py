from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.drafting.generation_drafting import drafted_generation
from edgeopt.recipes.texts.generation import GenerationTable
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
OPTIMUM = {
    "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": [0, 7],
}  # fmt: skip
GENAI = {"model": {"context_length": 512, "bos_token_id": 0, "eos_token_id": 0, "decoder": {"head_size": 32}}}


def folder_of(tmp_path: Path, **files) -> Path:
    shutil.copyfile(SHIPPED / "tokenizer.json", tmp_path / "tokenizer.json")
    for name, values in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values), "utf-8")
    return tmp_path


def test_what_optimum_wrote_is_read(tmp_path):
    settings = {"add_bos_token": True, "model_max_length": 10**30}
    recipe = drafted_generation(folder_of(tmp_path, config=OPTIMUM, tokenizer_config=settings))
    assert recipe is not None
    assert recipe.generation == GenerationTable(1024, (0, 7), (0,))


def test_what_the_builder_of_genai_wrote_is_read(tmp_path):
    recipe = drafted_generation(folder_of(tmp_path, genai_config=GENAI, config=OPTIMUM))
    assert recipe is not None
    assert recipe.generation == GenerationTable(512, (0,), (), 32)


def test_a_folder_without_a_recipe_answers_as_with_its_own(tmp_path):
    shutil.copyfile(SHIPPED / "model.onnx", tmp_path / "model.onnx")
    folder_of(tmp_path, config=OPTIMUM, tokenizer_config={"add_bos_token": True})
    answers = []
    for folder in (tmp_path, SHIPPED):
        model, _ = open_language_model(folder / "model.onnx", 1)
        with model:
            answers.append(model.generate("import os", AnswerOptions(most_tokens=16)).text())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("files", [{}, {"config": {"architectures": ["BertModel"]}}, {"config": {}}])
def test_other_folders_tell_of_no_language_model(files, tmp_path):
    assert drafted_generation(folder_of(tmp_path, **files)) is None


@pytest.mark.parametrize(
    "files",
    [
        {"config": []},
        {"config": {**OPTIMUM, "max_position_embeddings": "many"}},
        {"genai_config": {"model": {"context_length": [1]}}},
    ],
)
def test_damaged_configurations_are_one_line(files, tmp_path):
    with pytest.raises(InvalidFileError, match=r"config\.json"):
        drafted_generation(folder_of(tmp_path, **files))


BEGIN = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<b>"}}, {"Sequence": {"id": "A"}}],
         "special_tokens": {"<b>": {"ids": [5, 6]}}}  # fmt: skip
END = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<b>"}}],
       "special_tokens": {"<b>": {"ids": [5]}}}  # fmt: skip


def with_processor(folder: Path, processor) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "post_processor": processor}), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("settings", "processor", "begin"),
    [
        ({}, BEGIN, (5, 6)),  # as Llama 3
        ({}, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, BEGIN]}, (5, 6)),
        ({}, {"type": "ByteLevel"}, ()),
        ({}, None, ()),
        ({}, END, ()),
        ({"add_bos_token": False}, BEGIN, ()),
        ({"add_bos_token": True}, None, (0,)),
    ],
)
def test_where_the_settings_say_nothing_the_tokenizer_says_what_begins_a_text(settings, processor, begin, tmp_path):
    folder = with_processor(folder_of(tmp_path, config=OPTIMUM, tokenizer_config=settings), processor)
    assert drafted_generation(folder).generation.begin == begin


def test_a_template_that_is_none_is_one_line(tmp_path):
    folder = with_processor(folder_of(tmp_path, config=OPTIMUM), {**BEGIN, "special_tokens": {}})
    with pytest.raises(InvalidFileError, match="template"):
        drafted_generation(folder)
