"""The JSON of every verb and every kind of workload, and of every other command, begins with one head."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fixture_pipelines import SHOP, classifier, described, detector
from fixture_pipelines import boxes as boxes_of
from screens import DOCUMENTS, bench_result
from served import serving

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.check.baseline import read_baseline
from edgeopt.measurement.resources.trust import Trust, TrustLevel
from edgeopt.report.formats import render
from edgeopt.report.result import HEAD, SCHEMA, PlainResult
from edgeopt.runtime.pipelines.bundle import write_pipeline
from edgeopt.workloads import kind_of, kinds, verbs

TOY = Path(__file__).parents[1] / "fixtures" / "toy_kind"
SHIPPED = Path(__file__).parents[2] / "models"
TOLD = ("inspect", "bench", "compare", "check", "run")
"""Verbs whose JSON is looked at here: reports of `optimize` are in `test_older_reports.py`, and `serve` has none."""
SHORT = {
    "frames": {"seconds": 0.05, "threads": 1},
    "generation": {"seconds": 0.05, "threads": 1, "output_tokens": 4},
    "pipeline": {"seconds": 0.05},
    "endpoint": {"seconds": 0.3, "prompt_tokens": (4,), "output_tokens": 4},
}
"""Options of measurements that are short."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Any:
    """A workload of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    bundles = {
        "detect": detector(folder / "detect", [boxes_of((0, 0, 4, 4, 0.9))], 0),
        "recognise": classifier(folder / "recognise", [1, 2], 0),
    }
    write_pipeline(folder / "bundle", described(SHOP), bundles, {}, {})
    (folder / "app").mkdir()
    (folder / "app" / "shop.py").write_text("def find(crops, classes):\n    return []\n", "utf-8")
    with serving("tiny_lm") as server:
        yield {
            "frames": "digits_detector",
            "generation": "tiny_lm",
            "pipeline": str(folder / "bundle"),
            "endpoint": server.address,
        }


@dataclass(frozen=True)
class Told:
    """A result as JSON."""

    result: Any
    kind: str
    verb: str

    @property
    def values(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.result.as_json(), allow_nan=False))


def result_of(verb: str, kind: str, source: str, folder: Path) -> Any:
    """Do a verb from Python, as short as it can be."""
    wishes: dict[str, Any] = dict(SHORT[kind])
    if kind == "pipeline":
        wishes["code"] = Path(source).parent / "app"
        wishes["source"] = SHIPPED / "digits_detector" / "calib"
    if kind == "generation" and verb in ("bench", "compare", "check"):
        wishes["prompt_tokens"] = (4,) if verb == "bench" else 4
    if verb == "inspect":
        return edgeopt.inspect(source)
    if verb == "bench":
        return edgeopt.bench(source, **wishes)
    if verb == "compare":
        return edgeopt.compare(source, source, **wishes)
    if verb == "check":
        update = {"baseline": folder / "baseline.json", "skip": ("size", *kind_of(source).checks), "update": True}
        return edgeopt.check(source, **update, **wishes)
    if kind == "generation":
        return edgeopt.run(source, prompt="import", output_tokens=2)
    code = {"code": wishes["code"]} if kind == "pipeline" else {}
    return edgeopt.run(source, SHIPPED / "digits_detector" / "calib", limit=1, **code)


@pytest.fixture(
    scope="module",
    params=[(kind.name, verb) for kind in kinds() for verb in TOLD if kind.has(verb)],
    ids=lambda pair: " ".join(pair),
)
def told(request, sources, tmp_path_factory) -> Told:
    kind, verb = request.param
    folder = tmp_path_factory.mktemp("told")
    return Told(result_of(verb, kind, sources[kind], folder), kind, verb)


def test_every_verb_that_has_a_result_is_tried_here():
    assert {*TOLD} == {*verbs()} - {"optimize", "serve"}


def test_every_json_begins_with_the_head(told):
    values = told.values
    assert [*values][: len(HEAD)] == [*HEAD]
    assert values["schema"] == SCHEMA
    assert (values["command"], values["kind"]) == (told.verb, told.kind)
    assert values["exit_code"] == getattr(told.result, "exit_code", 0)
    assert values["environment"]["hash"] == told.result.environment.hash
    assert values["environment"]["facts"]["cpu.model"]["value"]


def test_the_verdict_of_a_result_is_a_word(told):
    verdict, is_passed = told.values["verdict"], told.values["exit_code"] == 0
    known = {
        "inspect": {"DONE"},
        "run": {"DONE"},
        "check": {"DONE"},
        "compare": {"FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE"},
        "bench": {"DONE", "PASS"} if is_passed else {"FAIL", "INCONCLUSIVE", "NOISY", "INVALID"},
    }
    assert verdict in known[told.verb]


def test_a_baseline_begins_with_the_head_too(tmp_path):
    file = tmp_path / "baseline.json"
    edgeopt.check("digits_detector", baseline=file, skip=("accuracy", "latency", "memory", "cold_start"), update=True)
    values = json.loads(file.read_text("utf-8"))
    assert [*values][: len(HEAD)] == [*HEAD]
    assert (values["command"], values["kind"]) == ("check --update", "frames")
    assert read_baseline(file).kind == "frames"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_json_of_every_screen_begins_with_the_head(name):
    values = json.loads(render(DOCUMENTS[name](), "json"))
    assert [*values][: len(HEAD)] == [*HEAD]
    assert values["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (["targets"], "targets"),
        (["targets", "cpu-x86-avx2"], "precisions"),
        (["models"], "recipes"),
        (["models", "yolox"], "task"),
        (["optimize", "digits_detector", "-t", "cpu", "--dry-run"], "steps"),
        (["inspect", "digits_detector", "-t", "cpu"], "partition"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_the_json_of_commands_begins_with_the_head(words, figure):
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert [*values][: len(HEAD)] == [*HEAD]
    assert (values["command"], values["exit_code"]) == (words[0], 0)
    assert values[figure]


def test_a_kind_of_another_package_gets_the_head_without_a_line_of_its_own(tmp_path):
    table = tmp_path / "colours.table.json"
    table.write_text(json.dumps({"sky": "blue", "grass": "green"}), "utf-8")
    code = f"""
