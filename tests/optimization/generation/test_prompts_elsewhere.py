"""Prompts, and tokens too, by OpenVINO as candidates of `optimize`: how they are judged, and bundles of chosen ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import Runtime
from edgeopt.errors import UnsupportedError
from edgeopt.executors import _guard
from edgeopt.executors._child import EngineAbortError, EngineChild
from edgeopt.executors._guard import guarded
from edgeopt.executors.openvino.decoder import OpenVinoDecoder
from edgeopt.executors.openvino.pages import ENTRIES, PagedGraph, PagesUse, options_on_openvino, why_not_on_openvino
from edgeopt.executors.openvino.prefill import OpenVinoPrefill
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.optimization.generation import optimize, proof, writer_run
from edgeopt.optimization.generation.contest import FormContest
from edgeopt.optimization.generation.deploy import deploy_language_model
from edgeopt.optimization.generation.forms.kinds import ELSEWHERE_CHUNK_TOKENS, FORMS
from edgeopt.optimization.generation.forms.prompts_elsewhere import WHOLE, why_not_read
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.bfloat16_weights import store_in_bfloat16

BRIEF = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, processes=2)
CHOSEN = "bf16+openvino-w8"
needs_openvino = pytest.mark.skipif(
    bool(why_not_on_openvino()), reason=why_not_on_openvino() or "OpenVINO computes prompts"
)


def made(folder: Path, chosen: str) -> LanguageReport:
    """Make a run in which one form is tried, and it is decided who is chosen: no timing decides a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "FORMS", tuple(form for form in FORMS if form.name == "w8"))
        patch.setattr(FormContest, "fastest", lambda _, entrants, __: next(e for e in entrants if e.name == "w8"))
        patch.setattr(
            FormContest, "leader", lambda _, entrants: next((e for e in entrants if e.name == chosen), entrants[0])
        )
        patch.setattr(FormContest, "drop_unproven", lambda *_: None)
        for module in (writer_run, proof):
            patch.setattr(module, "choose_form", lambda *_: chosen)
        return optimize_language_model("tiny_lm", target="cpu", out=folder, options=BRIEF, listener=Silence())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LanguageReport:
    return made(tmp_path_factory.mktemp("out") / "lm", CHOSEN)


def texts(model: LanguageModel) -> list[str]:
    return [model.generate(text, AnswerOptions(most_tokens=12)).text() for text in ("import os", "def f(" * 90)]


@needs_openvino
def test_both_forms_of_prompts_are_judged_as_they_run(report):
    by_name = {form.name: form for form in report.candidates}
    chosen, blocks = by_name[CHOSEN], by_name["w8+openvino-w8"]
    assert (chosen.prompts_by, chosen.tokens_by, chosen.precision) == ("bf16+openvino", "w8", "bf16-w8")
    assert chosen.told == "prompts by bf16 on OpenVINO, not quantized, tokens by w8: two graphs, one cache"
    for form in (chosen, blocks):
        assert 0 < abs(form.rise.value) < 0.01
        assert form.word == Word.KEPT
    assert f"{CHOSEN}+cache8" not in by_name, "only ONNX Runtime writes prompts into a cache in integers"
    assert any(name.endswith("+cache8") for name in by_name), (
        "a form on ONNX Runtime is tried with a small cache instead"
    )


@needs_openvino
def test_the_manifest_names_the_engine_of_prompts_and_the_bundle_answers_as_the_candidate(report):
    bundle = read_bundle(report.folder)
    (part,) = bundle.parts
    assert (part.file, part.executor, part.providers, part.precision) == ("prefill.onnx", "openvino", ("CPU",), "bf16")
    assert part.options == ENTRIES
    assert bundle.artefacts[0].executor == "onnxruntime"
    candidate = next(Path(form.file) for form in report.candidates if form.name == CHOSEN)
    answers = []
    for path in (report.folder, candidate):
        with open_language_model(path, 1)[0] as model:
            assert isinstance(model.prefill, OpenVinoPrefill)
            assert model.plan.grain == ELSEWHERE_CHUNK_TOKENS
            answers.append(texts(model))
    assert answers[0] == answers[1]


@needs_openvino
def test_prompts_and_tokens_in_blocks_are_judged_as_openvino_computes_them(report):
    form = next(form for form in report.candidates if form.name == "w8+openvino")
    assert (form.engine, form.precision, form.prompts_by) == ("openvino", "w8+bf16", "")
    assert form.told == "prompts and tokens by w8 on OpenVINO, in INT8"
    assert 0 < abs(form.rise.value) < 0.01
    with open_language_model(Path(form.file), 1)[0] as model:
        assert isinstance(model.elsewhere, OpenVinoDecoder)
        assert all(texts(model))


@needs_openvino
def test_memory_counts_the_weights_that_openvino_holds_and_its_pages(report):
    by_name = {form.name: form for form in report.candidates}
    contest = FormContest.__new__(FormContest)
    contest.answer_tokens, contest.image_bytes, contest.clients = 512, 0, 1
    for name in (CHOSEN, WHOLE):
        with open_language_model(Path(by_name[name].file), 1)[0] as model:
            known = model.origin.size_bytes + model.engine_bytes + 512 * model.token_bytes
            size_bytes = by_name[name].size_bytes
            if model.prefill:  # beside what ONNX Runtime holds of the same file
                assert size_bytes / 2 <= model.engine_bytes
            else:
                assert model.engine_bytes < size_bytes
            pages = contest.needs_bytes(model) - known
            assert pages == (model.prefill.page_bytes(512) if model.prefill else 0)
            assert pages > 0 or name == WHOLE


