"""A replay makes the models of an earlier run again, byte for byte, whatever the clock says now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_brief import briefly
from onnx import TensorProto, helper, numpy_helper

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, NoteKind
from edgeopt.executors.onnxruntime import MEMORY_REUSE
from edgeopt.graph.model import Model
from edgeopt.optimization.folder.replay import DECISIONS, read_replay
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.steps.quantize.judges import Judge


def write_case(folder: Path, seed: int = 0) -> dict[str, str]:
    """Write a small network and tensors that calibrate it; return the arguments that name them."""
    chance = np.random.default_rng(seed)
    shapes = [(16, 3, 3, 3), (16, 16, 1, 1), (16, 16, 3, 3), (8, 16, 1, 1)]
    weights = {f"w{i}": chance.normal(0, 0.2, shape).astype(np.float32) for i, shape in enumerate(shapes)}
    nodes, x = [], "x"
    for i, shape in enumerate(shapes):
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], name=f"c{i}", pads=[shape[2] // 2] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"r{i}"))
        x = f"r{i}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    made = helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 8, 16, 16])
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "case", [given], [made], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    np.savez(folder / "in.npz", x=chance.normal(0.5, 1, (8, 3, 16, 16)).astype(np.float32))
    return {"model": str(folder / "m.onnx"), "recipe": "tensors", "calib": str(folder / "in.npz")}


def script_times(monkeypatch: pytest.MonkeyPatch, *, pairs: bool) -> None:
    """Let forms of pairs, or those of ONNX Runtime's own integer ops, be fast and all others slow."""

    def speed(_: Judge, made: Model) -> float:
        return 2.0 if ("QLinearConv" in made.op_counts) is not pairs else 1.1

    monkeypatch.setattr("edgeopt.steps.quantize.judges.Judge.speed", speed)
    monkeypatch.setattr("edgeopt.measurement.opening.buffers.choose_buffers", lambda *_: {MEMORY_REUSE: "0"})


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of a first run, in which forms with one op were fast, and what it was asked."""
    folder = tmp_path_factory.mktemp("replay")
    asked = write_case(folder)
    with briefly(), pytest.MonkeyPatch.context() as patch:
        script_times(patch, pairs=False)
        optimize(**asked, target="cpu", out=folder / "first", threads=1)
    return folder, asked


def models_of(folder: Path) -> dict[str, str]:
    files = [*folder.glob("candidates/*/model.onnx"), folder / "bundle/model.onnx"]
    return {str(file.relative_to(folder)): Model(onnx.load(file), "one").fingerprint for file in files}


@pytest.fixture
def without_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where anything is timed or calibrated."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a replay neither times nor calibrates")

    for name in (
        "edgeopt.steps.quantize.judges.Judge.speed",
        "edgeopt.measurement.opening.buffers.choose_buffers",
        "edgeopt.steps.quantize.step.search_int8",
        "edgeopt.steps.quantize.step.confirmed_rules",
    ):
        monkeypatch.setattr(name, forbidden)


@pytest.mark.usefixtures("without_clocks", "brief")
def test_a_replay_makes_the_same_bytes_and_asks_no_clock_for_them(case, tmp_path):
    folder, asked = case
    before = {one.name: one for one in read_report(folder / "first", ModelReport).candidates}
    for name in ("second", "third"):
        source = folder / "first" if name == "second" else tmp_path / "second" / "report.json"
        report = optimize(**asked, target="cpu", out=tmp_path / name, replay=str(source))
        assert models_of(tmp_path / name) == models_of(folder / "first")
        assert report.chosen == read_replay(folder / "first").chosen
        assert report.threads == 1
        made = next(one for one in report.candidates if one.name == "quantize")
        assert made.options == {MEMORY_REUSE: "0"}
        chosen = {note for note in before["quantize"].notes if note.kind is NoteKind.CHOICE}
        assert chosen
        assert chosen <= {*made.notes}


@pytest.mark.usefixtures("without_clocks", "brief")
def test_quantize_makes_the_form_of_a_report_again_and_then_its_own(case, tmp_path):
    folder, asked = case
    chosen = read_report(
        folder / "first", ModelReport
    ).chosen  # by speed: another run's second form may be the first one here
    form = chosen if chosen.startswith("quantize") else "quantize"
    wanted = Model(onnx.load(folder / f"first/candidates/{form}/model.onnx"), "one").fingerprint
    sources = {"a": folder / "first", "b": tmp_path / f"a.{DECISIONS}"}
    for name, source in sources.items():
        arguments = ["quantize", asked["model"], "-t", "cpu", "-r", "tensors", "--calib", asked["calib"]]
        arguments += ["-o", str(tmp_path / f"{name}.onnx"), "--replay", str(source), "--format", "markdown"]
        shown = CliRunner().invoke(cli, arguments)
        assert shown.exit_code == 0, shown.output
        assert f"as {source} decided" in shown.output
        assert "weighted layers" in shown.output
        assert Model(onnx.load(tmp_path / f"{name}.onnx"), "one").fingerprint == wanted
    assert (tmp_path / f"a.{DECISIONS}").read_bytes() == (tmp_path / f"b.{DECISIONS}").read_bytes()


def test_a_dry_run_reads_the_replay_too(case, tmp_path):
    folder, asked = case
    arguments = ["optimize", asked["model"], "-t", "cpu", "-r", "tensors", "--calib", asked["calib"], "--dry-run"]
    shown = CliRunner().invoke(cli, [*arguments, "--replay", str(folder / "first")])
    assert shown.exit_code == 0, shown.output
    assert f"what {folder / 'first'} decided is made again" in shown.output
    other = write_case(tmp_path, seed=1)["calib"]
    refused = CliRunner().invoke(cli, [*arguments[:-2], other, "--dry-run", "--replay", str(folder / "first")])
    assert refused.exit_code == 1
    assert "first is the report of another calibration set" in refused.output


def test_without_a_replay_other_times_make_another_model(case, tmp_path, monkeypatch, brief):
    folder, asked = case
    script_times(monkeypatch, pairs=True)
    optimize(**asked, target="cpu", out=tmp_path / "other", threads=1, steps=("simplify", "fuse", "quantize"))
    file = "candidates/quantize/model.onnx"
    assert models_of(tmp_path / "other")[file] != models_of(folder / "first")[file]


def test_what_decided_is_told_beside_the_candidate(case):
    folder, _ = case
    values = json.loads((folder / "first/candidates/quantize" / DECISIONS).read_text("utf-8"))
    evidence = values["evidence"]["of"]
    assert len(evidence["attempts"]) >= 3
    assert evidence["layer_times"]["layers"]["of"]
    assert evidence["images"] == 8
    assert values["packages"]["of"]["onnx"] == onnx.__version__


@pytest.mark.parametrize("what", ["model", "calibration set"])
def test_a_report_of_something_else_is_refused_in_one_line(case, tmp_path, what):
    folder, asked = case
    others = write_case(tmp_path, seed=1)
    changed = {**asked, **({"model": others["model"]} if what == "model" else {"calib": others["calib"]})}
    arguments = ["optimize", changed["model"], "-t", "cpu", "-r", "tensors", "--calib", changed["calib"]]
    shown = CliRunner().invoke(cli, [*arguments, "-o", str(tmp_path / "o"), "--replay", str(folder / "first")])
    assert shown.exit_code == 1
    assert f"first is the report of another {what}" in shown.output
    assert not (tmp_path / "o").exists()


def test_what_is_no_report_a_time_limit_and_another_target_are_refused(case, tmp_path):
    folder, asked = case
    with pytest.raises(EdgeoptError, match=r"nothing/report\.json"):
        optimize(**asked, target="cpu", out=tmp_path / "o", replay=str(tmp_path / "nothing"))
    with pytest.raises(EdgeoptError, match="a replay cannot stop by a time limit"):
        optimize(**asked, target="cpu", out=tmp_path / "o", replay=str(folder / "first"), time_limit_s=5.0)
    with pytest.raises(EdgeoptError, match="is the report of target"):
        optimize(**asked, target="cpu-arm64", out=tmp_path / "o", replay=str(folder / "first"))
    assert not (tmp_path / "o").exists()


def test_damaged_decisions_and_another_package_end_in_one_line(case, tmp_path):
    folder, asked = case
    copy = tmp_path / "copy"
    shutil.copytree(folder / "first", copy)
    file = copy / "candidates/quantize" / DECISIONS
    text = file.read_text("utf-8")
    file.write_text(text.replace('"type": "Variant"', '"type": "Popen"'))
    with pytest.raises(EdgeoptError, match=r"decisions.json is no file of decisions"):
        optimize(**asked, target="cpu", out=tmp_path / "o", replay=str(copy))
    values = json.loads(text)
    values["float_model"], values["packages"]["of"]["onnxslim"] = "0" * 64, "0.0.1"
    file.write_text(json.dumps(values))
    with pytest.raises(EdgeoptError, match=r"the float model before INT8 is not that of .*: onnxslim 0\.0\.1 there"):
        optimize(**asked, target="cpu", out=tmp_path / "o", replay=str(copy))
