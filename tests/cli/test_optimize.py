"""The straight line on the shipped model, through the command line, as a user runs it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from fixture_brief import briefly, ending_after
from fixture_bundles import packed

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EXIT_INTERRUPTED
from edgeopt.graph.model import find_model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.recipe import find_recipe
from edgeopt.report.result import SCHEMA
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.quantize import STEP
from edgeopt.steps.quantize.inspection.table import TENSORS, worst_tensors
from edgeopt.steps.quantize.search.attempt import Attempt

AS_A_USER = {
    "edgeopt.optimization.choice.decide.MOST_SECONDS": 60.0,
    "edgeopt.optimization.candidates.measure.LEAST_PROCESSES": 6,
    "edgeopt.optimization.candidates.measure.MOST_PROCESSES": 6,
}
"""Turns until the frames suffice for a p99, and the least proof: the tests below look at both."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of the quick start, shared by the tests that look at it.

    A busy machine would prune it; no test here looks at more than two INT8 forms, nor at how fast parts inside are.
    """
    out = tmp_path_factory.mktemp("line") / "out"
    with briefly(), ending_after(2), pytest.MonkeyPatch.context() as patch:
        for name, value in AS_A_USER.items():
            patch.setattr(name, value)
        return optimize("digits_detector", target="cpu", out=out, budget_ms=500.0, threads=1, skip=("prune",))


def test_every_step_made_a_candidate_that_was_scored_and_measured(finished):
    assert [one.name for one in finished.candidates][:4] == ["baseline", "simplify", "fuse", "quantize"]
    assert finished.candidates[0].score.n == 160
    for one in finished.candidates:
        assert one.judgement is None or one.score.n == 160
        assert one.latency.frames >= 368
        assert one.latency.frame.p50_ms < one.latency.frame.p99_ms
        assert set(one.latency.stages) == {"load", "preprocess", "upload", "execute", "download", "postprocess"}


def test_the_report_shows_which_tensors_suffer_most(finished):
    rows = worst_tensors(finished.folder / "candidates" / "quantize" / TENSORS)
    text = (finished.folder / "report.md").read_text("utf-8")
    assert rows
    assert all(f"| {' | '.join(row)} |" in text for row in rows)


def test_the_shipped_model_is_accurate_and_stays_so(finished):
    assert finished.candidates[0].score.value >= 0.80
    assert finished.best.drop is None or finished.best.drop <= finished.max_drop


def test_float_steps_change_no_answer(finished):
    for one in finished.candidates[1:3]:
        assert one.agreement > 0.999
        assert one.drift.sqnr_db > 60


def test_fusing_took_every_batch_normalisation_away(finished):
    before = load_model(find_model("digits_detector")).op_counts
    after = load_model(finished.folder / "candidates/fuse/model.onnx").op_counts
    assert before["BatchNormalization"] > 0
    assert "BatchNormalization" not in after


def test_a_generous_budget_passes(finished):
    assert finished.best.latency.verdict == "PASS"
    assert (finished.verdict, finished.exit_code) in (("PASS", 0), ("NOISY", 4))  # the machine's affair
    assert finished.trust.startswith(("TRUSTED", "NOISY"))


def test_what_is_chosen_is_proven_over_fresh_processes_or_the_original_stays(finished):
    proven = [one for one in finished.candidates if one.speed and one.speed.verdict == "FASTER"]
    assert all(one.speed.processes >= 6 and one.speed.low > 1.02 for one in proven)
    assert finished.best in proven or finished.reason.startswith("the original stays")
    for one in finished.candidates[1:]:
        assert one.speed.processes >= 6 or one.speed.verdict in ("UNCONFIRMED", "EQUIVALENT")  # of the same graph
        if one.speed.processes > 1:
            assert (finished.folder / one.file).with_name("confirmed.npz").is_file()


def test_the_report_on_disk_is_the_report(finished):
    values = json.loads((finished.folder / "report.json").read_text())
    assert (values["schema"], values["kind"]) == (SCHEMA, "frames")
    assert values["chosen"] == finished.chosen
    assert "NaN" not in (finished.folder / "report.json").read_text()
    text = (finished.folder / "report.md").read_text()
    assert any(line.rstrip(" |").endswith("| chosen") for line in text.splitlines())
    assert finished.verdict_line in text


def test_the_picture_shows_three_frames_before_and_after(finished):
    picture = cv2.imread(str(finished.folder / "answers.png"))
    assert picture.shape[0] > 3 * 320
    assert len(np.unique(picture)) > 100


def test_what_may_be_chosen_has_a_judgement_whose_bounds_hold_its_drop(finished):
    judged = [one.judgement for one in finished.candidates[1:] if one.judgement and one.judgement.samples]
    for one in judged:
        assert one.drop_least <= one.drop <= one.drop_most
    assert finished.best is finished.candidates[0] or finished.best.word in ("KEPT", "NOT DECIDED")
    assert finished.best.word in (finished.folder / "report.md").read_text()


def test_the_worst_tensors_are_on_disk_and_in_the_report_and_the_calibration_is_gone(finished):
    known = json.loads((finished.folder / "candidates/quantize/tensors.json").read_text())["tensors"]
    scores = [one["channel_sqnr_db"] for one in known]
    assert scores == sorted(scores)
    worst = next(one for one in known if one["rounded"] or one["kept"])
    text = (finished.folder / "report.md").read_text()
    assert f"| {worst['name']} | {worst['channel_sqnr_db']:.1f} |" in text
    assert not (finished.folder / ".calibration").exists()


def test_every_integer_candidate_says_what_the_engine_made_of_it(finished):
    for one in finished.candidates:
        if one.precision == "w8a8" and one.executor == "onnxruntime":
            assert any(note.detail.startswith("ONNX Runtime runs it as ") for note in one.notes)
            assert not any("still run in float" in note.detail for note in one.notes)


def test_raw_samples_are_on_disk(finished):
    from edgeopt.measurement.samples import Samples

    for one in finished.candidates:
        samples = Samples.read(finished.folder / "candidates" / one.name / "samples.npz")
        assert len(samples.steady()) == one.latency.frames


def test_the_bundle_runs_and_gives_the_models_answers(finished):
    runtime = edgeopt.Runtime.load(finished.bundle, threads=1)
    folder = find_recipe("digits_detector").folder / "eval" / "images"
    frame = cv2.imread(str(sorted(folder.glob("*.jpg"))[0]))
    found = runtime.predict(frame)
    assert len(found) >= 1
    assert (found.boxes[:, 2:] >= found.boxes[:, :2]).all()
    assert runtime.bundle.recipe.class_names == tuple("0123456789")
    assert read_bundle(finished.folder).expected["accuracy"] == finished.best.score.value


def test_run_prints_an_answer_for_every_frame(finished, tmp_path):
    folder = find_recipe("digits_detector").folder / "eval" / "images"
    shown = CliRunner().invoke(
        cli, ["run", str(finished.folder), str(folder), "--limit", "3", "--json", "--save", str(tmp_path)]
    )
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(rows) == 3
    assert all(rows[0]["detections"][0]["class"] in "0123456789" for _ in rows)
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_bench_of_the_bundle_writes_raw_samples(finished, tmp_path):
    folder = find_recipe("digits_detector").folder / "calib"
    arguments = [
        "bench",
        str(finished.bundle),
        "-s",
        str(folder),
        "--seconds",
        "0.3",
        "--frames",
        "60",
        "-o",
        str(tmp_path),
    ]
    shown = CliRunner().invoke(cli, [*arguments, "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert "postprocess" in shown.output
    assert json.loads((tmp_path / "bench.json").read_text())["schema"] >= 1
    assert (tmp_path / "samples.npz").is_file()


def test_resume_takes_up_what_is_finished(finished, tmp_path, brief):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    before = {one.name: one.agreement for one in finished.candidates}
    models = {one.name: (folder / one.file).stat().st_mtime_ns for one in finished.candidates}
    again = optimize(
        "digits_detector", target="cpu", out=folder, budget_ms=500.0, threads=1, skip=("prune",), resume=True
    )
    assert {one.name: one.agreement for one in again.candidates} == before
    assert again.candidates[0].score == finished.candidates[0].score
    assert all(any(note.detail == "taken up from disk" for note in one.notes) for one in again.candidates)
    assert {one.name: (folder / one.file).stat().st_mtime_ns for one in again.candidates} == models


@pytest.mark.parametrize(
    ("target", "engine", "line"),
    [
        ("cpu", "bogus", "error: no engine with files of its own named 'bogus'"),
        (
            "cpu-x86-vnni",
            "ncnn",
            "error: --emit ncnn writes what was measured on ncnn, which this command does not run",
        ),
    ],
)
def test_a_plan_refuses_files_of_an_engine_that_the_run_would_not_write(target, engine, line):
    if engine == "ncnn":
        pytest.importorskip("ncnn")
    done = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", target, "--emit", engine, "--dry-run"])
    assert (done.exit_code, line in done.output, done.output.count("\n  -> ")) == (1, True, 1), done.output


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    shown = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", "cpu", "-o", str(out), "--dry-run"])
    assert shown.exit_code == 0
    assert "\nquantize  INT8 by the target" in shown.output
    assert not out.exists()


def test_without_calibration_pictures_the_float_steps_run_and_the_line_says_what_to_pass(tmp_path, brief):
    recipe = tmp_path / "recipe.toml"
    text = (find_recipe("digits_detector").folder / "recipe.toml").read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("labels", "calib", "model"))]
    recipe.write_text("\n".join(kept))
    model = str(find_model("digits_detector"))
    shown = CliRunner().invoke(
        cli, ["optimize", model, "-t", "cpu", "-r", str(recipe), "-o", str(tmp_path / "o"), "--threads", "1"]
    )
    assert shown.exit_code == 0, shown.output
    assert "--calib" in shown.output
    assert not (tmp_path / "o" / "candidates" / "quantize").exists()
    assert (tmp_path / "o" / "candidates" / "fuse" / "model.onnx").exists()


def test_synthetic_calibration_is_marked_everywhere(tmp_path, one_form):
    arguments = [
        "optimize",
        "digits_detector",
        "-t",
        "cpu",
        "--calib",
        "synthetic",
        "-o",
        str(tmp_path / "o"),
        "--threads",
        "1",
        "--time-limit",
        "40s",
    ]
    shown = CliRunner().invoke(cli, [*arguments, "--steps", "simplify,fuse,quantize"])
    assert shown.exit_code == 0, shown.output
    assert "uncalibrated" in shown.output
    assert "uncalibrated" in (tmp_path / "o" / "report.md").read_text()
    assert "SYNTHETIC" in json.loads((tmp_path / "o" / "report.json").read_text())["calibrated_on"]


def test_a_budget_that_cannot_be_met_ends_with_two_and_still_writes_the_bundle(tmp_path, brief):
    arguments = [
        "optimize",
        "digits_detector",
        "-t",
        "cpu",
        "-o",
        str(tmp_path / "o"),
        "--steps",
        "fuse",
        "--threads",
        "1",
    ]
    shown = CliRunner().invoke(cli, [*arguments, "--budget", "0.01ms"])
    assert shown.exit_code in (2, 4), shown.output
    assert f"\n{'FAIL' if shown.exit_code == 2 else 'NOISY'} " in shown.output
    assert (tmp_path / "o" / "bundle" / "manifest.json").exists()


def test_a_target_that_is_not_this_machine_is_not_measured(tmp_path):
    other = "cpu-arm64" if edgeopt_architecture() != "arm64" else "cpu-x86-avx2"
    arguments = [
        "optimize",
        "digits_detector",
        "-t",
        other,
        "-o",
        str(tmp_path / "o"),
        "--steps",
        "fuse",
        "--budget",
        "33ms",
    ]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 3, shown.output
    assert "\nNOT DECIDED " in shown.output
    assert f"next        edgeopt bench {tmp_path / 'o' / 'bundle'}" in shown.output


def edgeopt_architecture() -> str:
    from edgeopt.system.machine.processor import cpu_architecture

    return cpu_architecture()


def test_sigterm_leaves_finished_candidates_and_resume_takes_them_up(tmp_path, brief):
    """The process gets a real SIGTERM, as docker and systemd send it, once the second candidate is told of."""
    out = tmp_path / "o"
    arguments = ["optimize", "digits_detector", "-t", "cpu", "-o", str(out), "--threads", "1"]
    arguments += ["--skip", "prune,quantize"]
    command = [sys.executable, "-m", "edgeopt", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("simplify"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
        process.wait(60)
    assert process.returncode == 130, rest
    assert "--resume" in rest
    assert "Traceback" not in rest
    assert (out / "candidates" / "simplify" / "candidate.json").exists()
    assert read_report(out, ModelReport).was_cut
    assert read_bundle(out / "bundle").artefacts
    shown = CliRunner().invoke(cli, [*arguments, "--resume"])
    assert shown.exit_code == 0, shown.output
    assert "from disk" in shown.output


def test_an_interrupted_search_leaves_its_best_form(tmp_path, monkeypatch):
    def interrupted(model, calibration_inputs, rules, *, on_attempt, **_):
        for speed, agreement in ((1.4, 0.99), (2.0, 0.1)):
            on_attempt(Attempt("one", Outcome(model, {}), agreement, speed))
        raise KeyboardInterrupt

    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", interrupted)
    report = optimize(
        "digits_detector", target="cpu", out=tmp_path / "o", threads=1, skip=("simplify", "fuse", "prune")
    )
    assert (report.chosen, report.exit_code) == ("baseline", EXIT_INTERRUPTED)
    assert load_model(tmp_path / "o" / "candidates" / "quantize" / "best-so-far.onnx").outputs


def test_equal_bytes_are_one_candidate_and_the_line_says_that_nothing_was_done(tmp_path, monkeypatch, brief):
    def unchanged(model, *_):
        return [Outcome(model, {"something": 1}), Outcome(model, {"something": 2})]

    monkeypatch.setattr("edgeopt.steps.quantize.STEP", replace(STEP, make=unchanged))
    report = optimize("digits_detector", target="cpu", out=tmp_path / "o", threads=1, steps=("quantize",))
    assert [one.name for one in report.candidates if not one.profile] == ["baseline"]
    told = [note.detail for note in report.notes if note.detail.endswith("nothing to do, it is baseline byte by byte")]
    assert [one.partition(":")[0] for one in told] == ["quantize", "quantize-2"]


def test_a_reached_time_limit_leaves_a_valid_result_and_says_so(tmp_path, brief):
    report = optimize("digits_detector", target="cpu", out=tmp_path / "o", threads=1, time_limit_s=0.01)
    assert [one.name for one in report.candidates] == ["baseline"]
    assert any("time limit reached before simplify" in note.detail for note in report.candidates[0].notes)
    assert edgeopt.Runtime.load(report.bundle).bundle.artefacts[0].precision == "fp32"


def test_calibration_tensors_of_an_npz_are_taken_as_the_models_inputs(tmp_path, one_form):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "inputs.npz", images=rng.uniform(0, 1, (4, 3, 160, 160)).astype(np.float32))
    calib = str(tmp_path / "inputs.npz")
    wishes = {"threads": 1, "calib": calib, "skip": ("prune",), "time_limit_s": 40.0}
    report = optimize("digits_detector", target="cpu", out=tmp_path / "o", **wishes)
    assert any(one.precision == "w8a8" for one in report.candidates)
    assert "4 samples of" in report.calibrated_on


def test_calibration_tensors_of_another_shape_are_refused(tmp_path):
    np.savez(tmp_path / "inputs.npz", images=np.ones((4, 3, 64, 64), np.float32))
    with pytest.raises(edgeopt.EdgeoptError, match="the model takes images float32 1x3x160x160"):
        optimize("digits_detector", target="cpu", out=tmp_path / "o", calib=str(tmp_path / "inputs.npz"))


def test_the_bundle_tests_its_numbers_and_the_report_says_what_it_weighs(finished):
    bundle = read_bundle(finished.bundle)
    last = bundle.artefacts[-1]
    assert (last.executor, last.providers, last.precision) == ("onnxruntime", ("CPUExecutionProvider",), "fp32")
    assert all(one.noise_limits and one.expected.accuracy for one in (*bundle.artefacts, *bundle.lighter))
    assert 1 <= bundle.selftest.samples <= 4
    with edgeopt.Runtime.load(finished.bundle, strict=True) as runtime:
        assert not [note for note in runtime.notes if "off what was measured" in note.detail]
    (told,) = [note.detail for note in finished.notes if note.detail.startswith("the bundle has ")]
    files = {one.name: one.stat().st_size for one in finished.bundle.iterdir() if one.name != "manifest.json"}
    assert all(name in told for name in files)


def test_the_bundles_fallback_opens_when_the_first_model_does_not(finished, tmp_path):
    """A device whose engine lacks the integer ops still gets an answer, and a note."""
    from edgeopt.runtime import bundle

    folder = tmp_path / "bundle"
    good = read_bundle(finished.bundle)
    data, target = good.model.read_bytes(), good.target
    models = [packed("model.onnx", "w8a8", b"no model", target), packed("fallback.onnx", "fp32", data, target)]
    bundle.write_bundle(folder, models, good.target, good.recipe, good.expected, good.tools)
    runtime = edgeopt.Runtime.load(folder, threads=1)
    assert "model.onnx not used" in runtime.notes[0].detail
    assert len(runtime.predict(np.zeros((90, 120, 3), np.uint8))) >= 0
