"""Prompts by OpenVINO, tokens by ONNX Runtime: one cache, the same numbers, and what happens without OpenVINO."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from small_decoders import export_small
from two_graphs import GRAIN, PROMPTS, answers_of, require_same_tokens_in_parts, write_pair

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.executors.openvino.pages import ENTRIES, why_not_on_openvino
from edgeopt.executors.openvino.prefill import OpenVinoPrefill
from edgeopt.graph.model import Model, load_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.bfloat16_weights import store_in_bfloat16
from edgeopt.steps.convert.kv_cache import cache_ranges, make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.prefill_graph import write_two_graphs
from edgeopt.steps.convert.weight_only import make_weight_only

PLAIN = AnswerOptions(16, guesses=0, ends=False)
FORMS: dict[str, Callable[[Model], Model]] = {
    "bf16": lambda model: store_in_bfloat16(model).model,
    "w8": lambda model: make_weight_only(model, 8, 64, tables=True).model,
}
needs_openvino = pytest.mark.skipif(
    bool(why_not_on_openvino()), reason=why_not_on_openvino() or "OpenVINO computes prompts"
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("small"))


def written(exported: Path, folder: Path, prompts: Model, engine: str = "openvino") -> Path:
    """Write a form for prompts, and blocks of 8 bits for tokens, as two graphs over one cache."""
    return write_pair(exported, folder, prompts, FORMS["w8"](load_model(exported)), engine)


@pytest.fixture(scope="module", params=FORMS)
def file(request: pytest.FixtureRequest, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(exported, tmp_path_factory.mktemp("pair"), FORMS[request.param](load_model(exported)))


@pytest.fixture
def model(file: Path):
    with open_language_model(file, 1)[0] as opened:
        assert isinstance(opened.prefill, OpenVinoPrefill)
        assert not opened.origin.notes
        yield opened


def caches(model: LanguageModel, prompt: list[int]) -> list[np.ndarray]:
    decoder = model.decoder(len(prompt) + 1)
    for part in model.plan.filling(prompt, 0, 0):
        decoder.run_prompt(part, is_end=False)
    return decoder.stored()


@needs_openvino
@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-5), ("bf16", 0.03)])
def test_the_cache_is_that_of_onnx_runtime_but_for_rounding(exported, tmp_path, precision, allowed):
    file = written(exported, tmp_path, load_model(exported), engine="")
    prompt = list(range(3, 90))
    with open_language_model(file, 1)[0] as model:
        wanted = caches(model, prompt)
    options = SessionOptions(("CPU",), 1, ENTRIES, precision=precision)
    graph = OpenVinoPrefill(file.with_name("prefill.onnx"), options)
    parts = cache_parts(graph.inputs, graph.outputs, needs_logits=False)
    memory = [np.zeros((1, part.heads, len(prompt) + 1, part.head), part.dtype) for part in parts]
    bound = graph.fitted(parts).bound(memory)
    for start in range(0, len(prompt), GRAIN):
        graph.run(bound, prompt[start : start + GRAIN], start)
    for made, expected in zip(memory, wanted, strict=True):
        off = np.linalg.norm(made[:, :, : len(prompt)] - expected) / np.linalg.norm(expected)
        assert off < allowed
        assert not made[:, :, len(prompt) :].any()
    graph.close()


@needs_openvino
def test_parts_prefixes_and_earlier_answers_change_no_token(model: LanguageModel, tmp_path: Path):
    require_same_tokens_in_parts(model, PLAIN, tmp_path / "prefixes")


@needs_openvino
def test_a_past_that_is_copied_in_gives_the_same_bits(model: LanguageModel):
    prompt, other = list(range(3, 90)), list(range(90, 3, -1))
    wanted = caches(model, prompt)
    past = 3 * GRAIN
    caches(model, other)  # which the pages hold now
    for source in (wanted, caches(model, prompt)):
        decoder = model.decoder(len(prompt) + 1)
        decoder.restore(source, past)
        for part in model.plan.filling(prompt, past, 0):
            decoder.run_prompt(part, is_end=False)
        for made, expected in zip(decoder.stored(), wanted, strict=True):
            np.testing.assert_array_equal(made, expected)


@needs_openvino
def test_texts_beside_others_have_their_own_tokens(model: LanguageModel):
    alone = answers_of(model, PLAIN)
    with SharedModel(model, 3, chunk_tokens=5) as shared, ThreadPoolExecutor(6) as pool:
        ask = [pool.submit(lambda prompt=prompt: shared.generate(prompt, PLAIN)) for prompt in PROMPTS]
        assert [[piece.token for piece in answer.result()] for answer in ask] == alone


@needs_openvino
def test_several_texts_may_be_computed_in_threads_at_once(model: LanguageModel):
    alone = answers_of(model, PLAIN)
    with ThreadPoolExecutor(4) as pool:
        ask = [
            pool.submit(lambda prompt=prompt: [piece.token for piece in model.generate(prompt, PLAIN)])
            for prompt in PROMPTS
        ]
        assert [answer.result() for answer in ask] == alone


@needs_openvino
def test_a_cache_in_integers_is_refused(exported, tmp_path):
    original = load_model(exported)
    ranges = cache_ranges(original, [list(range(100))], threads=1)
    file = written(exported, tmp_path, original)
    small = make_integer_cache(FORMS["w8"](original), ranges).model
    whole = tmp_path / "small"
    whole.mkdir()
    write_two_graphs(original, keep_last_logits(small).model, whole / "model.onnx", whole / "prefill.onnx")
    for name in ("recipe.toml", "tokenizer.json"):
        shutil.copyfile(file.with_name(name), whole / name)
    with pytest.raises(UnsupportedError, match="share no cache"):
        open_language_model(whole / "model.onnx", 1)


def test_without_openvino_onnx_runtime_computes_prompts_and_says_so(file, exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    with open_language_model(file, 1)[0] as model:
        (note,) = model.origin.notes
        assert note.detail.startswith("OpenVINO computes no prompts here, ONNX Runtime does, slower: openvino is not")
        assert note.hint == "pip install 'edgeopt[openvino]'"
        made = answers_of(model, PLAIN)
    recipe = file.with_name("recipe.toml")
    before = recipe.read_text("utf-8")
    recipe.write_text(before.replace('prefill_engine = "openvino"\n', ""), "utf-8")
    try:
        with open_language_model(file, 1)[0] as model:
            assert not model.origin.notes
            assert answers_of(model, PLAIN) == made
    finally:
        recipe.write_text(before, "utf-8")


def test_an_engine_that_computes_no_prompts_is_refused_in_one_line(exported, tmp_path):
    file = written(exported, tmp_path, load_model(exported), engine="litert")
    with pytest.raises(UnsupportedError, match="no engine named 'litert' computes prompts") as raised:
        open_language_model(file, 1)
    assert raised.value.remedy == "write prefill_engine = 'openvino' in recipe.toml, or leave it out"
