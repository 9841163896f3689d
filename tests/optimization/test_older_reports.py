"""Reports that older versions wrote are read and shown, and what they decided is replayed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.measurement.resources.trust import read_trust
from edgeopt.optimization.folder.replay import read_replay
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.report.result import Report, read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.report.result import SCHEMA

OLDER = Path(__file__).parent / "reports"
KINDS: dict[str, type[Report]] = {"frames": ModelReport, "generation": LanguageReport, "pipeline": JointReport}
"""Class of the reports of each kind; a file of its name in `reports` is of the version before schema 4."""


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    shutil.copyfile(OLDER / f"{kind}.json", tmp_path / "report.json")
    return tmp_path


def values_in(folder: Path) -> dict[str, object]:
    return json.loads((folder / "report.json").read_text("utf-8"))


def test_a_report_of_the_version_before_is_read_and_shown_with_its_exit_code(kind, folder):
    report, stored = read_report(folder, KINDS[kind]), values_in(folder)
    assert report.chosen == stored["chosen"]
    assert report.verdict == stored.get("verdict", report.verdict)
    assert report.exit_code == stored.get("exit_code", report.exit_code)
    assert report.environment.cpu == "AMD EPYC"
    shown = CliRunner().invoke(cli, ["report", str(folder)])
    assert shown.exit_code == report.exit_code, shown.output
    assert report.chosen in shown.stdout
    assert (folder / "report.html").is_file()


def test_every_kind_has_one_form_of_json(kind, folder):
    report = read_report(folder, KINDS[kind])
    values = report.as_json()
    shared = {"model", "target", "environment", "threads", "metric", "max_drop", "candidates", "chosen", "bundle"}
    shared |= {"reason", "folder", "notes", "trust", "accuracy_asked", "was_cut", "seconds", "calibrated_on"}
    assert {"schema", "kind", "verdict", "exit_code", *shared} <= values.keys()
    assert (values["schema"], values["kind"]) == (SCHEMA, kind)
    assert (values["trust"] or {}).keys() <= {"level", "reasons"}
    assert read_trust(values["trust"]) == report.trust
    (folder / "report.json").write_text(json.dumps(values), "utf-8")
    assert read_report(folder, KINDS[kind]) == report


def test_what_an_older_report_decided_is_replayed(tmp_path):
    shutil.copyfile(OLDER / "frames.json", tmp_path / "report.json")
    replay = read_replay(tmp_path / "report.json")
    stored = values_in(tmp_path)
    assert (replay.chosen, replay.model) == (stored["chosen"], stored["model_sha256"])
    assert [*replay.candidates] == [candidate["name"] for candidate in stored["candidates"]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": 2}, "has schema 2, this edgeopt reads 1, 3, 4 and 5"),
        ({"schema": 3, "kind": "pipeline"}, "is of another version of edgeopt"),
        ({"schema": SCHEMA, "kind": "generation"}, "is a report of the kind 'generation', not 'frames'"),
        ({"chosen": "nothing"}, "chosen 'nothing' is none of the candidates"),
        ({"threads": "two"}, "threads is 'two'"),
    ],
)
def test_a_report_that_is_not_read_is_one_clear_line(change, problem, tmp_path):
    values = json.loads((OLDER / "frames.json").read_text("utf-8")) | change
    (tmp_path / "report.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidFileError, match=problem) as refused:
        read_report(tmp_path, ModelReport)
    assert "\n" not in refused.value.problem
    (tmp_path / "report.html").write_text("", "utf-8")
    shown = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert shown.exit_code == 1
    is_older = "schema" in problem or "version" in problem
    assert ("report.html, or run edgeopt optimize again" in shown.output) == is_older, shown.output


def test_a_report_of_a_kind_that_is_not_installed_says_so(tmp_path):
    values = json.loads((OLDER / "frames.json").read_text("utf-8")) | {"schema": SCHEMA, "kind": "table"}
    (tmp_path / "report.json").write_text(json.dumps(values), "utf-8")
    shown = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert shown.exit_code == 1
    assert "a report of the kind 'table', which is not installed here" in shown.output
