"""Optimizing for another processor than this machine's: no speed of this machine is measured, shown or stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixture_brief import SHORTER, ending_after

from edgeopt.cli import cli
from edgeopt.optimization.report.result import read_values
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.quantize.judges import Judge
from edgeopt.system.machine.processor import cpu_architecture

OTHER = "cpu-arm64" if cpu_architecture() == "x86-64" else "cpu-x86-avx2"
LABELS = Path(__file__).parents[2] / "models" / "digits_detector" / "eval" / "instances.json"


@pytest.fixture(scope="module")
def run_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The output folder of a run, and both of its streams."""
    out = tmp_path_factory.mktemp("elsewhere") / "out"
    with pytest.MonkeyPatch.context() as patch, ending_after(2):
        for place, value in SHORTER.items():
            patch.setattr(place, value)
        refused = "this machine's speed is none of the target's"
        patch.setattr(Judge, "speed", lambda *_: pytest.fail(refused))
        patch.setattr("edgeopt.steps.quantize.step.time_layers", lambda *_: pytest.fail(refused))
        wishes = ["-t", OTHER, "--steps", "fuse,quantize", "--threads", "1", "-o", str(out)]
        done = CliRunner().invoke(cli, ["optimize", "digits_detector", *wishes, "--eval", str(LABELS)])
    assert done.exit_code == 0, done.output
    return out, done.stdout, done.stderr


def test_no_speed_of_this_machine_is_shown(run_elsewhere):
    out, shown, said = run_elsewhere
    assert "no form is timed, they are ranked by agreement: this machine is" in " ".join(said.split())
    assert "~" not in said
    assert "times as fast" not in shown + (out / "report.html").read_text("utf-8")
    rows = [line for line in shown.splitlines() if line.lstrip("* ").startswith(("baseline ", "quantize "))]
    assert len(rows) == 2
    assert all("not measured" in row and "1.00x" not in row for row in rows)
    again = CliRunner().invoke(cli, ["report", str(out)])
    assert all(row in again.stdout for row in rows)
    assert "next       edgeopt bench" in shown
    assert "--on ssh://USER@HOST" in " ".join(shown.split())


def test_no_speed_of_this_machine_is_stored(run_elsewhere):
    out, _, _ = run_elsewhere
    report = read_values(out)
    assert all(not other.get("speed") and not other.get("latency") for other in report["candidates"])
    decided = (out / "candidates" / "quantize" / "decisions.json").read_text("utf-8")
    evidence = json.loads(decided)["evidence"]["of"]
    assert [attempt[1] for attempt in evidence["attempts"]] == [None] * 2
    assert evidence["layer_times"] is None
    assert "times as fast" not in decided
    first = read_bundle(out / "bundle").artefacts[0]
    assert (first.precision, first.expected.frame_p50_ms) == ("w8a8", None)


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "BUNDLE", "--seconds", "0.2", "--threads", "1"],
        ["compare", "digits_detector", "BUNDLE", "--seconds", "0.2", "--threads", "1"],
    ],
)
def test_what_times_such_a_bundle_here_says_whose_times_they_are(run_elsewhere, command):
    bundle = str(run_elsewhere[0] / "bundle")
    shown = CliRunner().invoke(cli, [bundle if word == "BUNDLE" else word for word in command])
    text = " ".join(shown.stdout.split())
    assert "this is not the target: this machine is" in text, shown.output
    assert "these times are" in text
