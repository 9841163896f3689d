"""Embedding: what is alike is found; a broken INT8 form finds less, and agrees less where nothing is labelled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import fixture_models
import numpy as np
import pytest
from click.testing import CliRunner
from painted import coloured, embedder

from edgeopt import compare, optimize
from edgeopt.cli import cli
from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.judgement import is_within
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe
from edgeopt.tasks import make_task
from edgeopt.tasks.embedding import Embedding

RECIPE = """
name = "things"
task = "embedding"
description = "things by their colour"
license = "ours"
source = "ours"
[preprocess]
scale = 0.00392156862745098
[postprocess]
decoder = "none"
[evaluation]
metric = "recall1"
"""
BOUND = Recipe("things", "embedding", "", "", "", Postprocess("none"), Evaluation("recall1"))


def task(*outputs: TensorSpec, metric: str = "recall1"):
    recipe = replace(BOUND, evaluation=Evaluation(metric))
    return make_task(recipe, [TensorSpec("ids", "int64", (1, 8))], outputs, evaluating=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("things")
    for name in ("images", "calib"):
        (folder / name).mkdir()
    rows = [(f"{thing}_{i}.png", thing, i) for thing in range(8) for i in range(4)]
    for name, thing, i in rows:
        cv2.imwrite(str(folder / "images" / name), coloured(thing, i))
        cv2.imwrite(str(folder / "calib" / name), coloured(thing, i + 50))
    (folder / "things.csv").write_text("".join(f"{name},{thing}\n" for name, thing, _ in rows))
    (folder / "recipe.toml").write_text(RECIPE)
    save_model(embedder(), folder / "things.onnx")
    return folder


def test_int8_is_judged_by_what_it_finds(brief: None, place: Path) -> None:
    given = {"eval": place / "things.csv", "calib": place / "calib"}
    report = optimize(place / "things.onnx", out=place / "out", **given, threads=1, time_limit_s=30)
    first, integers = report.candidates[0], [one for one in report.candidates if one.name.startswith("quantize")]
    assert first.score.metric == "recall1"
    assert first.score.value > 0.95
    assert max(one.agreement for one in integers) > 0.9
    assert all(one.score.value > first.score.value - 0.01 for one in integers if one.word == "KEPT")
    command = ["run", str(report.folder), str(place / "images"), "--limit", "1"]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.output
    assert "0_0.png: 16 numbers: " in told.stdout
    shown = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)["embedding"]
    assert sum(one * one for one in shown) == pytest.approx(1, abs=1e-4)
    assert CliRunner().invoke(cli, [*command, "--save", str(place / "drawn")]).exit_code == 0


def test_a_broken_form_finds_less(place: Path) -> None:
    for name, gain in (("right", 1.001), ("broken", 0.01)):
        save_model(embedder(gain), place / f"{name}.onnx")
    names = [str(place / one) for one in ("things.onnx", "right.onnx", "broken.onnx")]
    found = compare(*names, eval=place / "things.csv", seconds=0.2, threads=1)
    right, wrong = (row.quality.loss.value for row in found.rows[1:])
    assert [is_within(one, 0.01) for one in (right, wrong)] == [True, False]
    assert wrong > 0.1


def test_agreement_is_the_cosine_or_what_is_found() -> None:
    made, chance = task(TensorSpec("y", "float32", (1, 32))), np.random.default_rng(0)
    whole = [{"y": chance.normal(size=(1, 32)).astype(np.float32)} for _ in range(30)]
    answers = [made.postprocess(one) for one in whole]
    assert (made.agreement(answers, answers), made.loss(whole, whole)) == (1.0, pytest.approx(0.0, abs=1e-6))
    previous = made.agreement(answers, answers)
    for noise in (0.1, 0.5, 2.0):
        near = [{"y": one["y"] + noise * chance.normal(size=(1, 32)).astype(np.float32)} for one in whole]
        agreed = made.agreement([made.postprocess(one) for one in near], answers)
        assert agreed < previous
        previous = agreed
    longer = [{"y": one["y"] * 1e20} for one in whole]
    assert made.agreement([made.postprocess(one) for one in longer], answers) == pytest.approx(1)
    assert made.loss([{"y": one["y"] * np.float32(np.nan)} for one in whole], whole) == np.inf


def test_neighbours_that_change_places_count_where_cosines_stay_near() -> None:
    """All vectors share one large number, as embeddings before a whitening do."""
    chance = np.random.default_rng(1)
    small = chance.normal(size=(40, 16)).astype(np.float32) * 0.5
    noise = chance.normal(size=(40, 16)).astype(np.float32) * 0.5
    both = [np.concatenate([np.full((40, 1), 10, np.float32), one], axis=1) for one in (small, small + noise)]
    specs = TensorSpec("y", "float32", (1, 17))
    by_all, by_cosine = task(specs), task(specs, metric="cosine")
    mine, theirs = ([by_all.postprocess({"y": row[None]}) for row in rows] for rows in reversed(both))
    assert by_cosine.agreement(mine, theirs) > 0.95
    assert by_all.agreement(mine, theirs) < by_cosine.agreement(mine, theirs)


def test_tokens_become_their_mean_without_the_padding() -> None:
    made = task(TensorSpec("hidden", "float32", (1, 4, 2)), TensorSpec("ids", "int64", (1, 4)))
    tokens = np.array([[[3, 0], [3, 8], [99, 99], [99, 99]]], np.float32)
    inputs, mask = made.preprocess({"ids": np.zeros((1, 4)), "attention_mask": np.array([[1, 1, 0, 0]])})
    assert list(inputs) == ["ids", "attention_mask"]
    assert made.postprocess({"hidden": tokens}, mask).vector.tolist() == pytest.approx([0.6, 0.8])
    pooled = task(TensorSpec("hidden", "float32", (1, 4, 2)), TensorSpec("pooled", "float32", (1, 2)))
    assert pooled.postprocess({"hidden": tokens, "pooled": np.array([[0.0, 2.0]])}).vector.tolist() == [0, 1]


def test_nan_is_nothing_and_a_picture_of_boxes_no_embedding() -> None:
    made = task(TensorSpec("y", "float32", (1, 4)))
    answer = made.postprocess({"y": np.full((1, 4), np.nan, np.float32)})
    assert (made.count(answer), made.as_text(answer)) == (0, "nothing")
    assert made.agreement([answer], [Embedding(np.array([1, 0, 0, 0], np.float32))]) == 0
    with pytest.raises(UnsupportedError, match="an embedding is 1 x length"):
        task(TensorSpec("y", "float32", (1, 3, 8, 8)))
    with pytest.raises(UnsupportedError, match="a picture cannot become"):
        made.preprocess(coloured(0, 0))


def test_a_model_of_text_is_fed_arrays_and_agrees_with_itself(brief: None, tmp_path: Path) -> None:
    words, mix = fixture_models.numbers(50, 16), fixture_models.numbers(16, 16, seed=1) / 4
    text = """words (int64[1,8] ids, int64[1,8] attention_mask) => (float[1,8,16] hidden) {
        e = Gather(words, ids)
        m = Cast<to=1>(attention_mask)
        u = Unsqueeze(m, last)
        k = Mul(e, u)
        h = MatMul(k, mix)
        hidden = Tanh(h)
    }"""
    made = fixture_models.model(text, words=words, mix=mix, last=np.array([2], np.int64))
    save_model(made, tmp_path / "words.onnx")
    (tmp_path / "recipe.toml").write_text(RECIPE.replace('"recall1"', '"agreement"').replace("scale", "# scale"))
    chance = np.random.default_rng(0)
    mask = np.arange(8) < chance.integers(2, 9, (40, 1))
    np.savez(tmp_path / "ids.npz", ids=chance.integers(0, 50, (40, 8)), attention_mask=mask.astype(np.int64))
    given = {"calib": tmp_path / "ids.npz", "out": tmp_path / "out"}
    report = optimize(tmp_path / "words.onnx", **given, threads=1, time_limit_s=10)
    assert all(one.agreement is None or one.agreement > 0.99 for one in report.candidates)
    told = CliRunner().invoke(cli, ["run", str(report.folder), str(tmp_path / "ids.npz"), "--limit", "1"])
    assert told.exit_code == 0, told.output
    assert "16 numbers: " in told.stdout
