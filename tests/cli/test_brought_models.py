"""Models as people bring them: each comes in, or ends in one line that names the node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from edgeopt import Runtime
from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import load_model, save_model, weights_beside
from edgeopt.graph.outside import Outside
from edgeopt.runtime.bundle import read_bundle

WEIGHTS = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
BROUGHT = {
    "float16": """(float16[n, 4] x) => (float16[n, 4] y) <float16[4] b = {1, 2, 3, 4}> { y = Add(x, b) }""",
    "already quantized": """(float[n, 4] x) => (float[n, 4] y) <float s = {0.5}, uint8 o = {3}> {
        q = QuantizeLinear(x, s, o)
        d = DequantizeLinear(q, s, o)
        y = MatMul(d, w)
    }""",
    "a branch": """(float[n, 4] x, bool c) => (float[n, 4] y) {
        y = If (c) <then_branch = a () => (float[n, 4] t) { t = MatMul(x, w) },
                    else_branch = b () => (float[n, 4] e) { e = Identity(x) }>
    }""",
    "a loop": """(float[1, 4] x, int64 turns, bool go) => (float[1, 4] y) {
        y = Loop (turns, go, x) <body = l (int64 i, bool c, float[1, 4] v) => (bool k, float[1, 4] r) {
            k = Identity(c)
            r = Add(v, v)
        }>
    }""",
    "a sequence inside": """(float[2, 4] x) => (float[2, 4] y) {
        parts = SplitToSequence <axis = 0> (x)
        y = ConcatFromSequence <axis = 0> (parts)
    }""",
    "an optional inside": """(float[2, 4] x) => (float[2, 4] y) {
        maybe = Optional(x)
        y = OptionalGetElement(maybe)
    }""",
    "several inputs and outputs": """(int64[n, m] ids, float[n, 4] x) => (int64[n, m] same, float[n, 4] y) {
        same = Identity(ids)
        y = MatMul(x, w)
    }""",
    "texts": """(string[n] words) => (string[n] same) { same = Identity(words) }""",
    "a size from the values": """(float[n, 4] x) => (int64[2, k] places) { places = NonZero(x) }""",
}


def write(body: str, path: Path) -> Path:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\nbrought {body}')
    if "w)" in body:
        proto.graph.initializer.append(WEIGHTS)
    onnx.save(proto, str(path))
    return path


@pytest.mark.parametrize("kind", BROUGHT)
def test_each_is_shown_and_gets_a_recipe_that_optimize_takes(kind, tmp_path):
    model, runner = write(BROUGHT[kind], tmp_path / "brought.onnx"), CliRunner()
    shown = runner.invoke(cli, ["inspect", str(model)])
    assert shown.exit_code == 0, shown.output
    drafted = runner.invoke(cli, ["recipe", str(model), "--json"])
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)["task"] == "tensors"
    planned = runner.invoke(cli, ["optimize", str(model), "-t", "cpu", "--dry-run"])
    assert planned.exit_code == 0, planned.output


def write_outside(path: Path, sizes: list[int], *, sparse: bool = False) -> Path:
    """A chain of square matrices whose numbers lie in a file of their own; sparse: zeros that take no disk."""
    path.parent.mkdir(exist_ok=True)
    body = [f"m{i} = MatMul({f'r{i - 1}' if i else 'x'}, w{i}) r{i} = Relu(m{i})" for i in range(len(sizes))]
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> large (float[n, {sizes[0]}] x) => (float[n, {sizes[0]}] y) '
        f"{{ {' '.join(body)} y = Identity(r{len(sizes) - 1}) }}"
    )
    random, at = np.random.default_rng(0), 0
    with path.with_suffix(".bin").open("wb") as file:
        for i, size in enumerate(sizes):
            weights = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=(size, size))
            weights.data_location = TensorProto.EXTERNAL
            place = {"location": f"{path.stem}.bin", "offset": str(at), "length": str(4 * size**2)}
            for key, value in place.items():
                weights.external_data.add(key=key, value=value)
            proto.graph.initializer.append(weights)
            at += 4 * size**2
            if not sparse:
                file.write((random.normal(size=(size, size)) / np.sqrt(size / 2)).astype(np.float32).tobytes())
        file.truncate(at)
    onnx.save(proto, str(path))
    return path


def test_more_than_2_gb_is_shown_and_planned_without_reading_it(tmp_path):
    """The file is sparse: no byte of it lies on the disk."""
    model, process = write_outside(tmp_path / "large.onnx", [24000], sparse=True), psutil.Process()
    before = process.memory_info().rss
    for command in (["inspect"], ["optimize", "-t", "cpu", "-r", "tensors", "--threads", "1", "--dry-run"]):
        shown = CliRunner().invoke(cli, [*command, str(model), "--shape", "x=1x24000"])
        assert shown.exit_code == 0, shown.output
    assert process.memory_info().rss - before < 200 << 20
    found = load_model(model)
    assert found.size_bytes > 2 << 30
    assert isinstance(found.source, Outside)
    with pytest.raises(UnsupportedError, match=r"large has 2\.3 GB of weights in files beside it, 'w0' among them"):
        _ = found.data


@pytest.mark.parametrize(("spoil", "told"), [("shorten", "is shorter than"), ("remove", "is missing")])
def test_more_than_2_gb_of_which_some_is_missing(spoil, told, tmp_path):
    model = write_outside(tmp_path / "large.onnx", [24000], sparse=True)
    weights = model.with_suffix(".bin")
    if spoil == "remove":
        weights.unlink()
    else:
        with weights.open("r+b") as file:
            file.truncate(1 << 30)
    shown = CliRunner().invoke(cli, ["inspect", str(model)])
    assert shown.exit_code == 1, shown.output
    assert f"its external data 'large.bin' {told}" in " ".join(shown.output.split())


def test_large_weights_stay_in_their_file_through_optimize(tmp_path, brief, monkeypatch):
    """Half a megabyte is taken for 2 GB: what is above goes another way, whatever the limit is."""
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    model, out = write_outside(tmp_path / "given" / "large.onnx", [256] * 3), tmp_path / "out"
    told = ["optimize", str(model), "-t", "cpu", "-r", "tensors", "--calib", "synthetic", "--shape", "x=1x256"]
    done = CliRunner().invoke(cli, [*told, "--threads", "1", "--max-drop", "0.2", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "warning: step" not in done.output
    assert "no pruning: large has more than 2 GB: w0, w1, w2 stay in files" in done.output
    sizes = {
        one["name"]: one["size_bytes"] for one in json.loads((out / "report.json").read_text("utf-8"))["candidates"]
    }
    assert sizes["baseline"] > 3 * 256 * 256 * 4
    assert sizes["quantize"] < sizes["baseline"] / 3
    assert sizes["onnxruntime-w4"] < sizes["baseline"] / 5
    bundle = out / "bundle"
    assert len(list(bundle.glob("weights-*.bin"))) == 1
    x = np.random.default_rng(1).random((1, 256), np.float32)
    wanted = EXECUTOR.open(model, SessionOptions()).run({"x": x})["y"]
    for one in read_bundle(bundle).artefacts:
        session = EXECUTOR.open(bundle / one.file, SessionOptions())
        assert measure_drift({"y": wanted}, session.run({"x": x})).cosine > 0.9
    assert measure_drift({"y": wanted}, Runtime.load(bundle).predict({"x": x})).cosine > 0.9
    (weights,) = bundle.glob("weights-*.bin")
    assert weights.stat().st_nlink == 1, "a bundle shares nothing with the model that was given"
    weights.write_bytes(bytes(100) + weights.read_bytes()[100:])
    with pytest.raises(InvalidFileError, match=f"{weights.name} differs from its hash"):
        read_bundle(bundle)


def test_large_weights_in_several_files_are_written_to_one(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    model = write_outside(tmp_path / "given.onnx", [256] * 3)
    proto = onnx.load(str(model), load_external_data=False)
    proto.graph.initializer[1].external_data[0].value = "other.bin"
    shutil.copy(tmp_path / "given.bin", tmp_path / "other.bin")
    onnx.save(proto, str(tmp_path / "several.onnx"))
    save_model(load_model(tmp_path / "several.onnx"), tmp_path / "made" / "one.onnx")
    assert weights_beside(tmp_path / "made" / "one.onnx").stat().st_size == 3 * 256 * 256 * 4
    x = {"x": np.random.default_rng(1).random((1, 256), np.float32)}
    wanted, found = (EXECUTOR.open(one, SessionOptions()).run(x) for one in (model, tmp_path / "made" / "one.onnx"))
    assert np.array_equal(found["y"], wanted["y"])
    assert load_model(tmp_path / "made" / "one.onnx").gathered().is_outside
    assert load_model(model).fingerprint == load_model(model).fingerprint


def test_external_data_below_that_comes_in_whole(tmp_path):
    proto = onnx.load(str(write(BROUGHT["already quantized"], tmp_path / "small.onnx")))
    onnx.save(proto, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    found = load_model(tmp_path / "outside.onnx").proto.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(next(one for one in found if one.name == "w")), np.ones((4, 4)))
