"""`edgeopt optimize --target qualcomm-htp-v73` on the shipped model, as a user runs it, without the device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from few_labels import write_few

from edgeopt import Runtime
from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors.qnn import EXECUTOR
from edgeopt.graph.model import find_model, load_model
from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.compile import qualcomm
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp
from edgeopt.system.declared.target import find_target
from edgeopt.system.disk import assets

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

COMMAND = (
    *("optimize", "digits_detector", "--target", "npu", "--budget", "33ms", "--skip", "prune,activations"),
    *("--threads", "1"),
)


FEW = 32
"""Pictures that are simulated for each form: 160 have labels."""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npu")
    labels = write_few(find_recipe("digits_detector").folder / "eval" / "instances.json", FEW, folder / "few.json")
    return [*COMMAND, "--eval", labels, "-o", str(folder / "out")]


@pytest.fixture(scope="module")
def out(command):
    folder = Path(command[-1])
    shown = CliRunner().invoke(cli, command)
    assert shown.exit_code == 3, shown.output
    (folder / ".shown").write_text(shown.output)
    return folder


def test_the_choosing_npu_takes_the_one_whose_package_is_here(out):
    assert json.loads((out / "report.json").read_text("utf-8"))["target"] == "qualcomm-htp-v73"


def test_no_latency_is_told_and_the_command_for_the_device_is(out):
    shown = (out / ".shown").read_text()
    assert "latency not measured: no device (edgeopt bench BUNDLE on the device)" in " ".join(shown.split())
    assert "PASS" not in shown


def test_the_report_tells_metric_placement_and_picture(out):
    best = json.loads((out / "report.json").read_text("utf-8"))["candidates"][-1]
    assert best["simulated"]["n"] == FEW, "every label that was passed"
    assert abs(best["judgement"]["drop"]) <= 0.01
    assert best["judgement"]["drop_most"] > best["judgement"]["drop"]
    assert best["placement"].startswith("all ")
    text = (out / "report.md").read_text("utf-8")
    assert "AP simulated" in text
    assert "candidates/compile/partition.svg" in text
    assert (out / "candidates/compile/partition.svg").is_file()


def test_the_bundle_answers_here_with_the_simulator(out):
    runtime = Runtime.load(out)
    assert runtime.session.simulated
    recipe = find_recipe("digits_detector")
    frames = open_frames(recipe.path_of(recipe.evaluation.calib))
    assert len(runtime.predict(frames.read(0)).scores) > 0
    runtime.session.close()


def test_a_simulated_bundle_is_not_benched(out):
    shown = CliRunner().invoke(cli, ["bench", str(out / "bundle")])
    assert shown.exit_code == 1
    assert "not measured (no device)" in shown.output


def test_a_resumed_run_simulates_nothing_again_and_proves_no_more_than_before(out, command):
    first = json.loads((out / "report.json").read_text("utf-8"))["candidates"][-1]
    scores = (out / "candidates/compile/scored.json").read_text("utf-8")
    shown = CliRunner().invoke(cli, [*command, "--resume"])
    assert shown.exit_code == 3, shown.output
    assert "from disk" in shown.output
    assert "agreement" not in shown.output
    again = json.loads((out / "report.json").read_text("utf-8"))["candidates"][-1]
    assert again["judgement"] == first["judgement"], "forms that are tried in turn share a level, resumed or not"
    assert (out / "candidates/compile/scored.json").read_text("utf-8") == scores
    executors = [one.executor for one in read_bundle(out).artefacts]
    assert executors == ["qnn", "qnn", "onnxruntime"], "the binary, its ONNX form, the float model on the processor"


def test_a_device_that_computes_something_else_gets_nothing_and_that_fails_the_run(tmp_path, monkeypatch):
    """Refusing is tested on the real path: only the verdict of the comparison is turned."""

    def refuse(*_, **__):
        raise UnsupportedError("the device returns other numbers than the CPU", remedy="")

    monkeypatch.setattr(qualcomm, "compile_model", refuse)
    skip = ("quantize", "prune")
    report = optimize("digits_detector", target="qualcomm-htp-v73", out=tmp_path / "out", skip=skip)
    assert report.chosen != "compile"
    assert "other numbers than the CPU" in report.off_target
    refused = next(one for one in report.candidates if one.name == "compile")
    assert refused.placement.startswith("all ")  # what is refused for its numbers was placed all the same
    assert report.exit_code == 2
    assert replace(report, off_target="").exit_code == 0
    assert read_bundle(report.bundle).artefacts[0].executor == "onnxruntime"


def test_a_profile_that_the_library_would_misread_is_refused_before_any_work(tmp_path):
    text = (assets.folder("targets") / "qualcomm-htp-v73.toml").read_text("utf-8")
    profile = tmp_path / "mine.toml"
    profile.write_text(text.replace('soc_model = "43"\n', ""))
    with pytest.raises(InvalidFileError, match="soc_model is missing"):
        optimize("digits_detector", target=str(profile), out=tmp_path / "out")
    assert not (tmp_path / "out" / "candidates").exists()


def test_several_socs_in_a_profile_are_refused_with_the_way_to_compile_for_them(tmp_path):
    text = (assets.folder("targets") / "qualcomm-htp-v73.toml").read_text("utf-8")
    profile = tmp_path / "mine.toml"
    profile.write_text(text.replace('soc_model = "43"', 'soc_model = "43,57"').replace('htp_arch = "73"\n', ""))
    with pytest.raises(InvalidFileError, match="several SoCs"):
        optimize("digits_detector", target=str(profile), out=tmp_path / "out")


def test_the_sizes_of_a_resize_are_not_quantized():
    """They are computed in a model that was not simplified."""
    source = load_model(find_model("digits_detector"))
    target = find_target("qualcomm-htp-v73")
    pictures = probes(source)
    made = place_htp(source, study_htp(source, pictures, target), target, frozenset()).model
    before = {name: node for node in made.proto.graph.node for name in node.output}
    sizes = [before[node.input[2]].op_type for node in made.proto.graph.node if node.op_type == "Resize"]
    assert sizes
    assert "DequantizeLinear" not in sizes


def probes(model):
    shape = [1, *(size if isinstance(size, int) else 160 for size in model.inputs[0].shape[1:])]
    chance = np.random.default_rng(0)
    return [{model.inputs[0].name: chance.random(shape, np.float32) * 255} for _ in range(2)]
