"""Models as people bring them: each comes in, or ends in one line that names the node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
from edgeopt.executors.onnxruntime import EXECUTOR, OnnxRuntime
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.model import load_model, save_model, weights_beside
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.turns.interleaved import Pace
from edgeopt.runtime.bundle import read_bundle

WEIGHTS = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
BROUGHT = {
    "float16": """(float16[n, 4] x) => (float16[n, 4] y) <float16[4] b = {1, 2, 3, 4}> { y = Add(x, b) }""",
    "already quantized": """(float[n, 4] x) => (float[n, 2] y)
        <float s = {0.5}, uint8 o = {3}, int8[4, 2] v = {1, 2, 3, 4, 5, 6, 7, 8}, float r = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, o)
        d = DequantizeLinear(q, s, o)
        weights = DequantizeLinear(v, r, z)
        y = MatMul(d, weights)
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
    "a scan": """(float[1, 4] start, float[5, 1, 4] x) => (float[1, 4] last, float[5, 1, 4] y) {
        last, y = Scan <num_scan_inputs = 1, body = s (float[1, 4] a, float[1, 4] v) => (float[1, 4] c, float[1, 4] o) {
            c = Add(a, v)
            o = Identity(c)
        }> (start, x)
    }""",
    "bytes": """(uint8[1, 12] x) => (float[1, 12] y) { y = Cast <to = 1> (x) }""",
    "a number alone": """(float x) => (float y) { y = Exp(x) }""",
    "truth values": """(bool[n, 4] x) => (bool[n, 4] y) { y = Not(x) }""",
    "double": """(double[n, 4] x) => (double[n, 4] y) { y = Exp(x) }""",
    "words to numbers": """(string[n] words) => (int64[n] ids) {
        ids = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2]> (words)
    }""",
    "a function of its own": """(float[n, 4] x) => (float[n, 4] y) { y = mine.twice(x) }
        <domain: "mine", opset_import: ["" : 18]> twice (a) => (b) { b = Add(a, a) }""",
}
WHOLE = {"a loop", "a scan", "a sequence inside", "an optional inside", "texts", "a number alone"}
"""Go through all of `optimize`, about a second each; of the others the plan is looked at."""
REFUSED = {
    """(float[n, 4] x) => (float[n, 4] y) { y = theirs.Odd(x) }""": "custom op Odd (theirs, node 'y')",
    """(seq(float[2, 4]) parts) => (float[4, 4] y) { y = ConcatFromSequence <axis = 0> (parts) }""": (
        "input 'parts' is no tensor but of kind sequence"
    ),
    """(float[2, 4] x) => (seq(float[1, 4]) parts) { parts = SplitToSequence <axis = 0> (x) }""": (
        "output 'parts' is no tensor but of kind sequence"
    ),
    """(optional(float[2, 4]) maybe) => (float[2, 4] y) { y = OptionalGetElement(maybe) }""": (
        "input 'maybe' is no tensor but of kind optional"
    ),
    """(bfloat16[2] x) => (float[2] y) { y = Cast <to = 1> (x) }""": "input 'x' is of type bfloat16",
    """(complex64[2] x) => (complex64[2] y) { y = Identity(x) }""": "input 'x' is of type complex64",
    """(float[2, a] x, float[2, b] z) => (float[2, c] y) { y = Concat <axis = 1> (x, z) }""": (
        "dimension 1 of input x float32 2xa is free and recipe 'tensors' does not fix it"
    ),
    """(float[1, 0, 4] x) => (float[1, 0, 4] y) { y = Relu(x) }""": (
        "dimension 1 of input x float32 1x?x4 has no size above 0 in the model (0 means no element) and recipe "
        "'tensors' does not fix it -> give every size: --shape x=1xNx4"
    ),
    """(float[4, 4] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }""": "Reshape node",
}


def write(body: str, path: Path) -> Path:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18, "mine" : 1, "theirs" : 1, "ai.onnx.ml" : 3]>\nbrought {body}'
    )
    if "w)" in body:
        proto.graph.initializer.append(WEIGHTS)
    onnx.save(proto, str(path))
    return path


