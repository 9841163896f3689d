"""A report made here, joined with what a device measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.report.runs import differences, read_runs
from edgeopt.optimization.result import ModelReport
from edgeopt.system.machine.environment import Environment, Fact, Use
from edgeopt.system.machine.processor import cpu_architecture
from edgeopt.workloads.frames.report import earlier_run, merge_results

ELSEWHERE = "cpu-arm64" if cpu_architecture() == "x86-64" else "cpu-x86-avx2"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An output folder of a target that this machine is not, and what a bench of its bundle brought back."""
    place = tmp_path_factory.mktemp("merge")
    report = optimize("digits_detector", target=ELSEWHERE, out=place / "out", steps=("simplify",), budget_ms=1e4)
    edgeopt.bench(str(report.bundle), out=place / "brought", threads=1, seconds=0.5, min_frames=400)
    return place


@pytest.fixture
def place(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def test_a_report_read_back_is_the_report_that_was_written(place):
    report = read_report(place / "out", ModelReport)
    assert report.best.latency is None
    assert report.exit_code == 3
    assert "not measured (this machine is not the target" in report.verdict_line
    text = (place / "out" / "report.json").read_text("utf-8")
    again = report.as_json() | {key: json.loads(text)[key] for key in ("folder", "bundle")}
    assert json.loads(json.dumps(again)) == json.loads(text)


def test_the_devices_latency_joins_the_candidate_that_was_measured(place):
    report = merge_results(place / "out", [place / "brought"])
    frame = read_stored(place / "brought").samples.summary()["frame"]
    assert report.best.latency.verdict == "PASS"
    assert report.best.latency.frames >= 400
    assert report.best.latency.frame.p50_ms == frame.p50.value_ms
    assert [one.name for one in report.candidates if one.latency] == [report.chosen]
    assert report.exit_code == (0 if report.trust == "TRUSTED" else 4)
    assert not any("not measured" in one.detail for one in report.notes)
    assert read_report(place / "out", ModelReport).best.latency == report.best.latency
    assert "latency: measured on" in (place / "out" / "report.md").read_text("utf-8")


def test_merging_twice_changes_nothing_more(place):
    once = merge_results(place / "out", [place / "brought"])
    assert merge_results(place / "out", [place / "brought" / "bench.json"]) == once


def edited(place, key, value):
    path = place / "brought" / "bench.json"
    values = json.loads(path.read_text("utf-8"))
    text = json.dumps(values)
    facts = values["environment"].get("facts", values["environment"])
    facts[key] = {**facts[key], "value": value} if isinstance(facts[key], dict) else value
    assert json.dumps(values) != text
    path.write_text(json.dumps(values), "utf-8")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.sha256", "0" * 64, "measured another model, not model.onnx"),
        ("session.executor", "openvino", "was measured on openvino"),
        ("session.providers", ["CUDAExecutionProvider"], "was measured on onnxruntime ['CUDAExecutionProvider']"),
    ],
)
def test_a_result_of_another_model_or_engine_is_refused(place, key, value, said):
    edited(place, key, value)
    with pytest.raises(InvalidFileError) as caught:
        merge_results(place / "out", [place / "brought"])
    assert said in caught.value.problem
    assert "edgeopt bench" in caught.value.remedy
    assert read_report(place / "out", ModelReport).best.latency is None


def test_the_command_shows_a_report_and_merges(place):
    shown = CliRunner().invoke(cli, ["report", str(place / "out")])
    assert shown.exit_code == 3
    assert "not measured: this machine is not the target" in shown.output
    shown = CliRunner().invoke(cli, ["report", str(place / "out"), "--merge", str(place / "brought")])
    assert (shown.exit_code, "\nPASS  " in shown.output) in ((0, True), (4, False)), shown.output


def test_a_folder_without_a_report_is_one_clear_line(tmp_path):
    shown = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert shown.exit_code == 1
    (tmp_path / "report.json").write_text('{"schema": 3}')
    with pytest.raises(InvalidFileError, match="no report of edgeopt optimize"):
        read_report(tmp_path, ModelReport)


@pytest.mark.parametrize(
    ("environment", "why"),
    [("null", "it has no environment"), ("[]", "it has no environment"), ("[1]", "its environment has no facts")],
)
def test_a_report_without_an_environment_is_refused_in_words(environment, why, tmp_path):
    (tmp_path / "report.json").write_text(f'{{"schema": 5, "kind": "frames", "environment": {environment}}}', "utf-8")
    shown = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert shown.exit_code == 1
    assert f"report.json is no report of edgeopt optimize: {why}\n" in shown.output


def test_runs_lie_side_by_side(place):
    merge_results(place / "out", [place / "brought"])
    page = place / "page.html"
    both = [str(place / "out"), str(place / "brought")]
    shown = CliRunner().invoke(cli, ["report", *both, "--html", str(page), "--json"])
    assert shown.exit_code == 0, shown.output
    one, other = json.loads(shown.output)["runs"]
    assert (one["label"], one["command"], one["target"]) == ("out", "optimize", ELSEWHERE)
    assert (other["label"], other["command"], other["chosen"]) == ("brought", "bench", "")
    assert one["latency"]["frame"] == other["latency"]["frame"]
    assert one["accuracy"]["metric"] == "AP"
    text = page.read_text("utf-8")
    assert text.count("<figure") >= 2
    assert 'data-name="brought"' in text


def test_a_folder_without_a_run_and_merging_into_several_are_refused(place, tmp_path):
    (tmp_path / "empty").mkdir()
    shown = CliRunner().invoke(cli, ["report", str(place / "out"), str(tmp_path / "empty")])
    assert shown.exit_code == 1
    assert "holds no earlier run" in shown.output
    both = [str(place / "out"), str(place / "out"), "--merge", str(place / "brought")]
    shown = CliRunner().invoke(cli, ["report", *both])
    assert shown.exit_code == 1
    assert "--merge joins results with one FOLDER" in shown.output


def test_what_differs_between_machines_is_told_where_all_know_it(place):
    here = read_stored(place / "brought").environment
    other = Environment({**here.facts, "cpu.model": Fact(Use.CRITICAL, "Cortex-A76"), "new": Fact(Use.CRITICAL, 1)})
    run = read_runs([place / "brought"], earlier_run)[0]
    told = differences([run, replace(run, environment=other)])
    assert dict(told) == {"cpu.model": (here.cpu, "Cortex-A76")}
