"""Trained nets of texts, on texts made here: INT8 keeps the metric, a broken form is refused by it, bundles answer.

`benchmarks/trained/texts.py` trains them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from fixture_broken import lost_weights
from made_texts import MOODS, TAGS, WORDS, write_moods, write_tagged, write_tokenizer, write_topics

from edgeopt import Runtime, optimize
from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError, MissingDependencyError, UnsupportedError
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.inputs import text_input
from edgeopt.runtime.bundle import MANIFEST, seal

TRAINED = Path(__file__).parents[1] / "trained"
RECIPE = """name = "{name}"
task = "{task}"
description = "trained for some minutes"
license = "ours"
source = "benchmarks/trained"
{labels}
[tokenizer]
file = "tokenizer.json"
[postprocess]
decoder = "{decoder}"
[evaluation]
metric = "{metric}"
"""
KINDS = {
    "moods": ("text_classification", "macro_F1", MOODS, write_moods, ".csv", 0.85),
    "tagger": ("token_classification", "entity_F1", TAGS, write_tagged, ".conll", 0.9),
    "meanings": ("embedding", "recall1", (), write_topics, ".csv", 0.95),
}
"""Net to task, metric, names of classes, what writes its labels, their suffix, and the least it reaches."""


def place(name: str, folder: Path) -> Path:
    """Lay a net into a folder with its recipe, labels and texts."""
    task, metric, names, write, suffix, _ = KINDS[name]
    shutil.copy(TRAINED / f"{name}.onnx", folder / "model.onnx")
    how = {"labels": 'labels = "labels.txt"' if names else "", "decoder": "logits" if names else "none"}
    (folder / "recipe.toml").write_text(RECIPE.format(name=name, task=task, metric=metric, **how))
    (folder / "labels.txt").write_text("\n".join(names) + "\n")
    write_tokenizer(folder / "tokenizer.json")
    write(folder / f"truth{suffix}", 150, 1)
    write_moods(folder / "moods.csv", 64, 2)
    texts = [one.replace('"', "") for one in (folder / "moods.csv").read_text().splitlines()[1:]]
    if name == "tagger":
        write_tagged(folder / "calib.conll", 64, 2)
        blocks = (folder / "calib.conll").read_text().split("\n\n")
        texts = [" ".join(line.split()[0] for line in block.splitlines() if line) for block in blocks]
    (folder / "calib.txt").write_text("\n".join(texts) + "\n")
    return folder / "model.onnx"


def run(name: str, folder: Path) -> Any:
    model = place(name, folder)
    told = {"eval": folder / f"truth{KINDS[name][4]}", "calib": folder / "calib.txt"}
    return optimize(model, out=folder / "out", steps=("simplify", "quantize"), threads=1, **told)


@pytest.mark.parametrize("name", KINDS)
def test_int8_keeps_the_metric_and_the_bundle_answers_texts(name: str, one_form: None, tmp_path: Path) -> None:
    report = run(name, tmp_path)
    baseline, integers = report.candidates[0], [one for one in report.candidates if "quantize" in one.name]
    assert baseline.score.metric == KINDS[name][1]
    assert baseline.score.value >= KINDS[name][5]
    assert integers
    assert max(one.agreement for one in integers) >= 0.9
    assert all(one.score.value >= baseline.score.value - 0.02 for one in integers if one.word == "KEPT")
    bundle = report.folder / "bundle"
    assert (bundle / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert {"selftest.npz", "tokenizer.json"} <= {one.name for one in bundle.iterdir()}
    with Runtime.load(bundle) as runtime:
        told = runtime.task.as_text(runtime.predict("Mr Karo met the staff in Roma and the tea was not good ."))
        assert {"moods": "bad", "tagger": "Karo' PER", "meanings": "32 numbers: "}[name] in told
        with pytest.raises(ValueError, match="takes a text, not bytes"):
            runtime.predict(b"good")  # type: ignore[arg-type]
    shown = CliRunner().invoke(cli, ["run", str(report.folder), str(tmp_path / "calib.txt"), "--limit", "2", "--json"])
    assert shown.exit_code == 0, shown.output
    given = ["run", str(report.folder), str(tmp_path / "calib.txt"), "--limit", "2", "--save", str(tmp_path / "drawn")]
    saved = CliRunner().invoke(cli, given)
    assert saved.exit_code == 0, saved.output
    assert len([*(tmp_path / "drawn").iterdir()]) == 2
    assert (report.folder / "answers.png").is_file()
    require_own_tokenizer(bundle)
    with (bundle / "tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(InvalidFileError, match=r"tokenizer.json differs from its hash"):
        Runtime.load(bundle)


def require_own_tokenizer(bundle: Path) -> None:
    """A manifest that was changed so that the recipe reads a file elsewhere is refused."""
    manifest = bundle / MANIFEST
    whole, values = manifest.read_bytes(), json.loads(manifest.read_bytes())
    values["recipe"]["tokenizer"]["file"] = "../tokenizer.json"
    values["sha256"] = seal(values)
    manifest.write_text(json.dumps(values))
    with pytest.raises(InvalidFileError, match=r"does not name '../tokenizer.json'"):
        Runtime.load(bundle)
    manifest.write_bytes(whole)


@pytest.mark.parametrize("name", KINDS)
def test_a_broken_int8_form_is_refused_by_the_metric(name: str, one_form: None, tmp_path: Path) -> None:
    with lost_weights():
        report = run(name, tmp_path)
    integers = [one for one in report.candidates if "quantize" in one.name]
    assert integers
    assert "quantize" not in report.chosen
    assert all("agrees with the original in" in one.refused for one in integers)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    model = place("moods", tmp_path)
    assert open_given(str(model), "cpu", None).recipe.input.shapes == {"input_ids": (1, 32), "attention_mask": (1, 32)}
    write_tokenizer(tmp_path / "tokenizer.json", ("one", "more"))
    count = 4 + len(WORDS) + 60
    with pytest.raises(UnsupportedError, match=f"has {count + 2} tokens, the model {count}"):
        open_given(str(model), "cpu", None)


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = place("moods", tmp_path)
    text_input._opened.cache_clear()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match="tokenizers") as caught:
        open_given(str(model), "cpu", None)
    assert caught.value.remedy == "pip install 'edgeopt[text]'"


def test_other_samples_than_texts_are_refused_in_one_line(tmp_path: Path) -> None:
    model = place("moods", tmp_path)
    (tmp_path / "wrong.txt").write_bytes("träge".encode("utf-16"))
    for source, told in (("wrong.txt", "is not UTF-8"), ("labels.csv", "does not exist")):
        shown = CliRunner().invoke(cli, ["bench", str(model), "--source", str(tmp_path / source), "--seconds", "1"])
        assert shown.exit_code != 0
        assert told in shown.output
    pictures = Path(__file__).parents[2] / "models" / "digits_detector" / "calib"
    shown = CliRunner().invoke(cli, ["bench", str(model), "--source", str(pictures), "--seconds", "1"])
    assert "holds pictures, recipe 'moods' takes texts" in " ".join(shown.output.split())


def test_the_runtime_imports_tokenizers_for_texts_only() -> None:
    code = "import sys, edgeopt.runtime.runtime; print('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_recipe_is_drafted_from_what_lies_beside_the_model(tmp_path: Path) -> None:
    model = place("tagger", tmp_path)
    (tmp_path / "recipe.toml").unlink()
    config = {"architectures": ["BertForTokenClassification"], "id2label": dict(enumerate(TAGS))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = CliRunner().invoke(cli, ["recipe", str(model), "--picture", str(tmp_path / "calib.txt")])
    assert shown.exit_code == 0, shown.output
    made = open_given(str(model), "cpu", None).recipe
    assert (made.task, made.evaluation.metric, made.class_names) == ("token_classification", "entity_F1", TAGS)
    assert made.tokenizer.file == "tokenizer.json"
    (tmp_path / "recipe.toml").unlink()
    (tmp_path / "config.json").unlink()
    shown = CliRunner().invoke(cli, ["recipe", str(model)])
    assert shown.exit_code == 0, shown.output