@pytest.mark.parametrize("kind", BROUGHT)
def test_each_is_shown_gets_a_recipe_and_goes_through_optimize(kind, tmp_path, brief):
    model, runner = write(BROUGHT[kind], tmp_path / "brought.onnx"), CliRunner()
    shown = runner.invoke(cli, ["inspect", str(model)])
    assert shown.exit_code == 0, shown.output
    drafted = runner.invoke(cli, ["recipe", str(model), "--json"])
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)["task"] == "tensors"
    told = ["optimize", str(model), "-t", "cpu", "-r", "tensors", "--calib", "synthetic", "--threads", "1"]
    for one in load_model(model).inputs:
        sizes = [str(size if isinstance(size, int) else 2) for size in one.shape]
        told += ["--shape", f"{one.name}={'x'.join(sizes)}"] if sizes else []
    done = runner.invoke(cli, [*told, *(["-o", str(tmp_path / "out")] if kind in WHOLE else ["--dry-run"])])
    assert done.exit_code == 0, done.output
    assert "failed after" not in done.output
    if kind == "already quantized":
        assert "no search for INT8: brought is quantized already" in done.output
    assert kind not in WHOLE or read_bundle(tmp_path / "out" / "bundle").artefacts


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_go_through_is_refused_in_one_line_that_names_it(body, tmp_path):
    model = write(body, tmp_path / "brought.onnx")
    shown = CliRunner().invoke(cli, ["optimize", str(model), "-t", "cpu", "-r", "tensors", "--threads", "1"])
    assert shown.exit_code == 1, shown.output
    assert isinstance(shown.exception, SystemExit)
    assert REFUSED[body] in " ".join(shown.stderr.split())
    assert shown.stderr.count("error:") == 1


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


@pytest.mark.parametrize(
    ("ir_version", "listed", "warned"), [(8, ("g",), True), (8, ("g", "w"), False), (3, ("g", "w"), False)]
)
def test_an_input_with_a_default_is_warned_of(ir_version, listed, warned, tmp_path):
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> gain (float[1, 4] x) => (float[1, 4] y)
        <float[1] g = {2}, float[4] w = {1, 2, 3, 4}> { m = Mul(x, g) y = Add(m, w) }"""
    )
    made.ir_version = ir_version
    shapes = {"g": [1], "w": [4]}
    made.graph.input.extend(onnx.helper.make_tensor_value_info(one, TensorProto.FLOAT, shapes[one]) for one in listed)
    onnx.save(made, tmp_path / "gain.onnx")
    given = open_given(str(tmp_path / "gain.onnx"), "cpu", None, fed={"x": (1, 4)})
    told = [one.detail for one in given.choice.notes if "optional input" in one.detail]
    line = "1 optional input of the model: g; what is made of it holds the default as a constant"
    assert told == ([line] if warned else [])


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


class OpenSessions:
    """How many sessions over weights in files of their own are open in this process, and were at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.most, opened, closed = set[int](), 0, OnnxRuntime.open, OnnxRuntimeSession.close

        def open_one(executor: OnnxRuntime, source: Any, options: SessionOptions) -> OnnxRuntimeSession:
            session = opened(executor, source, options)
            self.now |= {id(session)} if isinstance(source, Outside) else set()
            self.most = max(self.most, len(self.now))
            return session

        def close_one(session: OnnxRuntimeSession) -> None:
            self.now.discard(id(session))
            closed(session)

        monkeypatch.setattr(OnnxRuntime, "open", open_one)
        monkeypatch.setattr(OnnxRuntimeSession, "close", close_one)


