"""`bench` over workloads of every kind: one JSON, one exit code, one document; only the figures are a kind's own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fixture_pipelines import shop
from served import serving

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.generation.answer_budget import parse_answer_budget
from edgeopt.measurement.resources.trust import Trust, TrustLevel
from edgeopt.measurement.slo.run import plan_from
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.report.document import Document
from edgeopt.report.formats import render
from edgeopt.report.result import SCHEMA
from edgeopt.verbs.report import read_stored_report
from edgeopt.workloads import kind_of, kinds
from edgeopt.workloads.generation.options import GenerationBench

CODE = "def find(crops, classes):\n    return []\n"
COMMON = {field.name for field in fields(BenchResult)} | {
    *("schema", "kind", "name", "judged", "budget_asked", "exit_code", "findings", "diagnosis"),
}


@dataclass(frozen=True)
class Measured:
    """A result, where it was written, and of what."""

    source: str
    result: BenchResult
    folder: Path

    @property
    def document(self) -> Document:
        return self.of(self.result)

    def of(self, result: BenchResult) -> Document:
        return summarize(result, kind_of(self.source).module("bench"))


def frames(folder: Path) -> tuple[str, dict[str, Any]]:
    return "digits_detector", {"min_frames": 60, "threads": 1, "budget_ms": 200.0}


def generation(folder: Path) -> tuple[str, dict[str, Any]]:
    budget = parse_answer_budget("ttft:1h")
    return "tiny_lm", {"prompt_tokens": (4,), "output_tokens": 4, "budget": budget}


def pipeline(folder: Path) -> tuple[str, dict[str, Any]]:
    app = folder / "app"
    app.mkdir()
    (app / "shop.py").write_text(CODE, "utf-8")
    return str(shop(folder).folder), {"code": app, "min_frames": 40, "budget_ms": 200.0}


def endpoint(folder: Path) -> tuple[str, dict[str, Any]]:
    return "", {"prompt_tokens": (4,), "output_tokens": 4}


MAKERS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    each.__name__: each for each in (frames, generation, pipeline, endpoint)
}
"""Measured results of each kind, with a budget where the kind takes one; tests set what it proves."""


@pytest.fixture(scope="module", params=MAKERS)
def measured(request, tmp_path_factory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp(request.param)
    source, wishes = MAKERS[request.param](folder)
    with ExitStack() as stack:
        source = source or stack.enter_context(serving("tiny_lm")).address
        result = edgeopt.bench(source, seconds=0.1, out=folder / "out", **wishes)
        yield Measured(source, result, folder / "out")


def test_every_kind_is_tried_here():
    assert {*MAKERS} == {kind.name for kind in kinds()}


@pytest.mark.parametrize("place", ["frames", "pipelines", "generation", "endpoint"])
def test_no_kind_judges_or_writes_by_itself(place):
    """Exit codes, verdict, test cases and pages of `bench` are made in `measurement/bench` alone."""
    words = re.compile(r"\b(write_pages|CommandOutcome|JudgedCase|VerdictLines|EXIT_\w+)\b")
    for path in (Path(edgeopt.__file__).parent / "measurement" / place).rglob("*.py"):
        assert not words.search(path.read_text("utf-8")), path


def test_all_results_have_one_json(measured):
    values = json.loads((measured.folder / "bench.json").read_text("utf-8"))
    assert values == json.loads(json.dumps(measured.result.as_json()))
    assert values.keys() >= COMMON
    assert (values["schema"], values["kind"]) == (SCHEMA, kind_of(measured.source).name)
    assert values["environment"]["hash"] == measured.result.environment.hash
    assert values["exit_code"] == measured.result.exit_code


def test_figures_and_raw_samples_are_written_and_named(measured):
    raw = measured.result.raw_files()
    assert {"bench.json", "bench.md", "bench.html", *raw} <= {path.name for path in measured.folder.iterdir()}
    page = (measured.folder / "bench.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in raw)
    assert measured.result.environment.hash in page


def test_results_of_every_kind_are_compared_and_shown_again(measured):
    stored = read_stored(measured.folder)
    result = measured.result
    assert (stored.name, stored.kind) == (result.name, result.kind)
    assert len(stored.samples) >= 6
    compared = edgeopt.compare(measured.folder, measured.folder)
    assert compared.rows[1].ratios[compared.whole].speedup == pytest.approx(1)
    shown = read_stored_report([measured.folder])
    text = render(shown.document, "terminal")
    assert f"{measured.folder.name} has the shortest median {compared.whole}" in text
    verdict = result.verdict
    assert verdict is None or verdict.upper() in text


def test_answers_are_compared_one_at_a_time_whatever_the_load(measured, tmp_path):
    if measured.result.kind not in ("generation", "endpoint"):
        return
    other = tmp_path / "other"
    shutil.copytree(measured.folder, other)
    values = json.loads((other / "bench.json").read_text("utf-8")) | {"load": "closed:3"}
    (other / "bench.json").write_text(json.dumps(values), "utf-8")
    assert edgeopt.compare(measured.folder, other).rows


def test_answers_to_other_prompts_are_not_compared(measured, tmp_path):
    if measured.result.kind in ("frames", "pipeline"):
        return
    other = tmp_path / "other"
    shutil.copytree(measured.folder, other)
    values = json.loads((other / "bench.json").read_text("utf-8")) | {"source": "prompts of 9999 tokens"}
    (other / "bench.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(EdgeoptError, match="on prompts of 9999 tokens") as refused:
        edgeopt.compare(measured.folder, other)
    assert "the same lengths" in refused.value.remedy


def test_results_of_two_kinds_results_beside_models_and_options_of_a_run_are_refused(tmp_path):
    folders = []
    for kind in ("frames", "generation"):
        source, wishes = MAKERS[kind](tmp_path)
        folders.append(tmp_path / kind)
        edgeopt.bench(source, seconds=0.1, out=folders[-1], **wishes)
    with pytest.raises(EdgeoptError, match=r"frames is of the kind frames, and .*generation of generation"):
        edgeopt.compare(*folders)
    with pytest.raises(EdgeoptError, match=r"holds times of whole frames, and .* of answers"):
        read_stored_report(folders)
    with pytest.raises(EdgeoptError, match="holds times of answers"):
        plan_from(folders[1], within_ms=1, share=0.9, rate_per_s=1, rates=None, interval_s=60, delay_s=0)
    ran = CliRunner()
    for words, line in (
        ([folders[1], "tiny_lm"], "is an earlier result and tiny_lm is a model"),
        ([folders[1], folders[1], "--seconds", "3s"], "error: --seconds is for what runs, and"),
        ([folders[1], folders[1], "--prompt-tokens", "3"], "generation is an earlier result"),
        ([folders[1]], "a comparison needs two, 1 given"),
    ):
        done = ran.invoke(cli, ["compare", *map(str, words)])
        assert (done.exit_code, line in done.output) == (1, True), done.output


def test_results_of_earlier_versions_are_refused_with_the_command_that_makes_them_anew(measured, tmp_path):
    values = measured.result.as_json() | {"schema": SCHEMA - 1}
    (tmp_path / "bench.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidFileError, match=f"has schema {SCHEMA - 1}, this edgeopt reads {SCHEMA}") as refused:
        read_stored(tmp_path)
    assert "edgeopt bench MODEL -o FOLDER" in refused.value.remedy


def judged_as(result: Any, verdict: Verdict) -> BenchResult:
    """The result as if its times proved something else."""
    if result.kind == "frames":
        return replace(result, load=replace(result.load, budget=replace(result.load.budget, verdict=verdict)))
    if result.kind == "pipeline":
        return replace(result, budget=replace(result.budget, verdict=verdict))
    (length,) = result.lengths
    (limit,) = length.judged.limits
    limits = (replace(limit, counted=replace(limit.counted, verdict=verdict)),)
    return replace(result, lengths=(replace(length, judged=replace(length.judged, limits=limits)),))


def test_what_runs_here_is_trusted_or_not_by_one_rule(measured):
    """A server runs elsewhere: only it has no counters of the machine."""
    trust = measured.result.trust
    assert (trust is None) == (measured.result.kind == "endpoint")
    if trust is not None:
        page = (measured.folder / "bench.md").read_text("utf-8")
        assert trust.level.upper() in page
        assert "block_spread_ratio" in page


def test_all_is_opened_before_the_clock_starts(tmp_path):
    """`prepare` refuses what cannot be opened, or is too long, and an open model needs its file no more."""
    bench = kind_of("tiny_lm").module("bench")
    wishes = GenerationBench(prompt_tokens=(4,), output_tokens=4, seconds=0.1)
    with (
        pytest.raises(EdgeoptError, match="the context has"),
        bench.prepare("tiny_lm", replace(wishes, prompt_tokens=(9999,))),
    ):
        raise AssertionError("it must not open")
    copied = tmp_path / "lm"
    shutil.copytree(Path(__file__).parents[2] / "models" / "tiny_lm", copied)
    with bench.prepare(str(copied / "model.onnx"), wishes) as block:
        (copied / "held_out.txt").unlink()
        assert block.run(None).lengths[0].answers >= 6


@pytest.mark.parametrize(
    ("verdict", "level", "code", "outcome"),
    [
        (Verdict.PASS, TrustLevel.TRUSTED, 0, "PASS"),
        (Verdict.FAIL, TrustLevel.TRUSTED, 2, "FAIL"),
        (Verdict.INCONCLUSIVE, TrustLevel.TRUSTED, 3, "NOT DECIDED"),
        (Verdict.PASS, TrustLevel.NOISY, 4, "NOISY"),
        (Verdict.FAIL, TrustLevel.INVALID, 4, "NOISY"),
    ],
)
def test_exit_codes_of_a_budget(measured, verdict, level, code, outcome):
    if not measured.result.judged:
        assert measured.result.exit_code == 0
        assert measured.document.judgements == ()
        return
    result = replace(judged_as(measured.result, verdict), trust=Trust(level, ()))
    document = measured.of(result)
    assert (result.exit_code, document.verdict.outcome) == (code, outcome)
    assert f"\n{outcome} " in render(document, "terminal")
    (case,) = document.judgements
    assert case.is_noise == (code == 4)
    assert ("nothing is decided" in case.detail) == case.is_noise


def test_what_would_decide_is_the_next_command(measured):
    result = measured.result
    if not result.judged:
        assert measured.document.verdict.next_command == ""
        return
    document = measured.of(replace(judged_as(result, Verdict.INCONCLUSIVE), trust=Trust(TrustLevel.TRUSTED, ())))
    command = document.verdict.next_command
    is_known = result.kind in ("frames", "pipeline")  # complaints about answers name no command
    assert ("--seconds 60" in command and command.startswith("edgeopt bench ")) == is_known