@needs_openvino
def test_a_chosen_form_of_prompts_and_tokens_answers_from_its_bundle_as_the_candidate(report, tmp_path, monkeypatch):
    report = replace(report, chosen=WHOLE, folder=tmp_path / "lm")
    recipe = optimize._deployed(recipe_beside(find_model("tiny_lm")), report)
    deploy_language_model(report, find_device("cpu"), recipe)
    form = next(form for form in report.candidates if form.name == WHOLE)
    assert (form.engine, form.precision, form.prompts_by) == ("openvino", "bf16", "")
    assert abs(form.rise.value) < 0.01
    assert f"{WHOLE}+cache8" not in {form.name for form in report.candidates}
    (artefact,) = read_bundle(report.folder).artefacts
    assert (artefact.executor, artefact.providers, artefact.precision) == ("openvino", ("CPU",), "bf16")
    answers = []
    for path in (report.folder, Path(form.file)):
        with open_language_model(path, 1)[0] as model:
            assert isinstance(model.elsewhere, OpenVinoDecoder)
            assert model.chunk == ELSEWHERE_CHUNK_TOKENS
            answers.append(texts(model))
    assert answers[0] == answers[1]
    with Runtime.load(report.folder) as runtime:
        assert runtime.generate("import os", most_tokens=12).text() == answers[0][0]
        with pytest.raises(UnsupportedError):
            runtime.predict({"input_ids": np.zeros((1, 1), np.int64)})
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    with open_language_model(report.folder, 1)[0] as model:
        assert model.elsewhere is None
        assert any(note.detail.startswith("OpenVINO computes no tokens here") for note in model.origin.notes)
        assert all(texts(model))


@needs_openvino
@pytest.mark.parametrize(
    ("use", "name", "graph"), [(PagesUse.PROMPTS, CHOSEN, "prefill.onnx"), (PagesUse.ANSWERS, WHOLE, "model.onnx")]
)
def test_a_child_opened_the_graphs_first_and_an_abort_there_is_an_error_here(report, monkeypatch, use, name, graph):
    file = Path(next(form.file for form in report.candidates if form.name == name)).with_name(graph)
    key = _guard._key("openvino", file, options_on_openvino(1), use)
    assert (key, "open") in _guard._passed
    child = EngineChild()
    try:
        assert child.open("", "openvino", file, options_on_openvino(1), keeps=False, pages=use).refusal == ""
    finally:
        child.close()
    monkeypatch.setitem(_guard._aborted, key, EngineAbortError("OpenVINO died", remedy=""))
    with guarded(), pytest.raises(EngineAbortError, match="OpenVINO died"):
        PagedGraph(file, options_on_openvino(1), use)


@needs_openvino
def test_where_openvino_is_not_here_the_bundle_opens_on_onnx_runtime_and_its_numbers_are_tested(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    with open_language_model(report.folder, 1)[0] as model:
        assert not isinstance(model.prefill, OpenVinoPrefill)
        assert any(note.detail.startswith("OpenVINO computes no prompts here") for note in model.origin.notes)
        assert all(texts(model))


def test_without_openvino_one_line_says_that_prompts_by_it_are_not_tried(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    report = made(tmp_path / "lm", "w8")
    told = [note.detail for note in report.notes if "OpenVINO" in note.detail]
    assert told == ["forms by OpenVINO are not tried: openvino is not installed (pip install 'edgeopt[openvino]')"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("local_window_size", 64, "it reads no window of attention"),
        ("softcap", 30.0, "it reads no limited scores of attention"),
        ("local_window_size", -1, ""),
    ],
)
def test_what_openvino_leaves_out_of_attention_in_silence_is_not_handed_to_it(name, value, why):
    proto = onnx.ModelProto()
    proto.CopyFrom(load_model(find_model("tiny_lm")).proto)
    for node in proto.graph.node:
        if node.op_type == "GroupQueryAttention":
            kept = [attribute for attribute in node.attribute if attribute.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])
    assert why_not_read(Model(proto, "altered")) == why


def test_matrices_in_bfloat16_are_rounded_to_nearest_ties_to_even():
    weights = np.array([[1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.1415927, 1e-30, 65504.0]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    outcome = store_in_bfloat16(Model(helper.make_model(graph), "product"))
    (stored,) = outcome.model.proto.graph.initializer
    assert (stored.data_type, len(stored.raw_data)) == (TensorProto.BFLOAT16, 12)
    found = (np.frombuffer(stored.raw_data, "<u2").astype("<u4") << 16).view("<f4").tolist()
    assert found[:3] == [1.0, 1.0, 1 + 2**-6]
    np.testing.assert_allclose(found, weights[0], rtol=2**-8)
    assert [node.op_type for node in outcome.model.proto.graph.node] == ["Cast", "MatMul"]
