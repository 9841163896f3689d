"""The fastest form for prompts and the fastest for tokens as one candidate, and its bundle."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from edgeopt.cli import cli
from edgeopt.errors import EXIT_MISSED, InvalidFileError, UnavailableError, UnsupportedError
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation import optimize, proof, writer_run
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import FormContest
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LanguageForm, LanguageReport
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.optimization.run import Silence
from edgeopt.report.formats import Paper, render
from edgeopt.runtime.bundle import parse_bundle, read_bundle, write_manifest
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.verbs.bundle.combine import combine_bundles

BRIEF = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, processes=2, memory_bytes=1 << 30)
SPLIT = "w8a8-w8"
CHOSEN = f"{SPLIT}+cache8"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LanguageReport:
    """A run in which two forms are tried, and it is decided which are fastest: no timing decides a test."""
    folder = tmp_path_factory.mktemp("out") / "lm"
    with pytest.MonkeyPatch.context() as patch:
        fastest = {"TTFT": "w8a8", "TPOT": "w8"}
        patch.setattr(optimize, "FORMS", tuple(form for form in FORMS if form.name in fastest.values()))
        patch.setattr(
            FormContest, "fastest", lambda _, entrants, part: next(e for e in entrants if e.name == fastest[part])
        )
        patch.setattr(FormContest, "leader", lambda _, entrants: next((e for e in entrants if e.name == SPLIT), None))
        patch.setattr(FormContest, "drop_unproven", lambda *_: None)
        patch.setattr(FormContest, "_knock_out", lambda _, entrants: [each for each in entrants if not each.out])
        for module in (writer_run, proof):
            patch.setattr(module, "choose_form", lambda *_: CHOSEN)
        return optimize_language_model("tiny_lm", target="cpu", out=folder, options=BRIEF, listener=Silence())


def texts(model: LanguageModel) -> list[str]:
    with model:
        return [model.generate(text, AnswerOptions(most_tokens=12)).text() for text in ("import os", "def f(" * 60)]


def test_two_graphs_are_one_candidate_that_is_judged_and_told(report):
    by_name = {form.name: form for form in report.candidates}
    split = by_name[SPLIT]
    assert (split.prompts_by, split.tokens_by, split.precision) == ("w8a8", "w8", "w8a8-w8")
    assert 0 < abs(split.rise.value) < 0.01
    assert split.perplexity == pytest.approx(by_name[BASELINE].perplexity * (1 + split.rise.value))
    assert max(by_name["w8a8"].size_bytes, by_name["w8"].size_bytes) < split.size_bytes
    assert split.size_bytes < by_name["w8a8"].size_bytes + by_name["w8"].size_bytes
    assert by_name[CHOSEN].needs_bytes < split.needs_bytes < report.memory_bytes
    shown = render(summarize_language(report), "terminal", Paper(220))
    assert "prompts by w8a8, tokens by w8: two graphs, one cache" in shown
    assert "(prompts by w8a8, tokens by w8) gives whole answers" in " ".join(shown.split())
    stored = json.loads((report.folder / "report.json").read_text("utf-8"))
    assert {form["name"]: form["prompts_by"] for form in stored["candidates"]}[SPLIT] == "w8a8"


def test_the_bundle_holds_both_graphs_and_answers_as_the_candidate(report):
    bundle = read_bundle(report.folder)
    assert [part.file for part in bundle.parts] == ["prefill.onnx"]
    assert [graph.precision for graph in (*bundle.artefacts, *bundle.parts)] == ["w8", "w8a8"]
    weights = {graph.weights.file for graph in (*bundle.artefacts, *bundle.parts)}
    assert len(weights) == 1
    names = {"manifest.json", "model.onnx", "prefill.onnx", "selftest.npz", "tokenizer.json", *weights}
    assert {path.name for path in bundle.folder.iterdir()} == names
    candidate = next(Path(form.file) for form in report.candidates if form.name == CHOSEN)
    opened = [open_language_model(path, 1)[0] for path in (report.folder, bundle.model, candidate)]
    assert opened[0].plan.is_split
    graphs = ["model.onnx", "prefill.onnx", *weights]
    assert opened[0].origin.size_bytes == sum((bundle.folder / name).stat().st_size for name in graphs)
    assert len({tuple(texts(model)) for model in opened}) == 1


def test_commands_take_it(report, tmp_path):
    asked = ["--prompt-tokens", "8", "--output-tokens", "4", "--seconds", "0.1", "--threads", "1"]
    held_out = str(Path(__file__).parents[3] / "models" / "tiny_lm" / "held_out.txt")
    for command in (
        ["run", str(report.folder), "--prompt", "import os", "--output-tokens", "4"],
        ["inspect", str(report.folder)],
        ["bundle", str(report.folder)],
        ["bench", str(report.folder), *asked],
        ["compare", "tiny_lm", str(report.folder), *asked, "--eval", held_out],
    ):
        shown = CliRunner().invoke(cli, command)
        assert shown.exit_code in (0, 4), (command, shown.output)
    with pytest.raises(UnsupportedError, match="a graph for prompts and another for tokens"):
        combine_bundles([report.folder, report.folder], tmp_path / "both")


def test_a_damaged_graph_of_prompts_is_refused_and_wrong_numbers_of_it_too(report, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(report.folder / "bundle", folder)
    graph = folder / "prefill.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidFileError, match=r"prefill\.onnx differs from its hash"):
        open_language_model(folder, 1)
    proto = onnx.load(report.folder / "bundle" / "prefill.onnx", load_external_data=False)
    for tensor in proto.graph.initializer:  # scales of INT8 matrices, twice as large
        values = None if tensor.external_data else numpy_helper.to_array(tensor)
        if values is not None and values.dtype == np.float32 and values.ndim == 1 and "norm" not in tensor.name:
            tensor.CopyFrom(numpy_helper.from_array(2 * values, tensor.name))
    graph.write_bytes(proto.SerializeToString())
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    data = graph.read_bytes()
    manifest["parts"][0] |= {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    write_manifest(folder, {key: value for key, value in manifest.items() if key != "sha256"})
    assert parse_bundle(folder).parts
    with pytest.raises(UnavailableError, match="numbers are wrong on this device"):
        open_language_model(folder, 1)


def test_a_bundle_that_lost_the_graph_of_prompts_is_refused(report, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(report.folder / "bundle", folder)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    write_manifest(folder, {key: value for key, value in manifest.items() if key != "sha256"} | {"parts": []})
    with pytest.raises(InvalidFileError, match="does not name the graph of prompts"):
        parse_bundle(folder)


def form(name: str, speedup: float, **more: object) -> LanguageForm:
    ratio = Ratio(speedup, speedup - 0.01, speedup + 0.01, Change.FASTER if speedup > 1.02 else Change.UNCONFIRMED)
    known = {"speed": {"answer": ratio, "TTFT": ratio, "TPOT": ratio}, "rise": Rise(0.0, -0.001, 0.001), "word": "KEPT"}
    return LanguageForm(name, name, name, 1, 2.0, **known | more)


def test_where_memory_does_not_hold_the_original_the_fastest_that_fits_is_chosen_proven_or_not(report):
    large = form(BASELINE, 1.0, out="it takes 2 GiB, more than --memory allows", speed={}, needs_bytes=2 << 30)
    fits = form("w4", 0.99)
    assert choose_form([large, form("w8", 1.5, out="it takes 1 GiB, more than --memory allows"), fits]) == "w4"
    assert choose_form([large, form("w8", 1.5), fits]) == "w8"
    assert choose_form([replace(large, out=""), fits]) == BASELINE
    missed = replace(report, candidates=(large,), chosen=BASELINE, memory_bytes=1 << 30)
    assert missed.exit_code == EXIT_MISSED
    assert "2048.00 MiB of weights" in render(summarize_language(missed), "terminal", Paper(220))
