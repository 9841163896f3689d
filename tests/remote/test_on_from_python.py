"""`on=` from Python, on a device behind a real sshd: the results of its own runs, as objects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import edgeopt
from edgeopt.errors import EdgeoptError
from edgeopt.inspection.inspect import Inspection
from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.frames.result import FrameBenchResult
from edgeopt.measurement.samples import Samples
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.running.live import LiveResult
from edgeopt.running.writing import WrittenResult
from edgeopt.system.disk.caches import cache_folder

BOARD = "ssh://board"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device's side needs a POSIX system")


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parts: list[str] = []

    def progress(self, what: str, done: int, of: int) -> None:
        self.parts.append(f"{what} {done}/{of}")

    def say(self, text: str) -> None:
        self.lines.append(text)

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        """Nothing that this test looks at."""


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Caches of its own, in which a result lies on its way."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def test_a_bench_is_the_result_that_the_device_wrote(board, project):
    heard = Heard()
    result = edgeopt.bench(
        "mine/model.onnx",
        on=BOARD,
        tell=heard.progress,
        source="mine/calib",
        seconds=0.3,
        min_frames=20,
        threads=1,
        budget_ms=1000.0,
        out="measured",
    )
    assert isinstance(result, FrameBenchResult)
    written, shown = json.loads((project / "measured" / "bench.json").read_text()), result.as_json()
    for part in ("name", "source", "options", "samples", "under_load", "budget", "trust", "memory", "opening_ms"):
        assert json.loads(json.dumps(shown.get(part))) == written.get(part), part
    assert shown["environment"]["hash"] == written["environment"]["hash"]
    assert result.options.budget_ms == 1000.0
    assert result.samples.frame_ns.tolist() == Samples.read(project / "measured" / "samples.npz").frame_ns.tolist()
    assert f"--on {BOARD}" in result.repeat(), "what is to be done next is done there again"
    assert heard.parts[-1] == f"bench on {BOARD} 1/1"
    assert not [*(cache_folder() / "results").glob("*")], "the file between both is gone"
    assert not board.jobs


def test_facts_are_those_of_the_device(board, project):
    facts = edgeopt.inspect("mine/model.onnx", on=BOARD, target="cpu")
    assert isinstance(facts, Inspection)
    assert facts == edgeopt.inspect("mine/model.onnx", target="cpu")
    assert facts.partition.nodes


def test_a_gate_and_a_comparison(board, project):
    short = {"seconds": 0.2, "threads": 1}
    report = edgeopt.check("mine/model.onnx", on=BOARD, baseline="gate.json", update=True, starts=3, **short)
    assert isinstance(report, CheckReport)
    assert report.updated
    assert (project / "gate.npz").is_file()
    compared = edgeopt.compare("mine/model.onnx", "digits_detector", on=BOARD, **short)
    assert isinstance(compared, Comparison)
    assert len(compared.rows) == 2
    assert compared.samples[compared.rows[0].label].frame_ns.size
    assert not (project / "out").exists(), "nothing is written that was not asked for"


def test_optimize_searches_here_and_the_report_is_the_device_s(board, project):
    heard = Heard()
    report = edgeopt.optimize(
        "mine/model.onnx", on=BOARD, listener=heard, steps=("simplify",), time_limit_s=8.0, threads=1
    )
    out = project / "out" / "mine-cpu"
    written = read_report(out, ModelReport)
    assert report.folder == Path("out/mine-cpu")
    assert report.bundle.joinpath("manifest.json").is_file()
    assert (report.chosen, report.candidates, report.trust) == (written.chosen, written.candidates, written.trust)
    assert any("making candidates here for ssh://board" in line for line in heard.lines)
    assert any("from disk" in line for line in heard.lines), "the device made none again"


def test_answers_of_frames_come_back_as_objects(board, project):
    heard, answers = Heard(), []
    asked = {"limit": 3, "threads": 1}
    there = edgeopt.run("mine/model.onnx", "mine/calib", on=BOARD, tell=heard.progress, save="drawn", **asked)
    here = edgeopt.run("mine/model.onnx", "mine/calib", **asked)
    assert isinstance(there, LiveResult)
    assert [each.name for each in there.answers] == [each.name for each in here.answers]
    for mine, its in zip(here.answers, there.answers, strict=True):
        assert type(its.answer) is type(mine.answer)
        np.testing.assert_allclose(its.answer.boxes, mine.answer.boxes, atol=0.01)
        assert its.as_json().keys() == mine.as_json().keys()
        assert its.as_text().split(":")[0] == mine.as_text().split(":")[0]
    assert there.stats.served == 3
    assert len([*(project / "drawn").iterdir()]) == 3
    assert heard.parts[-1] == f"run on {BOARD} 1/1"
    told = edgeopt.run("mine/model.onnx", "mine/calib", on=BOARD, hear=answers.append, **asked)
    assert (told.answers, len(answers)) == ((), 3)


def test_a_model_that_writes_answers_there(board, project):
    asked = {"prompt": "import os", "output_tokens": 6, "threads": 1}
    there, here = edgeopt.run("tiny_lm", on=BOARD, **asked), edgeopt.run("tiny_lm", **asked)
    assert isinstance(there, WrittenResult)
    assert (there.text, there.account.prompt_tokens) == (here.text, here.account.prompt_tokens)
    assert [piece.token for piece in there.answers] == [piece.token for piece in here.answers]


def test_an_error_there_is_an_error_here(board, project):
    with pytest.raises(
        EdgeoptError, match=r"ssh://board: no model file or shipped model named 'nothing\.onnx'"
    ) as error:
        edgeopt.bench("nothing.onnx", on=BOARD, seconds=0.2)
    assert error.value.remedy.startswith("choose from: digits_detector")
    assert not board.jobs
