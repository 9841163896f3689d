"""Networks of texts from Hugging Face, and what they are opened for by optimum's names of tasks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixture_brief import briefly
from fixture_pretrained import build
from made_texts import moods

from edgeopt.cli import cli
from edgeopt.graph.model import load_model
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.runtime import Runtime

missing = [name for name in ("torch", "onnxscript", "transformers", "tokenizers") if not importlib.util.find_spec(name)]
if missing:
    pytest.skip(f"{', '.join(missing)} not installed: an export needs it", allow_module_level=True)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nets")
    for kind in ("moods", "tags", "masked"):
        build(kind, folder / kind)
    return folder


def export(source: str, file: Path, *words: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["export", source, "-o", str(file), *words])


def outputs(file: Path) -> list[str]:
    return [one.name for one in load_model(file).outputs]


@pytest.mark.parametrize(
    ("kind", "task", "metric", "classes"),
    [("moods", "text_classification", "top1", 3), ("tags", "token_classification", "entity_F1", 7)],
)
def test_a_network_of_texts_brings_its_tokenizer_and_names(
    nets: Path, tmp_path: Path, kind: str, task: str, metric: str, classes: int
) -> None:
    shown = export(f"hf:{nets / kind}", tmp_path / "model.onnx")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("tokenizer.json") == 1
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert (recipe.task, recipe.evaluation.metric, recipe.tokenizer.file) == (task, metric, "tokenizer.json")
    assert len(recipe.class_names) == classes
    inspected = CliRunner().invoke(cli, ["inspect", str(tmp_path / "model.onnx")])
    assert inspected.exit_code == 0, inspected.output


def test_a_network_of_texts_goes_from_its_folder_to_a_bundle_that_answers_as_it_does(
    nets: Path, tmp_path: Path
) -> None:
    calib = tmp_path / "calib.txt"
    calib.write_text("".join(f"{text}\n" for text, _ in moods(24, seed=1)))
    words = ["optimize", f"hf:{nets / 'moods'}", "--target", "cpu", "--calib", str(calib), "--skip", "prune"]
    with briefly():
        shown = CliRunner().invoke(cli, [*words, "--threads", "1", "-o", str(tmp_path / "out")])
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    told = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "ORTModelForSequenceClassification.from_pretrained" in json.dumps(told)
    runtime = Runtime.load(tmp_path / "out" / "bundle", threads=1)
    is_float = runtime.bundle.artefacts[0].precision == "fp32"
    texts = [text for text, _ in moods(12, seed=3)]
    answers = [runtime.predict(text) for text in texts]
    ours = np.array([one.scores[np.argsort(one.indices)] for one in answers])
    runtime.close()
    np.testing.assert_allclose(ours, _of_framework(nets / "moods", texts), atol=1e-5 if is_float else 0.02)


def _of_framework(folder: Path, texts: list[str]) -> Any:
    """Return (texts, classes) probabilities of transformers, with its own tokenizer."""
    import torch
    from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    module = BertForSequenceClassification.from_pretrained(folder).eval()
    given = tokenizer(texts, padding="max_length", max_length=16, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return module(given["input_ids"], given["attention_mask"]).logits.softmax(-1).numpy()


def test_a_task_opens_the_body_of_a_network_that_was_trained_for_another(nets: Path, tmp_path: Path) -> None:
    shown = export(f"hf:{nets / 'masked'}", tmp_path / "whole" / "model.onnx")
    assert shown.exit_code == 0, shown.output
    assert outputs(tmp_path / "whole" / "model.onnx") == ["logits"]
    file = tmp_path / "body" / "model.onnx"
    shown = export(f"hf:{nets / 'masked'}", file, "--task", "feature-extraction")
    assert shown.exit_code == 0, shown.output
    assert outputs(file) == ["last_hidden_state"], "a pooling without weights would be random numbers"
    assert read_recipe(file.parent / "recipe.toml").task == "embedding"
    (file.parent / "recipe.toml").unlink()  # what is left is a folder as optimum-cli writes it
    inspected = CliRunner().invoke(cli, ["inspect", str(file.parent)])
    assert "feature-extraction" in inspected.output


@pytest.mark.parametrize(
    ("kind", "task", "said"),
    [
        ("masked", "text-classification", "no weights of a BertForSequenceClassification"),
        ("moods", "image-classification", "a BertForSequenceClassification is for text-classification"),
        ("moods", "text-clasification", "did you mean text-classification? optimum's names: audio-classification"),
        ("moods", "text-generation", "--task text-generation-with-past"),
        ("moods", "text-to-image", "optimum-cli export onnx --task text-to-image"),
    ],
)
def test_a_task_that_does_not_fit_is_one_error_and_leaves_no_file(
    nets: Path, tmp_path: Path, kind: str, task: str, said: str
) -> None:
    shown = export(f"hf:{nets / kind}", tmp_path / "model.onnx", "--task", task)
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ")
    assert said in " ".join(shown.output.split())
    assert not any(tmp_path.iterdir())


def test_a_task_is_of_hugging_face_alone_and_a_folder_that_is_exported_is_named(nets: Path, tmp_path: Path) -> None:
    shown = export("torch:some.module:net", tmp_path / "model.onnx", "--task", "feature-extraction")
    assert shown.exit_code == 1
    assert "leave --task out" in shown.output
    assert export(f"hf:{nets / 'moods'}", tmp_path / "made" / "model.onnx").exit_code == 0
    shown = export(f"hf:{tmp_path / 'made'}", tmp_path / "again.onnx")
    assert shown.exit_code == 1
    assert "holds model.onnx already, exported for text-classification" in " ".join(shown.output.split())


def test_optimize_opens_a_network_for_the_task_that_it_is_asked(nets: Path, tmp_path: Path) -> None:
    (tmp_path / "calib.txt").write_text("".join(f"{text}\n" for text, _ in moods(8, seed=1)))
    words = ["--target", "cpu", "--steps", "simplify", "--threads", "1", "--calib", str(tmp_path / "calib.txt")]
    words += ["-o", str(tmp_path / "out"), "--task", "feature-extraction"]
    with briefly():
        shown = CliRunner().invoke(cli, ["optimize", f"hf:{nets / 'masked'}", *words])
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    with Runtime.load(tmp_path / "out", threads=1) as runtime:
        assert [one.name for one in runtime.session.outputs] == ["last_hidden_state"]
        assert runtime.bundle.recipe.task == "embedding"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits_detector", "--task", "feature-extraction"], "leave --task out"),
        (["digits_detector", "--input", "x=1x3"], "--shape fixes free axes"),
        (["torch:some.module:net", "--shape", "x=1x3"], "write --input images=1x3x224x224"),
        (["hf:nowhere", "--task", "text-clasification"], "did you mean text-classification?"),
    ],
)
def test_what_only_an_export_is_told_is_refused_where_nothing_is_exported(words: list[str], said: str) -> None:
    shown = CliRunner().invoke(cli, ["optimize", *words, "--target", "cpu"])
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ")
    assert said in " ".join(shown.output.split())


def test_of_two_towers_the_one_is_exported_whose_input_is_named(tmp_path: Path) -> None:
    import transformers as t

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    seeing = {**sizes, "image_size": 32, "patch_size": 16, "projection_dim": 8}
    reading = {**sizes, "vocab_size": 60, "max_position_embeddings": 8, "projection_dim": 8}
    reading |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = t.CLIPConfig(text_config=reading, vision_config=seeing, projection_dim=8)
    t.CLIPModel(config).save_pretrained(tmp_path / "clip")
    processor = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "image_mean": [0.5] * 3}
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(processor | {"image_std": [0.5] * 3}))
    shown = export(f"hf:{tmp_path / 'clip'}", tmp_path / "see" / "model.onnx")
    assert shown.exit_code == 1
    assert "--input pixel_values=1x3x32x32, or --input input_ids=1x8:int64" in " ".join(shown.output.split())
    shown = export(f"hf:{tmp_path / 'clip'}", tmp_path / "see" / "model.onnx", "--input", "pixel_values=1x3x32x32")
    assert shown.exit_code == 0, shown.output
    assert outputs(tmp_path / "see" / "model.onnx")[0] == "image_embeds"
    assert read_recipe(tmp_path / "see" / "recipe.toml").task == "embedding"
