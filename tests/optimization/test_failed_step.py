"""A step that fails leaves what was made before it: measured, bundled and reported, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A model with two layers, the second of which has a weight of infinity, and its calibration tensors beside it."""
    chance = np.random.default_rng(0)
    weights = {name: chance.normal(0, 0.2, (8, 3, 3, 3)).astype(np.float32) for name in ("w", "endless")}
    weights["endless"][0, 0, 0, 0] = np.inf
    nodes = [helper.make_node("Conv", ["x", name], [f"{name} out"], name=name, pads=[1] * 4) for name in weights]
    graph = helper.make_graph(
        nodes,
        "spoiled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info(f"{name} out", TensorProto.FLOAT, [1, 8, 16, 16]) for name in weights],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=chance.uniform(0.1, 1, (6, 3, 16, 16)).astype(np.float32))
    return tmp_path / "m.onnx"


def test_an_int8_step_that_fails_leaves_float_candidates_bundle_and_report(spoiled: Path, brief: None) -> None:
    out = spoiled.parent / "out"
    arguments = ["optimize", str(spoiled), "-t", "cpu", "-r", "tensors", "--calib", str(spoiled.parent / "in.npz")]
    shown = CliRunner().invoke(cli, [*arguments, "-o", str(out), "--threads", "1", "--time-limit", "20s"])
    assert shown.exit_code == 0, shown.output
    values = json.loads((out / "report.json").read_text())
    last = values["candidates"][-1]["name"]
    warned = f"step 'quantize' failed after {last}: constant 'endless' holds infinity"
    assert warned in shown.output
    assert last != "quantize"
    assert all(one["latency"] for one in values["candidates"])
    (note,) = [one for one in values["notes"] if warned in one["detail"]]
    assert note["kind"] == NoteKind.WARNING
    assert warned in (out / "report.md").read_text("utf-8")
    assert edgeopt.Runtime.load(out / "bundle").bundle.artefacts[0].precision == "fp32"
    assert "Traceback" not in shown.output


def test_a_model_that_quantize_cannot_take_ends_in_one_line(spoiled: Path) -> None:
    out = spoiled.parent / "made.onnx"
    arguments = ["quantize", str(spoiled), "-t", "cpu", "-r", "tensors", "--calib", str(spoiled.parent / "in.npz")]
    shown = CliRunner().invoke(cli, [*arguments, "-o", str(out), "--threads", "1"])
    assert shown.exit_code == 1
    assert "error: constant 'endless' holds infinity" in shown.output
    assert not out.exists()


def test_a_form_on_which_the_engine_aborts_costs_that_form_alone(data: Path, tmp_path: Path, few_forms: None) -> None:
    case = data / "cases" / "if_captures"
    if not case.is_dir():
        pytest.skip(f"{case} is absent")
    out = tmp_path / "made.onnx"
    arguments = ["quantize", str(case / "if_captures.onnx"), "-t", "cpu", "--calib", str(case / "calib.npz")]
    shown = CliRunner().invoke(cli, [*arguments, "-o", str(out), "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert out.is_file()
    assert "Traceback" not in shown.output
    fresh = np.load(case / "fresh.npz")
    session = EXECUTOR.open(out, SessionOptions())
    for i in range(3):
        expected, answer = fresh[f"{i}.out.y"], session.run({"x": fresh[f"{i}.x"]})["y"]
        assert np.linalg.norm(answer - expected) < 0.1 * np.linalg.norm(expected)