def test_large_weights_stay_in_their_file_through_optimize(tmp_path, brief, monkeypatch):
    """Half a megabyte is taken for 2 GB: what is above goes another way, whatever the limit is."""
    sessions = OpenSessions(monkeypatch)
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    monkeypatch.setattr("edgeopt.optimization.candidates.engines._alternatives", lambda *_: ([], []))
    model, out = write_outside(tmp_path / "given" / "large.onnx", [256] * 3), tmp_path / "out"
    told = ["optimize", str(model), "-t", "cpu", "-r", "tensors", "--calib", "synthetic", "--shape", "x=1x256"]
    done = CliRunner().invoke(cli, [*told, "--threads", "1", "--max-drop", "0.2", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "warning: step" not in done.output
    assert (len(sessions.now), sessions.most) == (0, 1), "weights are in memory once"
    assert "in turns, 1 thread, one open at a time" in done.output
    assert "no pruning: large has more than 2 GB: w0, w1, w2 stay in files" in done.output
    sizes = {
        one["name"]: one["size_bytes"] for one in json.loads((out / "report.json").read_text("utf-8"))["candidates"]
    }
    assert sizes["baseline"] > 3 * 256 * 256 * 4
    assert sizes["quantize"] < sizes["baseline"] / 3
    assert sizes["onnxruntime-w4"] < sizes["baseline"] / 5
    monkeypatch.setattr("edgeopt.steps.convert.precisions.make_weight_only", None)  # nothing is made again
    again = CliRunner().invoke(cli, [*told, "--threads", "1", "--max-drop", "0.2", "-o", str(out), "--resume"])
    assert again.exit_code == 0, again.output
    assert again.output.count("from disk") == len(sizes), again.output
    assert (len(sessions.now), sessions.most) == (0, 1), "a resumed run holds weights once"
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


def test_compare_and_check_hold_large_weights_once(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    monkeypatch.setattr("edgeopt.measurement.turns.side_by_side.Pace", lambda _: Pace(0.0, block_seconds=0.001))
    one, other = (write_outside(tmp_path / f"{name}.onnx", [256] * 3) for name in ("one", "other"))
    sessions, runner = OpenSessions(monkeypatch), CliRunner()
    given = ["-r", "tensors", "--shape", "x=1x256", "--threads", "1", "--json"]
    shown = runner.invoke(cli, ["compare", str(one), str(other), *given])
    assert shown.exit_code == 0, shown.output
    gate, quick = (
        str(tmp_path / "gate.json"),
        ["--seconds", "0.1", "--starts", "3", "--skip", "cold_start", "--skip", "memory"],
    )
    for more, code in ((["--update"], {0}), ([], {0, 2, 3, 4})):
        shown = runner.invoke(cli, ["check", str(one), "--baseline", gate, *quick, *given, *more])
        assert shown.exit_code in code, shown.output
        assert not isinstance(shown.exception, Exception) or isinstance(shown.exception, SystemExit)
    assert (len(sessions.now), sessions.most) == (0, 1), "weights are in memory once"


def test_weights_that_do_not_fit_into_memory_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    monkeypatch.setattr("edgeopt.system.machine.memory.free_bytes", lambda: 700_000)
    model = write_outside(tmp_path / "large.onnx", [256] * 3)
    for command in (["optimize", "-t", "cpu", "-o", str(tmp_path / "o")], ["bench"]):
        told = [*command, str(model), "-r", "tensors", "--shape", "x=1x256", "--threads", "1"]
        shown = CliRunner().invoke(cli, told)
        assert shown.exit_code == 1, shown.output
        assert "error: weights of 768 KiB do not fit: 684 KiB are free" in " ".join(shown.stderr.split())
        assert shown.stderr.count("error:") == 1


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
    proto = onnx.load(str(write(BROUGHT["several inputs and outputs"], tmp_path / "small.onnx")))
    onnx.save(proto, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    found = load_model(tmp_path / "outside.onnx").proto.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(next(one for one in found if one.name == "w")), np.ones((4, 4)))


def test_run_takes_a_model_whose_weights_lie_outside(tmp_path, monkeypatch):
    """They went through one file, which holds no more than 2 GB."""
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 500_000)
    model = write_outside(tmp_path / "given.onnx", [256] * 3)
    x = np.random.default_rng(1).random((1, 1, 256), np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    shown = CliRunner().invoke(cli, ["run", str(model), str(tmp_path / "x.npz"), "-r", "tensors", "--json"])
    assert shown.exit_code == 0, shown.output
    (wanted,) = EXECUTOR.open(model, SessionOptions()).run({"x": x[0]}).values()
    assert f"{wanted.mean():.3g}"[:4] in shown.stdout
