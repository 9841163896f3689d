"""Models that no picture recipe fits, from the command to the runtime; agreement judged on the tensors given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_brief import briefly

from edgeopt import Runtime, optimize
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.measurement.accuracy.evaluate import answers, model_inputs
from edgeopt.optimization.one_step.quantize import quantize, summarize
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.quantize.search.attempt import SearchResult
from edgeopt.tasks.detection import TASK as DETECTION

DIGITS = find_recipe("digits_detector").folder
OWN = """
name = "own"
task = "tensors"
description = "A U-Net on pictures"
license = "ours"
source = "ours"
[preprocess]
scale = 0.00392156862745098
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[postprocess]
decoder = "none"
[evaluation]
metric = "cosine"
"""


def token_model() -> Model:
    """Ids and a mask in, vectors and the best of them out; batch and length free."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        tokens (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq, 64] y, int64[batch, seq] best) {
            e = Gather(table, ids)
            m = Cast<to=1>(mask)
            kept = Unsqueeze(m, axes)
            x = Mul(e, kept)
            a = MatMul(x, w)
            h = Relu(a)
            y = MatMul(h, v)
            best = ArgMax<axis=-1, keepdims=0>(y)
        }"""
    )
    chance = np.random.default_rng(0)
    shapes = {"table": (50, 64), "w": (64, 256), "v": (256, 64)}
    values = {name: chance.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    values["axes"] = np.array([2])
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    return Model(proto, "tokens")


def u_net() -> Model:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        u_net (float[1, 3, 32, 32] x) => (float[1, 4, 32, 32] y) {
            a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w0)
            first = Relu(a)
            low = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(first)
            b = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(low, w1)
            deep = Relu(b)
            high = ConvTranspose<kernel_shape=[2, 2], strides=[2, 2]>(deep, w2)
            joined = Concat<axis=1>(first, high)
            y = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(joined, w3)
        }"""
    )
    chance = np.random.default_rng(0)
    shapes = {"w0": (32, 3, 3, 3), "w1": (32, 32, 3, 3), "w2": (32, 32, 2, 2), "w3": (4, 64, 3, 3)}
    values = {name: chance.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    return Model(proto, "u_net")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder, chance = tmp_path_factory.mktemp("tokens"), np.random.default_rng(1)
    save_model(token_model(), folder / "tokens.onnx")
    ids = chance.integers(0, 50, (6, 20))
    mask = (np.arange(20) < chance.integers(5, 20, (6, 1))).astype(np.int64)
    np.savez(folder / "inputs.npz", ids=ids, mask=mask)
    with briefly():
        report = optimize(
            folder / "tokens.onnx", calib=folder / "inputs.npz", out=folder / "out", threads=1, time_limit_s=20
        )
    return SimpleNamespace(
        folder=folder,
        model=folder / "tokens.onnx",
        npz=folder / "inputs.npz",
        report=report,
        sample={"ids": ids[:1], "mask": mask[:1]},
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(2)
    for i in range(6):
        coarse = chance.integers(0, 256, (8, 8, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i}.png"), cv2.resize(coarse, (40, 32), interpolation=cv2.INTER_CUBIC))
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The shipped detector, four of its calibration pictures, and the same pictures as tensors."""
    model, file = load_model(find_model("digits_detector")), tmp_path_factory.mktemp("digits") / "inputs.npz"
    recipe = choose_recipe(None, find_model("digits_detector"), model.inputs, model.outputs, model.metadata).recipe
    task, pictures = DETECTION(recipe, model.inputs, model.outputs, True), open_frames(DIGITS / "calib").spread(4)
    name = model.inputs[0].name
    np.savez(file, **{name: np.concatenate([one[name] for one in model_inputs(task, pictures)])})
    return SimpleNamespace(npz=file, pictures=pictures, model=model, task=task)


def agreement_of(changed: Model, seen: list[float]):
    """A search that asks for the agreement of one model and finds nothing."""

    def search(model, calibration_inputs, rules, *, agreement, **_):
        seen.append(agreement(changed))
        return SearchResult((), "asked.")

    return search


def without_the_last_convolution(model: Model, factor: float = 0.0) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    last = [one for one in proto.graph.initializer if len(one.dims) == 4][-1]
    last.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(last) * np.float32(factor), last.name))
    return Model(proto, "spoilt")


def test_agreement_on_tensors_is_that_on_the_pictures_they_were_made_of(digits, tmp_path, monkeypatch) -> None:
    spoilt, seen = without_the_last_convolution(digits.model), list[float]()
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", agreement_of(spoilt, seen))
    quantize("digits_detector", calib=digits.npz, out=tmp_path / "a.onnx", threads=1)
    found = []
    for model in (spoilt, digits.model):
        session = EXECUTOR.open(model.data, SessionOptions())
        found.append(answers(session, digits.task, digits.pictures))
        session.close()
    assert seen == [pytest.approx(digits.task.agreement(*found), abs=0.01)]
    assert seen[0] < 1


def test_pictures_all_alike_are_told_to_be_no_proof(tmp_path, monkeypatch) -> None:
    save_model(u_net(), tmp_path / "model.onnx")
    (tmp_path / "recipe.toml").write_text(OWN, "utf-8")
    (tmp_path / "alike").mkdir()
    for i in range(2):
        cv2.imwrite(str(tmp_path / "alike" / f"{i}.png"), np.full((32, 32, 3), 90, np.uint8))
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", agreement_of(u_net(), []))
    made = quantize(tmp_path / "model.onnx", calib=tmp_path / "alike", out=tmp_path / "a.onnx", threads=1)
    assert any("agreement is no proof: the model answers all of 2 pictures alike" in one.detail for one in made.notes)


def test_outputs_that_are_no_numbers_are_named(tmp_path, monkeypatch) -> None:
    save_model(without_the_last_convolution(u_net(), factor=np.inf), tmp_path / "model.onnx")
    (tmp_path / "recipe.toml").write_text(OWN, "utf-8")
    (tmp_path / "some").mkdir()
    for i in range(2):
        cv2.imwrite(str(tmp_path / "some" / f"{i}.png"), np.full((32, 32, 3), 90 * i, np.uint8))
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", agreement_of(u_net(), []))
    made = quantize(tmp_path / "model.onnx", calib=tmp_path / "some", out=tmp_path / "a.onnx", threads=1)
    assert any(one.detail.endswith("holds NaN on 2 of 2 pictures") for one in made.notes)


def test_ids_and_masks_are_quantized_and_the_result_agrees(tokens, tmp_path, brief) -> None:
    out = tmp_path / "a.onnx"
    made = quantize(tokens.model, calib=tokens.npz, out=out, threads=1, time_limit_s=1)
    assert made.recipe == "tensors"
    assert "judged by the agreement of outputs alone" in made.notes[0].detail
    assert made.tried
    assert max(one.agreement for one in made.tried) > 0.99
    if made.chosen:
        assert [one.shape for one in load_model(out).inputs] == [(1, 20), (1, 20)]


def test_a_u_net_on_pictures_needs_a_recipe_and_works_with_one(pictures, tmp_path, brief) -> None:
    save_model(u_net(), tmp_path / "model.onnx")
    with pytest.raises(EdgeoptError, match="no recipe fits this model") as refused:
        quantize(tmp_path / "model.onnx", calib=pictures)
    assert "--calib FILE.npz" in refused.value.remedy
    (tmp_path / "recipe.toml").write_text(OWN, "utf-8")
    made = quantize(tmp_path / "model.onnx", calib=pictures, out=tmp_path / "a.onnx", threads=1, time_limit_s=1)
    assert made.recipe == "own"
    written = replace(made, chosen=made.tried[0], file=tmp_path / "a.onnx")
    assert summarize(written).verdict.next_command == f"edgeopt compare {tmp_path / 'model.onnx'} {tmp_path / 'a.onnx'}"
    assert max(one.agreement for one in made.tried) > 0.99
    with pytest.raises(UnsupportedError, match="recipe 'own' knows no metric on labels"):
        quantize(tmp_path / "model.onnx", calib=pictures, eval=DIGITS / "eval" / "instances.json")


def test_an_id_beyond_the_table_is_one_line(tokens, tmp_path) -> None:
    np.savez(tmp_path / "bad.npz", ids=np.full((2, 20), 99), mask=np.ones((2, 20), np.int64))
    with pytest.raises(UnsupportedError, match="does not run the model on these inputs: Gather node") as refused:
        quantize(tokens.model, calib=tmp_path / "bad.npz", out=tmp_path / "a.onnx", threads=1)
    assert "--shape" in refused.value.remedy  # sizes are free


def test_the_whole_line_ends_in_a_report_and_a_bundle_of_named_arrays(tokens) -> None:
    assert tokens.report.recipe == "tensors"
    assert all(one.agreement is None or one.agreement <= 1 for one in tokens.report.candidates)
    assert (tokens.folder / "out" / "report.md").is_file()
    assert cv2.imread(str(tokens.folder / "out" / "answers.png")).shape[1] == 2 * 640  # the original, the chosen one
    found = Runtime.load(tokens.folder / "out", threads=1).predict(tokens.sample)
    session = EXECUTOR.open(tokens.model, SessionOptions())
    expected = session.run(tokens.sample)
    session.close()
    assert found["best"].dtype == np.int64
    assert float(np.corrcoef(found["y"].ravel(), expected["y"].ravel())[0, 1]) > 0.99


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": np.ones((1, 20), np.int32)}, "ids is int32 1x20, the model takes ids int64"),
        ({"ids": np.ones(20, np.int64)}, "ids is int64 20, the model takes ids int64"),
        ({"other": np.ones(1)}, "inputs are ids, mask, other, not ids, mask"),
    ],
)
def test_the_runtime_says_what_an_array_should_be(tokens, change, said) -> None:
    runtime = Runtime.load(tokens.folder / "out", threads=1)
    with pytest.raises(ValueError, match=said):
        runtime.predict({**tokens.sample, **change})


def test_a_bundle_runs_on_an_npz_and_refuses_what_it_cannot(tokens, pictures, tmp_path) -> None:
    def run(*arguments: object):
        return CliRunner().invoke(cli, ["run", str(tokens.folder / "out"), *map(str, arguments)])

    assert run(tokens.npz, "--limit", 1).stdout.startswith("inputs[0]: y float32 1x20x64 from ")
    told = json.loads(run(tokens.npz, "--limit", 1, "--json").stdout)["outputs"]["best"]
    assert (told["dtype"], told["shape"], len(told["values"])) == ("int64", [1, 20], 20)
    assert run(tokens.npz, "--limit", 2, "--save", tmp_path).exit_code == 0
    saved = [cv2.imread(str(one)) for one in sorted(tmp_path.iterdir())]
    assert [one.shape for one in saved] == [(28 + 320 + 4, 640, 3)] * 2
    assert not np.array_equal(saved[0][28:], saved[1][28:])
    refused = run(pictures)
    assert refused.exit_code == 1
    assert "error: a picture cannot become the model's inputs ids, mask" in refused.stderr


def test_tensors_are_timed_with_the_recipe_for_tensors_only(tokens, digits) -> None:
    def bench(*arguments: object):
        return CliRunner().invoke(cli, ["bench", *map(str, arguments), "--seconds", "0.1s", "--frames", "20"])

    assert "error" not in bench(tokens.model, "--source", tokens.npz).output
    refused = bench("digits_detector", "--source", digits.npz)
    assert refused.exit_code == 1
    assert "is timed from the picture on" in refused.stderr


def test_models_of_other_inputs_are_not_compared_on_tensors(tokens, tmp_path) -> None:
    save_model(u_net(), tmp_path / "u_net.onnx")
    shown = CliRunner().invoke(
        cli, ["compare", str(tokens.model), str(tmp_path / "u_net.onnx"), "--source", str(tokens.npz)]
    )
    assert shown.exit_code == 1
    assert "u_net takes x float32 1x3x32x32" in shown.stderr


def test_a_wrong_npz_is_refused_before_anything_is_made(tokens, tmp_path) -> None:
    np.savez(tmp_path / "half.npz", ids=np.ones((2, 20), np.int64))
    with pytest.raises(InvalidFileError, match="lacks mask"):
        optimize(tokens.model, calib=tmp_path / "half.npz", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
