"""Optimum's names of tasks, what a class and its tensors are for, and what processors tell of sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.export.export import write_recipe
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ChosenRecipe, bind_recipe
from edgeopt.recipes.drafting.hugging_face import Configuration, audio_told, read_configuration, recipe_told
from edgeopt.recipes.drafting.optimum_tasks import TASK_NAMES, loader_of, read_task, task_of_class
from edgeopt.recipes.inputs.audio import Audio, Features, Scaling
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.recipe import read_recipe
from edgeopt.tasks import make_task

LOGITS = TensorSpec("logits", "float32", (1, 2))
WAVES = TensorSpec("input_values", "float32", (1, 8000))
AST = {"feature_extractor_type": "ASTFeatureExtractor", "sampling_rate": 16000, "max_length": 128, "num_mel_bins": 64}
WAV2VEC2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000, "do_normalize": True}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000, "feature_size": 80}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_each_name_is_read(name: str) -> None:
    assert read_task(name).name == name.removesuffix("-with-past")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sequence-classification", "text-classification"),
        ("default", "feature-extraction"),
        ("causal-lm-with-past", "text-generation"),
        ("speech2seq-lm-with-past", "automatic-speech-recognition"),
    ],
)
def test_another_name_of_optimum_is_read(name: str, expected: str) -> None:
    assert read_task(name).name == expected


@pytest.mark.parametrize("name", ["", "nothing", "text_classification", "causal-lm", "text-to-image", "x" * 5000])
def test_any_other_name_is_one_error(name: str) -> None:
    with pytest.raises(EdgeoptError) as error:
        read_task(name)
    assert len(error.value.problem) < 200


@pytest.mark.parametrize(
    ("class_name", "inputs", "outputs", "loader"),
    [
        ("BertForSequenceClassification", ["input_ids"], None, "ORTModelForSequenceClassification"),
        ("BertForSequenceClassification", ["input_ids"], ["last_hidden_state"], "ORTModelForFeatureExtraction"),
        ("BertForMaskedLM", ["input_ids"], ["logits"], "ORTModelForMaskedLM"),
        ("BertModel", ["input_ids"], ["token_embeddings", "sentence_embedding"], "ORTModelForFeatureExtraction"),
        ("Wav2Vec2ForSequenceClassification", ["input_values"], ["logits"], "ORTModelForAudioClassification"),
        ("SegformerForSemanticSegmentation", ["pixel_values"], ["logits"], "ORTModelForSemanticSegmentation"),
        ("DetrForObjectDetection", ["pixel_values"], ["logits", "pred_boxes"], "ORTModelForCustomTasks"),
        ("WhisperForConditionalGeneration", ["input_features"], ["last_hidden_state"], "ORTModelForFeatureExtraction"),
        ("SomethingElse", ["x"], ["y"], "ORTModelForCustomTasks"),
        ("", [], None, "ORTModelForCustomTasks"),
    ],
)
def test_the_class_of_optimum_follows_class_and_tensors(
    class_name: str, inputs: list[str], outputs: list[str] | None, loader: str
) -> None:
    assert loader_of(task_of_class(class_name, inputs, outputs)) == loader


@pytest.mark.parametrize(
    ("processor", "shape", "expected"),
    [
        (WAV2VEC2, (1, 8000), Audio(rate_hz=16000, samples=8000, scaling=Scaling.WHOLE)),
        (WAV2VEC2 | {"do_normalize": False}, (1, 8000), Audio(rate_hz=16000, samples=8000)),
        (WHISPER, (1, 80, 3000), Audio(rate_hz=16000, features=Features.WHISPER, samples=480000, bands=80)),
        (
            WHISPER | {"do_normalize": True},
            (1, 80, 800),
            Audio(rate_hz=16000, features=Features.WHISPER, samples=128000, bands=80, normalise=True),
        ),
        (WHISPER, (1, 16, 64), None),
        (WHISPER | {"hop_length": 100}, (1, 80, 3000), None),
        (WAV2VEC2, (1, "samples"), None),
        (WAV2VEC2 | {"sampling_rate": "fast"}, (1, 8000), None),
        (AST | {"max_length": 512}, (1, 1024, 128), None),
        ({}, (1, 8000), None),
    ],
)
def test_a_processor_of_sounds_becomes_audio(processor: Any, shape: Any, expected: Audio | None) -> None:
    assert audio_told(processor, TensorSpec("sound", "float32", shape)) == expected


def test_a_classifier_of_sounds_hears_at_mean_0_and_deviation_1() -> None:
    values = {"architectures": ["HubertForSequenceClassification"], "id2label": {"0": "yes", "1": "no"}}
    recipe, _ = recipe_told(Configuration(values, WAV2VEC2), [WAVES], ["logits"], name="net", source="hf:net")
    assert recipe is not None
    assert (recipe.task, recipe.class_names) == ("classification", ("yes", "no"))
    bound = recipe if recipe.input.tensor else _bound(recipe)
    assert fixed_shapes(bound, [WAVES])["input_values"] == (1, 8000)
    samples = np.random.default_rng(0).normal(0.2, 0.05, 8000).astype(np.float32)
    fed = SoundInput(bound, [WAVES])(Sound(samples, 16000))["input_values"][0]
    expected = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)  # Wav2Vec2FeatureExtractor
    np.testing.assert_allclose(fed, expected, atol=1e-5)


def _bound(recipe: Any, heard: TensorSpec = WAVES, logits: TensorSpec = LOGITS) -> Any:
    return bind_recipe(ChosenRecipe(recipe), [heard], [logits], {}, {}).recipe


@pytest.mark.parametrize("count", [9000, 20720, 40000])
def test_a_sound_is_heard_as_the_audio_spectrogram_transformer_hears_it(count: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.ASTFeatureExtractor(max_length=128, num_mel_bins=64)
    spec = TensorSpec("input_values", "float32", (1, 128, 64))
    processor = AST | {"mean": extractor.mean, "std": extractor.std}
    values = {"architectures": ["ASTForAudioClassification"]}
    recipe, _ = recipe_told(Configuration(values, processor), [spec], ["logits"], name="net", source="hf:net")
    bound = _bound(recipe, spec)
    samples = np.random.default_rng(0).normal(0, 0.1, count).astype(np.float32)
    expected = extractor(samples, sampling_rate=16000, return_tensors="np")["input_values"]
    found = SoundInput(bound, [spec])(Sound(samples, 16000))["input_values"]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_sound_of_free_length_as_optimum_exports_it_is_heard_for_a_second() -> None:
    free = TensorSpec("input_values", "float32", ("batch_size", "sequence_length"))
    values = {"architectures": ["HubertForSequenceClassification"], "id2label": {"0": "yes", "1": "no"}}
    recipe, _ = recipe_told(Configuration(values, WAV2VEC2), [free], ["logits"], name="net", source="net")
    assert recipe is not None
    assert recipe.task == "classification"
    bound = _bound(recipe, free)
    assert fixed_shapes(bound, [free])["input_values"] == (1, 16000)
    fed = SoundInput(bound, [free])(Sound(np.ones(8000, np.float32), 16000))["input_values"]
    assert fed.shape == (1, 16000)


def test_a_recogniser_of_speech_writes_the_letters_of_its_vocabulary(tmp_path: Path) -> None:
    letters = ["<pad>", "<s>", "<unk>", "|", "A", "B"]
    values: dict[str, Any] = {"architectures": ["Wav2Vec2ForCTC"], "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(WAV2VEC2))
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(letters)}))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    told = read_configuration(tmp_path)
    assert told is not None
    logits = TensorSpec("logits", "float32", (1, 8, 6))
    drafted, _ = recipe_told(told, [WAVES], ["logits"], name="net", source="hf:net")
    assert drafted is not None
    assert {one.name for one in write_recipe(drafted, tmp_path)} == {"alphabet.txt", "recipe.toml"}
    recipe = read_recipe(tmp_path / "recipe.toml")
    reader = make_task(_bound(recipe, WAVES, logits), [WAVES], [logits], evaluating=False)
    steps = [3, 4, 4, 0, 4, 1, 3, 5]
    line = reader.postprocess({"logits": np.eye(6, dtype=np.float32)[None, steps] * 20})
    assert line.text == "AA B"
    fed, _ = reader.preprocess(Sound(np.ones(8000, np.float32), 16000))
    assert fed["input_values"].shape == (1, 8000)
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"a": 0}, "deu": {"a": 0}}))
    told = read_configuration(tmp_path)
    assert told is not None
    assert told.head_of(["logits"]).task == "tensors"