import json
import edgeopt
table, baseline, out = {str(table)!r}, {str(tmp_path / "baseline.json")!r}, {str(tmp_path / "made")!r}
results = [
    edgeopt.inspect(table),
    edgeopt.bench(table, key="sky"),
    edgeopt.compare(table, table, seconds=0.05),
    edgeopt.check(table, baseline=baseline, update=True, seconds=0.05),
    edgeopt.optimize(table, out=out),
    edgeopt.run(table, "sky"),
]
print(json.dumps([result.as_json() for result in results], allow_nan=False))
"""
    paths = os.pathsep.join((str(TOY), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [each["command"] for each in results] == ["inspect", "bench", "compare", "check", "optimize", "run"]
    for values in results:
        assert [*values][: len(HEAD)] == [*HEAD]
        assert (values["schema"], values["kind"]) == (SCHEMA, "table")
        assert values["environment"]["hash"]


def test_the_page_tells_every_field_of_the_head_in_its_order():
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text("utf-8")
    table = page.partition("| field |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*HEAD]
    assert f"this form of JSON: {SCHEMA} |" in page


def test_a_noisy_machine_is_the_verdict_where_a_limit_was_asked_for():
    noisy = bench_result()
    assert (noisy.exit_code, noisy.as_json()["verdict"]) == (4, "NOISY")
    quiet = replace(noisy, trust=Trust(TrustLevel.TRUSTED, ()))
    assert quiet.as_json()["verdict"] == quiet.verdict.upper() != "NOISY"


def test_figures_with_names_of_the_head_are_refused():
    with pytest.raises(ValueError, match="PlainResult has two figures of one name: kind, schema"):
        PlainResult(command="c", figures={"schema": 1, "kind": "mine", "a": 1}).as_json()


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_older_results_are_refused_with_the_command_that_makes_them_anew(schema, tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps({"schema": schema, "kind": "frames"}), "utf-8")
    with pytest.raises(EdgeoptError, match=f"has schema {schema}, this edgeopt reads {SCHEMA}") as refused:
        edgeopt.compare(tmp_path, tmp_path)
    assert refused.value.remedy.startswith("measure again with edgeopt bench MODEL -o FOLDER")
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"schema": schema, "kind": "edgeopt baseline"}), "utf-8")
    with pytest.raises(EdgeoptError, match=f"has schema {schema}, this edgeopt reads {SCHEMA}") as refused:
        edgeopt.check("digits_detector", baseline=file)
    assert f"edgeopt check MODEL --baseline {file} --update" in refused.value.remedy
