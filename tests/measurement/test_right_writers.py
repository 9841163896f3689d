"""Language models, encoders with decoders and the models of a pipeline are held to the unoptimized answers too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from engine_faults import (
    HAS_SIGNALS,
    decoder_without_the_axis,
    picture_classifier_without_the_axis,
    seen_without_the_axis,
)
from exported_pairs import unpacked

from edgeopt.cli import cli
from edgeopt.executors import SessionOptions
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import DISABLED_OPTIMIZERS, FAMILIES, LEVEL, UNOPTIMIZED, merged
from edgeopt.graph.model import find_model, load_model, save_model
from edgeopt.measurement.generation.right_writer import (
    correction_of_decoder,
    open_right_decoder,
    open_right_pair,
    samples_of,
)
from edgeopt.measurement.opening.right_optimizations import Correction
from edgeopt.measurement.pipelines.given import open_pipeline
from edgeopt.optimization.encoder_decoder import optimize as of_pairs
from edgeopt.optimization.encoder_decoder import workplace
from edgeopt.optimization.generation import optimize as of_decoders
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_writer

pytestmark = HAS_SIGNALS
HELD_BACK = {DISABLED_OPTIMIZERS: ";".join(FAMILIES["LayerNormFusion"])}
BRIEF = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, processes=2)
SHIPPED = find_model("tiny_lm").parent
TOKENS = [5, 9, 30, 4, 8]
TEXT = "import os\n\nthe quick brown fox\njumps over\nthe lazy dog\nhello\n"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a decoder whose answers ONNX Runtime's optimizer changes."""
    folder = tmp_path_factory.mktemp("wrong") / "decoder"
    folder.mkdir()
    save_model(decoder_without_the_axis(1024), folder / "model.onnx")
    for name in ("tokenizer.json", "held_out.txt"):
        shutil.copy(SHIPPED / name, folder)
    lines = (SHIPPED / "recipe.toml").read_text("utf-8").replace("1024", "64").splitlines()
    (folder / "recipe.toml").write_text("\n".join(one for one in lines if not one.startswith("draft")), "utf-8")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder, whose answers ONNX Runtime's optimizer changes, with its decoder."""
    folder = unpacked("marian", tmp_path_factory.mktemp("wrong") / "marian")
    file = folder / "encoder_model.onnx"
    save_model(seen_without_the_axis(load_model(file), "last_hidden_state", 16), file)
    return folder


def logits(path: Path, entries: Mapping[str, str] | None = None) -> np.ndarray:
    opened = open_writer(path, 1, entries)
    with opened:
        if isinstance(opened, EncoderDecoder):
            return np.nan_to_num(opened.logits(TOKENS, TOKENS), neginf=0)  # of tokens that are never chosen
        assert isinstance(opened, LanguageModel)
        return opened.logits(TOKENS)


def options_of(bundle: Path) -> list[dict[str, str]]:
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    return [one["options"] for one in (*manifest["artefacts"], *manifest.get("parts", []))]


def test_a_decoder_is_held_back_where_its_logits_change(decoder: Path) -> None:
    opened, _ = open_right_decoder(decoder, 1)
    with opened:
        (note,) = opened.origin.notes
        found = opened.logits(TOKENS)
    assert opened.origin.entries == HELD_BACK
    assert "first at Add node 'shift_it': LayerNormFusion is switched off, in a bundle too" in note.detail
    right = logits(decoder, UNOPTIMIZED)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(logits(decoder) - right) > 0.1 * np.linalg.norm(right), "it errs where nothing holds it back"


