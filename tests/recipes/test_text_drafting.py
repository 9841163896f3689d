"""A recipe of texts from what lies beside a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.hugging_face import Configuration
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN, text_recipe
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.texts.text import Pooling
from edgeopt.system.toml import parse_table, read_toml

FREE = (
    TensorSpec("input_ids", "int64", ("batch", "tokens")),
    TensorSpec("attention_mask", "int64", ("batch", "tokens")),
)
FIXED = (TensorSpec("ids", "int32", (1, 32)),)
HIDDEN = TensorSpec("last_hidden_state", "float32", (1, 32, 8))
LOGITS = TensorSpec("logits", "float32", (1, 3), op="Softmax")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def told(name: str, **values: object) -> Configuration:
    return Configuration({"architectures": [name], **values})


def test_the_class_tells_the_task_and_its_names(folder: Path) -> None:
    names = {str(i): name for i, name in enumerate(("bad", "even", "good"))}
    found = text_recipe(folder, told("BertForSequenceClassification", id2label=names), FREE, None)
    assert found is not None
    recipe, comments = found
    assert (recipe.task, recipe.postprocess.decoder, recipe.evaluation.metric) == (
        "text_classification",
        "logits",
        "top1",
    )
    assert recipe.class_names == ("bad", "even", "good")
    assert (recipe.tokenizer.ids, recipe.tokenizer.length) == ("input_ids", 128)
    assert comments["tokenizer.length"].startswith(NOT_KNOWN)
    path = folder / "recipe.toml"
    path.write_text(recipe_text(recipe, name="moods", labels="labels.txt", comments=comments))
    assert parse_table(Recipe, read_toml(path), str(path)).tokenizer == recipe.tokenizer


@pytest.mark.parametrize(
    ("configuration", "outputs"),
    [
        (told("BertForSequenceClassification", id2label={"0": "LABEL_0"}), None),
        (told("BertForSequenceClassification"), [TensorSpec("logits", "float32", ("batch", 1))]),
        (None, [TensorSpec("logits", "float32", (1, 1))]),
    ],
)
def test_one_number_is_that_of_a_cross_encoder(folder: Path, configuration, outputs) -> None:
    found = text_recipe(folder, configuration, FREE, outputs)
    assert found is not None
    recipe, comments = found
    assert (recipe.task, recipe.postprocess.decoder, recipe.evaluation.metric) == ("tensors", "none", "agreement")
    assert recipe.tokenizer.pairs
    assert recipe.class_names == ()
    assert comments["tokenizer.pairs"].startswith(NOT_KNOWN)


@pytest.mark.parametrize(
    ("configuration", "inputs", "outputs"),
    [
        (told("BertForTokenClassification"), FREE, None),
        (told("BertForMaskedLM"), FREE, None),
        (told("BertForSequenceClassification", problem_type="multi_label_classification"), FREE, None),
        (None, FREE, [TensorSpec("scores_of_pixels", "float32", (1, 3, 8, 8))]),
        (None, [TensorSpec("x", "float32", (1, 3, 8, 8))], [LOGITS]),
    ],
)
def test_what_no_task_of_texts_reads_gets_no_such_recipe(folder: Path, configuration, inputs, outputs) -> None:
    assert text_recipe(folder, configuration, inputs, outputs) is None


def test_without_a_tokenizer_there_is_no_recipe_of_texts(tmp_path: Path) -> None:
    assert text_recipe(tmp_path, told("BertForSequenceClassification"), FREE, None) is None


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN),
        ({"pooling_mode_cls_token": True}, Pooling.FIRST),
        ({"pooling_mode_max_tokens": True}, Pooling.USUAL),
    ],
)
def test_the_pooling_of_a_sentence_model_is_read(folder: Path, modes, pooling) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    found = text_recipe(folder, told("MPNetModel"), FIXED, [HIDDEN])
    assert found is not None
    assert (found[0].task, found[0].text.pooling) == ("embedding", pooling)
    assert (found[0].tokenizer.ids, found[0].tokenizer.length) == ("ids", 0)


def test_outputs_tell_the_task_where_no_configuration_does(folder: Path) -> None:
    classes, vectors = (text_recipe(folder, None, FIXED, [one]) for one in (LOGITS, HIDDEN))
    assert classes is not None
    assert vectors is not None
    assert (classes[0].task, classes[0].postprocess.decoder) == ("text_classification", "probabilities")
    assert vectors[0].task == "embedding"
