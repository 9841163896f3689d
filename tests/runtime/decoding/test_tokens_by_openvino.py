"""Prompts and tokens by OpenVINO: one graph over pages, the same tokens however it is run, ONNX Runtime without it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_decoders import export_small, written_for

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.executors.openvino.decoder import OpenVinoDecoder, PagedRows
from edgeopt.executors.openvino.pages import ENTRIES, PagedGraph, PagedText, PageMemory, why_not_on_openvino
from edgeopt.graph.model import load_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.prefill_graph import write_two_graphs

PROMPTS = [[5, 17, 250, 3], [9], list(range(40, 110)), [8] * 17, list(range(200, 168, -1)), list(range(7, 40))]
PLAIN = AnswerOptions(16, guesses=0, ends=False)
WHY = why_not_on_openvino()
needs_openvino = pytest.mark.skipif(bool(WHY), reason=WHY or "OpenVINO computes tokens")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def file(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_for(OPENVINO, exported, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def blocks(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_for(OPENVINO, exported, tmp_path_factory.mktemp("blocks"), bits=8)


@pytest.fixture(params=["bf16 on one thread", "blocks of 8 bits on two"])
def model(request: pytest.FixtureRequest, file: Path, blocks: Path):
    way = (file, 1) if request.param.startswith("bf16") else (blocks, 2)
    with open_language_model(*way)[0] as opened:
        assert isinstance(opened.elsewhere, OpenVinoDecoder)
        assert not opened.origin.notes
        yield opened


def answers(model: LanguageModel, asked: AnswerOptions = PLAIN) -> list[list[int]]:
    result = []
    for prompt in PROMPTS:
        model.forget()
        result.append([piece.token for piece in model.generate(prompt, asked)])
    return result


def shared(model: LanguageModel, *, exact: bool | None = None) -> list[list[int]]:
    with SharedModel(model, 3, chunk_tokens=5, exact=exact) as slots, ThreadPoolExecutor(6) as pool:
        assert slots.is_together
        ask = [pool.submit(lambda prompt=prompt: slots.generate(prompt, PLAIN)) for prompt in PROMPTS]
        return [[piece.token for piece in answer.result()] for answer in ask]


@needs_openvino
@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-5), ("bf16", 0.03)])
def test_logits_are_those_of_onnx_runtime_but_for_rounding(exported, file, precision, allowed):
    tokens = list(range(3, 90))
    with open_language_model(exported, 1)[0] as original:
        wanted = original.logits(tokens)
    source = exported if precision == "fp32" else file
    decoder = OpenVinoDecoder(source, SessionOptions(("CPU",), 1, ENTRIES, precision=precision))
    decoder.fitted()
    text = decoder.text(len(tokens))
    found = np.concatenate([text.run(tokens[:40]), text.run(tokens[40:41]), text.run(tokens[41:])])
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < allowed
    decoder.close()


@needs_openvino
def test_a_token_alone_sums_otherwise_than_several_and_a_pair_does_not(model: LanguageModel):
    assert model.sums is not Sums.APART
    tokens = list(range(3, 60))
    decoder = model.decoder(len(tokens) + 1)
    whole = decoder.run(tokens)
    for widths in ([57], [40, 17], [7] * 8 + [1], [1] * 57):
        decoder.rewind(0)
        rows = []
        for width in widths:
            part = tokens[decoder.past : decoder.past + width]
            decoder.run_prompt(part, is_end=False)
            decoder.rewind(decoder.past - len(part))
            rows.append(decoder.run(part, last=len(part)))
        np.testing.assert_array_equal(np.concatenate(rows), whole)


@needs_openvino
def test_parts_prefixes_and_earlier_prompts_change_no_token(model: LanguageModel, tmp_path: Path):
    alone = answers(model)
    assert len({tuple(answer) for answer in alone}) > 1
    assert answers(model, replace(PLAIN, chunk_tokens=7)) == alone
    assert answers(model, replace(PLAIN, chunk_tokens=1)) == alone
    for prompt, wanted in zip(PROMPTS, alone, strict=True):
        model.forget()
        for _ in range(2):  # computed, then read
            model.keep_prefix(prompt[: max(len(prompt) * 2 // 3, 1)], tmp_path / "prefixes")
        assert [piece.token for piece in model.generate(prompt, PLAIN)] == wanted
        list(model.generate([*prompt[:-1], 5, 6, 7], PLAIN))
        assert [piece.token for piece in model.generate(prompt, PLAIN)] == wanted


@needs_openvino
def test_guesses_and_slots_change_no_token_of_exact_answers(model: LanguageModel):
    exact = answers(model, replace(PLAIN, exact=True))
    assert answers(model, replace(PLAIN, exact=True, guesses=4)) == exact
    assert shared(model, exact=True) == exact
    if model.sums is Sums.PAIRED:
        with pytest.raises(UnsupportedError, match="guesses change no token of exact answers alone"):
            model.generate(PROMPTS[0], replace(PLAIN, guesses=4))


@needs_openvino
def test_texts_beside_others_have_their_own_tokens(model: LanguageModel):
    alone = answers(model)
    assert shared(model) == alone
    with ThreadPoolExecutor(4) as pool:  # each with a cache of its own
        ask = [pool.submit(lambda prompt=prompt: list(model.generate(prompt, PLAIN))) for prompt in PROMPTS]
        assert [[piece.token for piece in answer.result()] for answer in ask] == alone


@needs_openvino
def test_a_part_of_a_prompt_is_one_run_with_the_next_tokens_of_others(model: LanguageModel, monkeypatch):
    alone, runs, run = answers(model), list[list[int]](), PagedGraph.run

    def seen(graph: PagedGraph, memory: PageMemory, texts: Sequence[PagedText], rows: Sequence[int] = ()) -> None:
        runs.append([len(text.tokens) for text in texts])
        run(graph, memory, texts, rows)

    monkeypatch.setattr(PagedGraph, "run", seen)
    with SharedModel(model, 3, chunk_tokens=8) as slots:
        first = slots.generate(PROMPTS[0], replace(PLAIN, most_tokens=400))
        next(first)
        second, third = slots.generate(PROMPTS[2], PLAIN), slots.generate(PROMPTS[5], PLAIN)
        assert [piece.token for piece in second] == alone[2]
        first.close()  # cancelled beside the third
        assert [piece.token for piece in third] == alone[5]
        assert [piece.token for piece in slots.generate([*PROMPTS[2], 5], PLAIN)]  # behind what a row holds
        assert [piece.token for piece in slots.generate(PROMPTS[2], PLAIN)] == alone[2]
        before = slots.work
    assert [1, 8] in runs
    assert [1, 1, 8] in runs
    assert before.reused_tokens > 0
    assert before.token_runs < before.tokens


@needs_openvino
def test_where_the_engine_refuses_a_run_of_both_each_is_run_alone(model: LanguageModel, monkeypatch):
    def refuse(*_: object) -> None:
        raise UnsupportedError("memory is short", remedy="")

    alone = answers(model)
    monkeypatch.setattr(PagedRows, "run_mixed", refuse)
    assert shared(model) == alone


@needs_openvino
def test_a_stored_cache_goes_on_with_the_same_bits_in_less_memory(model: LanguageModel):
    tokens = list(range(3, 70))
    decoder = model.decoder(80)
    decoder.run(tokens)
    wanted = decoder.run([5, 6])
    decoder.rewind(len(tokens))
    other = model.decoder(80, room=8)
    other.restore(decoder.stored(), len(tokens))
    np.testing.assert_array_equal(other.run([5, 6]), wanted)
    assert model.token_bytes == sum(part.token_bytes for part in model.parts) // 2  # bf16
    assert other.cache_bytes >= 69 * model.token_bytes
    with pytest.raises(ValueError, match="do not fit in 80"):
        other.run([1] * 12)


@needs_openvino
def test_pages_of_rows_are_laid_out_anew_without_losing_a_text(model: LanguageModel):
    assert model.elsewhere is not None
    prompts = [list(range(3, 40)), list(range(90, 20, -1)), [7] * 33]
    wanted = []
    for prompt in prompts:
        decoder = model.decoder(100)
        decoder.run(prompt)
        wanted.append(decoder.run([11])[-1])
    rows = PagedRows(model.elsewhere._graph, model.parts, 3, 100)
    for row, prompt in enumerate(prompts):
        rows.run(row, prompt, is_prompt=True)
    rows.swap(0, 2)
    rows.arrange(2, 150, [1, 2])
    assert [rows.past(row) for row in range(2)] == [70, 37]
    np.testing.assert_array_equal(rows.run_first([11, 11]), [wanted[1], wanted[0]])
    rows.rewind(0, 70)
    rows.rewind(1, 0)
    assert rows.copy(0, 1, 70) == 70
    np.testing.assert_array_equal(rows.run_first([11, 11]), [wanted[1]] * 2)
    with pytest.raises(ValueError, match="do not hold"):
        rows.arrange(1, 60, [0])
    with pytest.raises(ValueError, match="do not fit"):
        rows.run(0, [1] * 100)


@needs_openvino
def test_a_cache_in_integers_is_refused_in_one_line(file):
    options = SessionOptions(("CPU",), 1, {"KV_CACHE_PRECISION": "u8"}, precision="bf16")
    with pytest.raises(UnsupportedError, match="OpenVINO keeps the cache in u8") as raised:
        OpenVinoDecoder(file, options)
    assert raised.value.remedy == "leave the entry KV_CACHE_PRECISION out"


@needs_openvino
def test_a_graph_of_prompts_beside_it_is_refused_in_one_line(exported, tmp_path):
    file = written_for(OPENVINO, exported, tmp_path)
    write_two_graphs(load_model(exported), load_model(exported), tmp_path / "other.onnx", tmp_path / "prefill.onnx")
    recipe = tmp_path / "recipe.toml"
    more = '[generation]\nprefill = "prefill.onnx"'
    recipe.write_text(recipe.read_text("utf-8").replace("[generation]", more), "utf-8")
    with pytest.raises(UnsupportedError, match="a decoder on OpenVINO computes prompts itself") as raised:
        open_language_model(file, 1)
    assert raised.value.remedy == "take engine or prefill out of recipe.toml"


def test_without_openvino_onnx_runtime_computes_tokens_and_says_so(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    with open_language_model(file, 1)[0] as model:
        (note,) = model.origin.notes
        assert note.detail.startswith("OpenVINO computes no tokens here, ONNX Runtime does, slower: openvino is not")
        assert note.hint == "pip install 'edgeopt[openvino]'"
        assert all(answers(model))


def test_an_engine_that_computes_no_tokens_is_refused_in_one_line(exported, tmp_path):
    with pytest.raises(UnsupportedError, match="no engine named 'litert' computes tokens") as raised:
        open_language_model(written_for("litert", exported, tmp_path), 1)
    assert raised.value.remedy == "write engine = 'openvino' in recipe.toml, or leave it out"