def test_its_bundle_records_that_and_answers_right(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_decoders, "FORMS", tuple(one for one in of_decoders.FORMS if one.name == "w8a8"))
    given = {"target": "cpu", "out": tmp_path / "out", "options": BRIEF, "listener": Silence()}
    report = of_decoders.optimize_language_model(str(decoder), **given)
    assert any("LayerNormFusion is switched off" in str(note) for note in report.notes)
    assert [one.agreement > 0.5 for one in report.candidates[1:]] == [True], "forms are held back alike"
    assert options_of(report.bundle) == [HELD_BACK]
    right = logits(decoder if report.chosen == "fp32" else Path(report.best.file), UNOPTIMIZED)
    np.testing.assert_allclose(logits(report.folder), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("command", ["bench", "compare", "check", "run"])
def test_commands_say_it_of_a_decoder(command: str, decoder: Path, tmp_path: Path) -> None:
    brief = ["--prompt-tokens", "8", "--output-tokens", "2", "--threads", "1"]
    arguments = {
        "bench": [str(decoder), "--seconds", "0.1", *brief],
        "compare": [str(decoder), str(decoder), "--seconds", "0.1", *brief],
        "check": [str(decoder), "--update", "-b", str(tmp_path / "b.json"), "--skip", "latency", *brief],
        "run": [str(decoder), "--prompt", "import", "--output-tokens", "1", "--threads", "1"],
    }
    shown = CliRunner().invoke(cli, [command, *arguments[command]])
    assert shown.exit_code == 0, shown.output
    assert "LayerNormFusion is" in shown.output, shown.output


def test_all_graphs_of_an_encoder_with_a_decoder_are_held_back_alike(pair: Path) -> None:
    with open_right_pair(pair, 1) as opened:
        found = np.nan_to_num(opened.logits(TOKENS, TOKENS), neginf=0)
        assert opened.origin.entries == HELD_BACK
        assert any("first at Add node 'shift_it'" in note.detail for note in opened.files.notes)
    right = logits(pair, UNOPTIMIZED)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(logits(pair) - right) > 1e-2 * np.linalg.norm(right), "it errs where nothing holds it back"


def test_the_bundle_of_both_records_that(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplace, "ENCODER_FORMS", ())
    monkeypatch.setattr(workplace, "DECODER_FORMS", ())
    (tmp_path / "lines.txt").write_text(TEXT, "utf-8")
    options = LanguageOptions(output_tokens=4, threads=1, seconds=0.0, processes=2, eval=str(tmp_path / "lines.txt"))
    given = {"target": "cpu", "out": tmp_path / "out", "options": options, "listener": Silence()}
    report = of_pairs.optimize_encoder_decoder(str(pair), **given)
    assert any("LayerNormFusion is switched off" in str(note) for note in report.notes)
    assert all(one == HELD_BACK for one in options_of(report.bundle))
    np.testing.assert_allclose(logits(report.folder), logits(pair, UNOPTIMIZED), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["whisper", "t5"])
def test_each_graph_takes_the_inputs_that_judge_it(kind: str, tmp_path: Path) -> None:
    folder = unpacked(kind, tmp_path / kind)
    with open_writer(folder, 1) as opened:
        assert isinstance(opened, EncoderDecoder)
        files = opened.files
    features = FeatureMaker(files.audio).shape if files.audio else ()
    for file in files.files:
        model = load_model(file)
        session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
        for sample in samples_of(model, features):
            assert all(np.isfinite(one).all() for one in session.run(sample).values())


def test_the_shipped_decoder_needs_nothing_and_a_bundle_is_not_looked_at(decoder: Path, tmp_path: Path) -> None:
    assert correction_of_decoder(SHIPPED) == Correction()
    (tmp_path / "manifest.json").write_text("{}", "utf-8")
    shutil.copy(decoder / "model.onnx", tmp_path)
    assert correction_of_decoder(tmp_path / "model.onnx") == Correction()


def test_entries_of_several_graphs_are_joined() -> None:
    found = merged([{DISABLED_OPTIMIZERS: "A;B"}, {DISABLED_OPTIMIZERS: "B;C", LEVEL: "basic"}, {LEVEL: "extended"}])
    assert found == {DISABLED_OPTIMIZERS: "A;B;C", LEVEL: "basic"}
    assert merged([{}, {}]) == {}


def test_a_pipeline_names_the_stage_and_holds_that_one_back_alone(tmp_path: Path) -> None:
    save_model(picture_classifier_without_the_axis(), tmp_path / "wrong.onnx")
    stages = [("detect", "digits_detector", ""), ("read", "wrong.onnx", 'recipe = "wrong.toml"\n')]
    described = [f'[[stage]]\nname = "{name}"\nmodel = "{model}"\n{more}' for name, model, more in stages[::-1]]
    (tmp_path / "pipeline.toml").write_text('name = "shop"\n' + "".join(described), "utf-8")
    (tmp_path / "wrong.toml").write_text(RECIPE, "utf-8")
    with guarded() as guard:
        given = open_pipeline(
            str(tmp_path / "pipeline.toml"), target="cpu", threads=1, code=None, folder=tmp_path / "made"
        )
        assert guard.entries == {}
    (note,) = given.notes
    assert note.detail.startswith("stage read: ONNX Runtime")
    assert "first at Add node 'shift_it'" in note.detail
    assert DISABLED_OPTIMIZERS in options_of(tmp_path / "made" / "read")[0]
    assert DISABLED_OPTIMIZERS not in options_of(tmp_path / "made" / "detect")[0]


RECIPE = """
name = "wrong"
task = "classification"
description = "ten classes"
license = "none"
source = "here"

[input]
size = [8, 8]

[postprocess]
decoder = "logits"

[evaluation]
metric = "top1"
"""
