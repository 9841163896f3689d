from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from taught_nets import PICTURES, dense, pruned, recipe_file

from edgeopt.cli import cli
from edgeopt.graph.facts.integers import read_integers
from edgeopt.graph.model import load_model, save_model

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
STEPS = "40"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with a teacher, its student and their recipe."""
    save_model(dense(), tmp_path / "dense.onnx")
    save_model(pruned(dense()), tmp_path / "pruned.onnx")
    recipe_file(tmp_path)
    return tmp_path


def command(folder: Path, out: str, *more: str) -> list[str]:
    paths = [str(folder / name) for name in ("pruned.onnx", "dense.onnx", "recipe.toml")]
    asked = ["finetune", paths[0], "--teacher", paths[1], "--recipe", paths[2], "--data", str(PICTURES)]
    return [*asked, "--threads", "1", "-o", str(folder / out), *more]


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


@needs_torch
def test_a_pruned_net_is_healed_and_the_figures_are_told(given):
    result = run(*command(given, "healed.onnx", "--steps", STEPS))
    assert result.exit_code == 0, result.output
    assert "healed.onnx answers more like dense than pruned does" in result.output
    for told in ("loss ", "agreement ", "better by +", "on 8 held-out pictures"):
        assert told in result.output
    student, made = load_model(given / "pruned.onnx"), load_model(given / "healed.onnx")
    assert [one.name for one in made.proto.graph.initializer] == [one.name for one in student.proto.graph.initializer]
    assert not list(given.glob(".healed*"))


@needs_torch
def test_the_page_shows_the_curve_and_json_holds_it(given):
    result = run(*command(given, "a.onnx", "--steps", "20", "--json"))
    told = json.loads(result.stdout)
    assert told["curve"][0]["step"] == 0
    assert told["curve"][-1]["step"] == 20
    assert told["loss"]["by"]["low"] <= told["loss"]["by"]["value"] <= told["loss"]["by"]["high"]
    page = run(*command(given, "b.onnx", "--steps", "20", "--format", "html")).stdout
    assert "Loss on held-out pictures" in page
    assert "<svg" in page


@needs_torch
def test_training_without_a_gain_writes_nothing(given, monkeypatch):
    monkeypatch.setattr("edgeopt.steps.finetune.loop.RATES", (1e-6,))
    result = run(*command(given, "none.onnx", "--steps", "8"))
    assert result.exit_code == 2, result.output
    assert "the given model stays" in result.output
    assert not (given / "none.onnx").exists()


@needs_torch
def test_a_float_net_is_put_on_integers_first_and_trained_on_them(given):
    result = run(*command(given, "integers.onnx", "--steps", "20", "--quantize", "amd-ryzen-ai"))
    assert result.exit_code == 0, result.output
    assert "forms of pruned by the rules of amd-ryzen-ai, without training" in result.output
    assert "rounded with inputs: held-out loss" in result.output
    made = load_model(given / "integers.onnx")
    assert "QDQ, 4 of 4 weighted layers in integers" in str(read_integers(made))
    again = command(given, "twice.onnx", "--quantize", "amd-ryzen-ai")
    again[1] = str(given / "integers.onnx")
    twice = run(*again)
    assert twice.exit_code == 1
    assert "is quantized already" in twice.output
    assert "leave --quantize out" in twice.output


@needs_torch
@pytest.mark.skipif(sys.platform == "win32", reason="a signal of its own cannot be sent there")
def test_an_interrupted_training_goes_on_to_the_same_bytes(given):
    whole = run(*command(given, "whole.onnx", "--steps", "80"))
    assert whole.exit_code == 0, whole.output
    again = command(given, "parts.onnx", "--steps", "80")
    asked = [sys.executable, "-m", "edgeopt", *again]
    # a shell that starts jobs in the background hands on SIGINT as ignored
    heard = "import signal, os; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; os.execv({asked[0]!r}, {asked!r})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"step 12:" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(60) == 130, said
    assert "the same command with --resume goes on" in " ".join(said.split())
    assert not (given / "parts.onnx").exists()
    resumed = run(*again, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "taken up at step" in resumed.output
    assert (given / "parts.onnx").read_bytes() == (given / "whole.onnx").read_bytes()


@needs_torch
def test_bad_input_is_one_error(given):
    (given / "empty").mkdir()
    spoilt = given / "spoilt"
    spoilt.mkdir()
    (spoilt / "a.png").write_bytes(b"no picture")
    for changed, told in (
        (("--data", str(given / "nowhere")), "does not exist"),
        (("--data", str(given / "empty")), "holds no picture"),
        (("--data", str(spoilt)), "decodes as a picture"),
        (("--teacher", str(given / "pruned.onnx")), "there is nothing to heal"),
        (("--teacher", "digits_detector"), "its teacher digits_detector"),
        (("--teacher", str(given / "none.onnx")), "no model file or shipped model"),
        (("--resume",), "there is nothing to take up"),
        (("--minutes", "0"), "minutes"),
    ):
        asked = command(given, "x.onnx", *changed)
        if changed[-1] == "digits_detector":
            place = asked.index("--recipe")
            asked[place : place + 2] = []
        result = run(*asked)
        assert result.exit_code == 1, (changed, result.output)
        assert told in result.output, (changed, result.output)
        assert "Traceback" not in result.output
        assert not (given / "x.onnx").exists()


def test_without_torch_one_line_says_what_to_install(given, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(*command(given, "x.onnx"))
    assert result.exit_code == 1
    assert "pip install 'edgeopt[train]'" in result.output
    assert "CUDA" in result.output
