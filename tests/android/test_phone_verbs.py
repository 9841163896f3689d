"""Commands whose models run on a phone that this machine plays: `check`, `run`, `compare --eval`, `optimize`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from adb_phone import FakePhone, finished, net
from few_labels import write_few
from onnx import TensorProto, helper, save_model

import edgeopt
from edgeopt.measurement.check.result import CheckReport, CheckVerdict

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "digits_detector"
QUICK = ("--seconds", "0.2", "--starts", "3")


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> str:
    """Labels of some of the pictures."""
    return str(write_few(MODEL / "eval" / "instances.json", 40, tmp_path_factory.mktemp("few") / "labels.json"))


def left_on(phone: FakePhone) -> list[Path]:
    """Return what runs of the runner left there."""
    return [*(phone.own / "jobs").iterdir(), *(phone.own / "parts").iterdir()]


def test_a_model_is_checked_there_against_its_baseline(phone, tmp_path):
    net(tmp_path / "a.onnx")
    check = ("check", "a.onnx", "-b", "gate.json", "-s", "inputs.npz", "--threads", "1", *QUICK)
    code, said = finished(*check, "--update", "--on", "adb://")
    assert code == 0, said
    stored = json.loads((tmp_path / "gate.json").read_text())
    facts = {key: fact["value"] for key, fact in stored["environment"]["facts"].items()}
    assert facts["cpu.model"] == "Fast Chip 9000", "the baseline is of the phone"
    code, said = finished(*check, "--junit", "gate.xml", "--on", "adb://")
    assert code in (0, 2, 4), said
    assert re.search(r"latency execute (PASS|INCONCLUSIVE|FAIL)", said), said
    assert re.search(r"memory (PASS|INCONCLUSIVE)", said), said
    assert "cold start" in said
    assert (tmp_path / "gate.xml").is_file()
    assert not left_on(phone)


def test_python_checks_there_too(phone, labels):
    wishes = {
        "baseline": "gate.json",
        "eval": labels,
        "seconds": 0.2,
        "starts": 3,
        "skip": ("memory", "cold_start", "latency"),
    }
    edgeopt.check("digits_detector", on="adb://R58M0ABC", update=True, **wishes)
    report = edgeopt.check("digits_detector", on="adb://R58M0ABC", **wishes)
    assert isinstance(report, CheckReport)
    verdicts = {result.name: result.verdict for result in report.results}
    assert verdicts["accuracy"] is CheckVerdict.PASS
    assert report.exit_code == 0


def test_a_model_that_loses_its_accuracy_fails_there(phone, labels, tmp_path):
    """Weights are moved, so that answers change: the exit code is that of a gate that was missed."""
    import onnx

    model = onnx.load(MODEL / "model.onnx")
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.ndim == 4:
            noise = np.random.default_rng(0).standard_normal(values.shape)
            tensor.CopyFrom(onnx.numpy_helper.from_array((values * (1 + 2 * noise)).astype(values.dtype), tensor.name))
    onnx.save(model, tmp_path / "worse.onnx")
    skip = ("--skip", "latency", "--skip", "memory", "--skip", "cold_start")
    recipe = ("--recipe", str(MODEL / "recipe.toml"), "--on", "adb://", *skip)
    code, said = finished("check", "digits_detector", "-b", "gate.json", "--update", "--eval", labels, *recipe)
    assert code == 0, said
    code, said = finished("check", "worse.onnx", "-b", "gate.json", "--eval", labels, *recipe)
    assert code == 2, said
    assert re.search(r"accuracy FAIL", said), said


def test_answers_of_a_phone_are_those_of_this_machine(phone, tmp_path):
    pictures = str(MODEL / "calib")
    code, there = finished("run", "digits_detector", pictures, "--limit", "6", "--save", "drawn", "--on", "adb://")
    assert code == 0, there
    assert len([*(tmp_path / "drawn").iterdir()]) == 6
    code, here = finished("run", "digits_detector", pictures, "--limit", "6")
    assert code == 0, here
    boxes = [re.findall(r"\d{4}\.jpg: (.*?)(?= \d{4}\.jpg| source| DONE)", said) for said in (there, here)]
    assert len(boxes[0]) == 6
    assert boxes[0] == boxes[1]
    assert not left_on(phone)


def test_python_gets_the_answers_of_a_phone(phone):
    answers, pictures = [], MODEL / "calib"
    there = edgeopt.run("digits_detector", pictures, on="adb://R58M0ABC", limit=2, hear=answers.append)
    here = edgeopt.run("digits_detector", pictures, limit=2)
    assert there.answers == ()
    assert [each.as_text() for each in answers] == [each.as_text() for each in here.answers]
    assert not left_on(phone)


def test_tensors_are_answered_there(phone, tmp_path):
    net(tmp_path / "a.onnx")
    code, there = finished("run", "a.onnx", "inputs.npz", "--json", "--on", "adb://")
    assert code == 0, there
    code, here = finished("run", "a.onnx", "inputs.npz", "--json")
    assert code == 0, here
    values = [[json.loads(each) for each in re.findall(r'"values": (\[.*?\])', said)] for said in (there, here)]
    assert np.shape(values[0]) == (8, 64), there
    assert np.allclose(values[0], values[1], rtol=1e-4, atol=1e-4)


def test_a_phone_that_is_unplugged_ends_a_run_with_one_line(phone, tmp_path):
    net(tmp_path / "a.onnx")
    phone.unplug_at, phone.unplug_after = b'"answer"', 2
    code, said = finished("run", "a.onnx", "inputs.npz", "--json", "--on", "adb://")
    assert code == 1, said
    assert said.count('"frame"') == 2, "what was answered is told"
    assert said.count("adb://R58M0ABC is gone: the connection ended") == 1


def test_accuracy_is_judged_by_the_answers_of_the_phone(phone, labels):
    code, said = finished("compare", *["digits_detector"] * 2, "--eval", labels, "--seconds", "0.2", "--on", "adb://")
    assert code == 0, said
    score = re.search(r" (0\.\d{4}) \+0\.0000 \[", said)
    assert score, said
    assert abs(float(score[1]) - 0.8577) < 0.005, "as on this machine"


def layers(path: Path, count: int = 12) -> None:
    """Write a model with nodes that simplify takes out, and what it is fed."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8, 24, 24)) for name in ("x", "y"))
    rng, nodes, tensors, last = np.random.default_rng(0), [], [], "x"
    for i in range(count):
        weights = (rng.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
        tensors.append(helper.make_tensor(f"w{i}", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True))
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Identity", [f"c{i}"], [f"d{i}"]))
        nodes.append(helper.make_node("Relu", [f"d{i}"], ["y" if i == count - 1 else f"r{i}"]))
        last = f"r{i}"
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.savez(path.with_name("inputs.npz"), x=rng.standard_normal((8, 1, 8, 24, 24)).astype(np.float32))


def test_candidates_are_made_here_and_the_phone_chooses(phone, brief, tmp_path):
    layers(tmp_path / "a.onnx")
    optimize = ("optimize", "a.onnx", "-t", "cpu", "--calib", "inputs.npz", "--on", "adb://", "-o", "out")
    code, said = finished(*optimize, "--steps", "simplify,fuse", "--threads", "1")
    assert code == 0, said
    assert "making candidates here for adb://R58M0ABC, which measures them" in said
    assert "Acme Phone 7, Android 14 (API 34) (adb://R58M0ABC) measures and chooses" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    facts = {key: fact["value"] for key, fact in report["environment"]["facts"].items()}
    assert (facts["cpu.model"], facts["phone.address"]) == ("Fast Chip 9000", "adb://R58M0ABC")
    names = [candidate["name"] for candidate in report["candidates"]]
    assert names[:2] == ["baseline", "simplify"]
    assert all(candidate["latency"] for candidate in report["candidates"])
    assert {*report["candidates"][0]["latency"]["stages"]} >= {"execute"}, "times are those of the runner"
    assert "--on adb://R58M0ABC" in said, "the next command measures there too"
    assert not left_on(phone)
    manifest = json.loads((tmp_path / "out" / "bundle" / "manifest.json").read_text())
    assert manifest["artefacts"][0]["executor"] == "onnxruntime", "the bundle is no phone's"
    code, said = finished("run", "out/bundle", "inputs.npz", "--limit", "1")
    assert code == 0, said
    phone.pushed.clear()
    code, said = finished(*optimize, "--steps", "simplify,fuse", "--threads", "1", "--resume")
    assert code == 0, said
    assert "from disk" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--search-there",), "--search-there needs Python there, and a phone has none"),
        (("--prune", "1.5x"), "--prune 1.5x prunes by the device's own times"),
        (("-t", "ncnn-cpu"), "ncnn"),
        (("--replay", "absent"), "a replay makes what another run made"),
    ],
)
def test_a_search_that_a_phone_cannot_take_up_is_refused_in_one_line(phone, tmp_path, arguments, told):
    net(tmp_path / "a.onnx")
    wishes = ("--calib", "inputs.npz", "-o", "out", "-t", "cpu", *arguments)
    code, said = finished("optimize", "a.onnx", *wishes, "--on", "adb://")
    assert code == 1, said
    assert told in said
    assert "->" in said


def test_a_plan_for_a_phone_is_shown(phone, tmp_path):
    net(tmp_path / "a.onnx")
    code, said = finished("optimize", "a.onnx", "-t", "cpu", "--calib", "inputs.npz", "--dry-run", "--on", "adb://")
    assert code == 0, said
    assert "simplify" in said
