"""`bench` and `compare` on a phone that this machine plays: protocol, files and runner are real, the phone is not."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import psutil
import pytest
from adb_phone import finished, net
from fixture_bundles import bundle_with_test, reseal

import edgeopt
from edgeopt.graph.model import load_model
from edgeopt.measurement.frames.result import FrameBenchResult
from edgeopt.measurement.samples import Samples
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundles.targets import this_machine

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "digits_detector" / "model.onnx"
PIPELINE = str(ROOT / "examples" / "pipeline" / "pipeline.toml")
SHORT = ("--seconds", "0.1", "--frames", "30")


def test_python_measures_there_too(phone):
    result = edgeopt.bench("digits_detector", on="adb://R58M0ABC", seconds=0.1, min_frames=30, budget_ms=1e4)
    assert isinstance(result, FrameBenchResult)
    assert result.samples.stages == ("upload", "execute", "download")
    assert result.environment.facts["cpu.model"].value == "Fast Chip 9000"
    assert "--on adb://R58M0ABC" in result.repeat()


def test_a_model_is_measured_there_and_the_result_is_that_of_bench(phone, tmp_path):
    bench = ("bench", "digits_detector", "--on", "adb://R58M0ABC", *SHORT, "--budget", "10s", "-o", "measured")
    code, said = finished(*bench)
    assert code in (0, 3, 4), said  # as many frames as the machine has time for decide or do not
    assert "edgeopt-runner with ONNX Runtime" in said
    assert "on Acme Phone 7, Android 14 (API 34)" in said
    stored = json.loads((tmp_path / "measured" / "bench.json").read_text())
    samples = Samples.read(tmp_path / "measured" / "samples.npz")
    assert samples.stages == ("upload", "execute", "download")
    assert len(samples) >= 30
    assert (samples.times_ns.sum(axis=1) <= samples.frame_ns).all(), "stages are parts of the frame"
    assert samples.wall_ns is not None, "some frames ran without marks"
    assert (np.diff(samples.started_ns) > 0).all()
    facts = {key: fact["value"] for key, fact in stored["environment"]["facts"].items()}
    assert facts["cpu.model"] == "Fast Chip 9000"
    assert facts["system.board"] == "Acme Phone 7"
    state = facts["phone.state"]["before"]
    assert state == {
        "level_percent": 83,
        "is_charging": True,
        "battery_c": 31.2,
        "thermal_status": 0,
        "is_saving": False,
    }
    assert len(stored["opening_ms"]["create"]) == 5, "each process tells what opening took"
    assert stored["memory"]["peak_bytes"] > 1 << 20
    assert [
        note["detail"] for note in stored["notes"] if "preprocess and postprocess do not run there" in note["detail"]
    ]
    assert not list((phone.own / "jobs").iterdir()), "nothing is left of the run"
    assert not list((phone.own / "parts").iterdir())


def test_what_a_phone_has_is_not_sent_again(empty_phone):
    bench = ("bench", str(MODEL), "--on", "adb://", *SHORT)
    code, said = finished(*bench)
    assert code == 0, said
    first = [path for path in empty_phone.pushed if "/parts/" in path]
    assert {Path(path).name for path in first} >= {"edgeopt-runner", "model.onnx", "inputs.bin"}
    empty_phone.pushed.clear()
    code, said = finished(*bench)
    assert code == 0, said
    assert not [path for path in empty_phone.pushed if "/parts/" in path], "only requests go there"


def test_wishes_are_looked_at_before_anything_is_sent(empty_phone):
    for arguments in (
        ("bench", "digits_detector", "--seconds", "1", "--minutes", "1"),
        ("bench", "digits_detector", "--max-miss", "0.0"),
    ):
        code, said = finished(*arguments, "--on", "adb://")
        assert code == 1, said
    assert not empty_phone.pushed


def test_models_take_turns_there(phone, tmp_path):
    net(tmp_path / "a.onnx")
    net(tmp_path / "b.onnx", large=True)
    command = (
        "compare",
        "a.onnx",
        "b.onnx",
        "-s",
        "inputs.npz",
        "--on",
        "adb://",
        "--seconds",
        "0.5",
        "--threads",
        "1",
        "-o",
        "compared",
    )
    code, said = finished(*command)
    assert code == 0, said
    assert re.search(r"FASTER|SLOWER|EQUIVALENT|INCONCLUSIVE", said)
    stored = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert stored["in_turns"]
    assert {*stored["rows"][1]["ratios"]} >= {"frame"}
    parts = [Samples.read(tmp_path / "compared" / f"samples-{name}.npz") for name in ("1", "2", "again")]
    rounds = [part.steady().round_id for part in parts]
    assert [*rounds[0]] == [*rounds[1]] == [*rounds[2]], "all models have the same blocks in each round"
    assert rounds[0].max() >= 4
    phone_runs = [command for command in phone.commands if "exec" in command and "edgeopt-runner" in command]
    assert len(phone_runs) > 4, "a greeting, the numbers of each model, then a process for each leg"


def test_a_bundle_brings_its_engine_and_its_threads(phone, tmp_path):
    net = load_model(MODEL, "digits")
    recipe = choose_recipe(None, MODEL, net.inputs, net.outputs, net.metadata).recipe
    frames = open_frames(MODEL.parent / "calib")
    bundle_with_test(tmp_path / "made", net, recipe, [frames.read(0)], {"model.onnx": net.data})
    code, said = finished("bench", "made", "--on", "adb://", *SHORT, "-s", str(frames.source), "-o", "one")
    assert code == 0, said
    stored = json.loads((tmp_path / "one" / "bench.json").read_text())
    assert (stored["executor"], stored["threads"]) == ("onnxruntime", 1)
    assert "--target" not in said, "a bundle is of its own target, in the next command too"
    wide = tmp_path / "wide"
    shutil.copytree(tmp_path / "made", wide)
    measured = {"measured_on": this_machine().to_json(), "frame_p50_ms": 1.0}
    reseal(wide, lambda values: values["expected"].update(measured))
    reseal(wide, lambda values: values["target"].update(name="wide", architectures=["mips"]))
    for path in (tmp_path / "made", wide):
        reseal(path, lambda values: values["expected"].update(original="a"))
    whole = edgeopt.combine_bundles([wide, tmp_path / "made"], tmp_path / "all")
    assert whole.label == "wide", "here the one comes first that was measured here"
    code, said = finished("bench", "all", "--on", "adb://", *SHORT, "-s", str(frames.source))
    assert code in (0, 4), said
    assert "target cpu-x86-vnni of 2 in the bundle: made for such a processor" in said
    code, said = finished("bench", "all", "--on", "adb://", "-t", "nosuch", *SHORT)
    assert code == 1
    assert "choose from: cpu-x86-vnni, wide" in said
    reseal(tmp_path / "made", lambda values: values["artefacts"][0].update(executor="ncnn"))
    code, said = finished("bench", "made", "--on", "adb://", *SHORT)
    assert code == 1
    assert "model.onnx not used: ncnn is asked for, and edgeopt-runner on adb://R58M0ABC has ONNX Runtime" in said


def test_results_of_one_phone_are_compared_later(phone, tmp_path):
    for name, op in (("one", "Relu"), ("other", "Sigmoid")):
        net(tmp_path / f"{name}.onnx", op=op)
        code, said = finished("bench", f"{name}.onnx", "-s", "inputs.npz", "--on", "adb://", *SHORT, "-o", name)
        assert code == 0, said
    code, said = finished("compare", "one", "other")
    assert code == 0, said
    assert "execute" in said
    code, said = finished("compare", "one", "other", "--on", "adb://")
    assert code == 1
    assert "one is an earlier result, which runs nowhere" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "tiny_lm", "-b", "b.json"), "edgeopt-runner runs single models of frames on a phone"),
        (("check", "digits_detector", "-b", "absent.json"), "absent.json"),
        (("run", "tiny_lm", "--prompt", "a"), "edgeopt-runner runs single models of frames on a phone"),
        (("run", "digits_detector", "x.png", "--budget", "9ms"), "--budget has no meaning on a phone"),
        (("run", "digits_detector", "absent.png"), "absent.png"),
        (("inspect", "digits_detector"), "edgeopt inspect cannot run on adb://R58M0ABC"),
        (("doctor",), "edgeopt doctor cannot run on adb://R58M0ABC"),
        (("push", "x", "--to", "/y"), "edgeopt push cannot run on adb://R58M0ABC"),
        (("bench", "digits_detector", "--load", "fps:30"), "--load has no meaning on a phone"),
        (("bench", "digits_detector", "--cold"), "--cold has no meaning on a phone"),
        (("bench", "digits_detector", "-t", "ncnn-cpu"), "edgeopt-runner on adb://R58M0ABC has ONNX Runtime on the"),
        (("bench", "digits_detector", "--threads", "1000"), "1000 threads on adb://R58M0ABC of"),
        (("bench", "tiny_lm"), "edgeopt-runner runs single models of frames on a phone"),
        (("bench", "nothing.onnx"), "no model file or shipped model named 'nothing.onnx'"),
        (("compare", "digits_detector", "digits_detector", "--eval", "x"), "x"),
        (("compare", "digits_detector"), "a comparison needs two, 1 given"),
        (("compare",), "a comparison needs two, 0 given"),
        (("bench", PIPELINE), "edgeopt-runner runs single models of frames on a phone"),
    ],
)
def test_what_a_phone_cannot_do_is_refused_in_one_line(phone, arguments, told):
    code, said = finished(*arguments, "--on", "adb://R58M0ABC")
    assert code == 1, said
    assert told in said
    assert "Traceback" not in said
    assert "->" in said


def test_a_model_that_computes_something_else_there_has_no_time(phone, tmp_path):
    net(tmp_path / "a.onnx")
    wrapper = phone.folder / "bin" / "negate"
    wrapper.write_text(
        f"#!{sys.executable}\n"
        "import json\nimport sys\nimport numpy\n"
        "for line in sys.stdin.buffer:\n"
        "    sys.stdout.buffer.write(line)\n"
        "    if answer := json.loads(line).get('answer'):\n"
        "        data = numpy.frombuffer(sys.stdin.buffer.read(answer['bytes']), numpy.float32)\n"
        "        sys.stdout.buffer.write((-data - 1).tobytes())\n"
        "    sys.stdout.buffer.flush()\n"
    )
    wrapper.chmod(0o755)
    phone.behind_runner = "negate"
    code, said = finished("bench", "a.onnx", "-s", "inputs.npz", "--on", "adb://", *SHORT)
    assert code == 1
    assert "its numbers are wrong on the phone, so no time is told" in said
    assert "Stages" not in said


def test_a_phone_that_is_unplugged_leaves_what_was_measured(phone, tmp_path):
    phone.unplug_at = b'"reading"'
    code, said = finished(
        "bench", "digits_detector", "--on", "adb://", "--seconds", "1", "--threads", "1", "-o", "measured"
    )
    assert code == 0, said
    assert "alone: adb://R58M0ABC is gone: the connection ended" in said
    stored = json.loads((tmp_path / "measured" / "bench.json").read_text())
    assert stored["samples"]["frames"] > 0
    assert stored["environment"]["facts"]["phone.state"]["value"]["after"] is None


def test_a_phone_that_is_unplugged_before_a_figure_is_one_line(phone):
    phone.unplug_at = b'"runner"'
    code, said = finished("bench", "digits_detector", "--on", "adb://", *SHORT)
    assert code == 1
    assert "Stages" not in said
    assert "adb://R58M0ABC is gone: the connection ended" in said
    assert "Traceback" not in said


def test_a_comparison_keeps_the_rounds_before_the_cable_was_out(phone, tmp_path):
    """The last of several legs is cut."""
    net(tmp_path / "a.onnx")
    phone.unplug_at, phone.unplug_after = b'"reading"', 3
    command = ("compare", "a.onnx", "a.onnx", "-s", "inputs.npz", "--on", "adb://", "--seconds", "3", "-o", "compared")
    code, said = finished(*command)
    assert code == 0, said
    assert re.search(r"the figures are of \d+ rounds alone: adb://R58M0ABC", said), said
    stored = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert stored["rows"][1]["ratios"]["frame"]["pairs"] >= 4


@pytest.mark.parametrize(("name", "told"), [("SEGV", "was ended by SIGSEGV"), ("KILL", "SIGKILL, as where memory")])
def test_a_runner_that_dies_names_the_signal(phone, name, told):
    phone.before_runner = f"kill -{name} $$"
    code, said = finished("bench", "digits_detector", "--on", "adb://", *SHORT)
    assert code == 1
    assert told in said


def test_a_model_that_does_not_open_there_is_said_in_its_words(phone):
    phone.before_runner = "sed -i 's/^entry .*//; s/^model .*/model absent.onnx/' request"
    code, said = finished("bench", "digits_detector", "--on", "adb://", *SHORT)
    assert code == 1
    assert "edgeopt-runner on adb://R58M0ABC: " in said
    assert "absent.onnx" in said


def test_a_phone_without_room_is_one_line(phone):
    phone.full = True
    code, said = finished("bench", "digits_detector", "--on", "adb://", *SHORT)
    assert code == 1
    assert "does not take" in said
    assert "No space left on device" in said


def test_heat_and_a_low_battery_are_told(phone):
    phone.heat, phone.level = 2, 9
    phone.settle()
    (phone.folder / "bin" / "dumpsys").write_text(
        (phone.folder / "bin" / "dumpsys").read_text().replace("USB powered: true", "USB powered: false")
    )
    code, said = finished("bench", "digits_detector", "--on", "adb://", *SHORT)
    assert code == 0, said
    assert "its thermal status is moderate" in said
    assert "the phone's battery is at 9 %" in said


def test_ctrl_c_ends_the_runner_there_too(phone):
    command = [
        sys.executable,
        "-m",
        "edgeopt",
        "bench",
        "digits_detector",
        "--on",
        "adb://",
        "--seconds",
        "60",
        "--threads",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until_s = monotonic() + 120
        while not [path for path in phone.pushed if path.endswith("/request")][4:]:
            assert monotonic() < until_s
            sleep(0.05)
        sleep(0.5)
        process.send_signal(signal.SIGTERM)  # as Ctrl-C, which a job in a background may be told to ignore
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    while [each for each in psutil.process_iter(["cmdline"]) if str(phone.own) in " ".join(each.info["cmdline"] or ())]:
        assert monotonic() < until_s
        sleep(0.05)
    assert not list((phone.own / "jobs").iterdir())
