"""`optimize --on` of language models and of pipelines: made here, measured behind a real sshd, and taken up again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeopt.graph.files.outside import sha256_of
from edgeopt.optimization.candidate import RESUMED
from edgeopt.optimization.generation.forms.kinds import FORMS as LANGUAGE_FORMS
from edgeopt.optimization.generation.optimize import make_language_forms_for
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.runtime.pipelines.bundle import read_pipeline
from edgeopt.system.machine.processor import this_processor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device's side needs a POSIX system")
LM = Path(__file__).parents[2] / "models" / "tiny_lm"
BRIEF = ("--prompt-tokens", "8", "--output-tokens", "4", "--threads", "1")
FORMS = {"w8a8", "w8a8+mixed", "w8", "w4", "w4+head", "w4+long", "w4+mixed"}


def finished(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "edgeopt", "optimize", *arguments, "-t", "cpu", "--on", "ssh://board"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return process.returncode, process.stdout, process.stderr


def finished_in(seconds: int, *arguments: str) -> tuple[int, str, str]:
    """Run a command under a time limit; where a busy machine needs more than that, under one three times as long."""
    code, printed, said = finished(*arguments, "--time-limit", f"{seconds}s")
    text = " ".join(said.split())
    if code == 1 and ("too long for the time limit of" in text or "leaves too little time to measure" in text):
        if "--resume" not in arguments:
            shutil.rmtree("out", ignore_errors=True)
        return finished(*arguments, "--time-limit", f"{3 * seconds}s")
    return code, printed, said


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each form but those that depend on the fastest there: with a small cache, of two graphs."""
    files = {file.parent.name: file for file in folder.glob("candidates/*/model.onnx")}
    return {name: sha256_of(file) for name, file in files.items() if not name.endswith("+cache8") and "-" not in name}


def names_from_disk(said: str) -> set[str]:
    """Return what says of itself that it was taken from disk; a terminal wraps long lines of forms."""
    forms, taken, name = {form.name for form in LANGUAGE_FORMS}, set[str](), ""
    for line in said.splitlines():
        first = line.split()[0] if line.split() else ""
        name = first if first in forms else name
        if line.endswith("from disk"):
            taken.add(name or first)
    return taken


def test_forms_of_a_language_model_are_made_here_and_the_device_judges_measures_and_chooses(board, project):
    """A busy machine makes fewer of them in the time there is, and says which it did not."""
    text = (LM / "held_out.txt").read_text("utf-8")
    Path("judge.txt").write_text(text[:6500], "utf-8")
    Path("calibrate.txt").write_text(text[6500:8500], "utf-8")
    given = ("tiny_lm", *BRIEF, "--eval", "judge.txt", "--calib", "calibrate.txt")
    code, printed, said = finished_in(20, *given)
    assert code in (0, 2, 3, 4), said
    assert "making forms here for ssh://board, which judges and measures them" in said
    missing = re.search(r"not made: ([^(]*) \(", " ".join(said.split()))
    made = FORMS - {*(missing[1].split(", ") if missing else ())}
    here, _, there = said.partition("forms are taken up:")
    assert names_from_disk(there) <= made
    assert not names_from_disk(here)
    assert "fit matrices to the calibration text" not in there
    out, again = project / "out" / "tiny_lm-cpu", project / "again"
    options = LanguageOptions(8, 4, threads=1, eval="judge.txt", calib="calibrate.txt")
    device = find_device_elsewhere("cpu", "ssh://board", this_processor())
    make_language_forms_for("tiny_lm", device, named="cpu", out=again, options=options, listener=Silence())
    assert {*hashes(again)} == FORMS
    assert hashes(out) == {name: each for name, each in hashes(again).items() if name in made}
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert any("candidates were made on another machine" in json.dumps(note) for note in report["notes"])
    assert read_bundle(out).expected["form"] == report["chosen"]
    assert "Speed against the original" in printed
    assert not board.jobs
    shutil.copytree(again, out, dirs_exist_ok=True)  # a search that had the time
    code, _, said = finished_in(10, *given, "--resume")
    assert code in (0, 2, 3, 4), said
    assert "making forms here" not in said
    names = ", ".join(form.name for form in LANGUAGE_FORMS if form.name in FORMS)
    assert f"forms are taken up: {names} " in " ".join(said.split())


def test_models_of_a_pipeline_are_searched_here_and_the_device_chooses_for_the_whole(board, project):
    shutil.move("mine", "shop")
    lines = Path("shop/recipe.toml").read_text("utf-8").splitlines()
    bare = [line for line in lines if not line.startswith(("calib =", "labels =", "model ="))]  # no labels judge it
    Path("shop/net.toml").write_text("\n".join(bare), "utf-8")
    Path("shop/recipe.toml").unlink()
    stage = '[[stage]]\nname = "{}"\n{}\n'
    cut, count = ('call = "halves:cut"\ntakes = ["frame"]', 'call = "halves:count"')
    net = 'model = "model.onnx"\nrecipe = "net.toml"'
    stages = "".join(stage.format(*each) for each in (("cut", cut), ("detect", net), ("count", count)))
    Path("shop/pipeline.toml").write_text(f'name = "halves"\ncalib = "calib"\n{stages}', "utf-8")
    Path("shop/halves.py").write_text("def cut(frame):\n    return [frame[:, ::2]]\n\n\ncount = len\n", "utf-8")
    given = ("shop/pipeline.toml", "--code", "shop", "--steps", "simplify", "--threads", "1")
    code, _, said = finished_in(20, *given)
    assert "candidates of each model are made here for ssh://board" in said
    out = project / "out" / "halves-cpu"
    stored = json.loads((out / "models" / "detect" / "report.json").read_text("utf-8"))["candidates"]
    assert all(RESUMED.detail in json.dumps(candidate["notes"]) for candidate in stored), "the device makes none"
    assert names_from_disk(said) == {candidate["name"] for candidate in stored} >= {"baseline"}
    assert not board.jobs
    assert code in (0, 2, 3, 4), said
    assert read_pipeline(out).expected["frame_p50_ms"] > 0


def test_without_a_search_here_the_device_makes_them_as_ever(board, project):
    code, _, said = finished_in(4, "tiny_lm", *BRIEF, "--search-there")
    assert code in (0, 2, 3, 4), said
    assert not names_from_disk(said)
    assert "making forms here" not in said
