"""Two graphs over one cache: which computes what, and that nothing but the text decides about the tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from served import until
from small_decoders import VOCABULARY, export_small
from two_graphs import GRAIN, PROMPTS, answers_of, require_same_tokens_in_parts, write_pair

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors.onnxruntime.decoder import Decoder
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import Model, load_model, save_model, weights_beside
from edgeopt.measurement.generation.bench import files_read
from edgeopt.measurement.generation.perplexity import agreement_between, on_the_same, rise_between, score_text
from edgeopt.runtime.decoding.batching.prompt_odds import prompt_odds
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.runtime.decoding.prompt_plan import PromptPlan
from edgeopt.runtime.decoding.sampling import odds_of
from edgeopt.steps.convert.kv_cache import cache_ranges, make_integer_cache
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import find_target

PLAIN = AnswerOptions(24, guesses=0, ends=False)
FORMS: dict[str, Callable[[Model], Model]] = {
    "w8a8": lambda model: make_dynamic(model, find_target("cpu-x86-vnni").rules_here).model,
    "w8": lambda model: make_weight_only(model, 8, 64, tables=True).model,
    "w4": lambda model: make_weight_only(model, 4, 32, tables=True).model,
    "w4+long": lambda model: make_weight_only(model, 4, 64, tables=True).model,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("small"))


def written(exported: Path, folder: Path, prompts: str, tokens: str, *, small_cache: bool = False) -> Path:
    """Write two forms of a small decoder as two graphs over one cache."""
    original = load_model(exported)
    models = [FORMS[name](original) for name in (prompts, tokens)]
    if small_cache:
        ranges = cache_ranges(original, [list(range(100))], threads=1)
        models = [make_integer_cache(model, ranges).model for model in models]
    return write_pair(exported, folder, *models)


@pytest.fixture(scope="module", params=["w8a8-w4", "w8a8-w4+long", "w8-w4", "w8a8-w4+cache8"])
def model(request: pytest.FixtureRequest, exported: Path, tmp_path_factory: pytest.TempPathFactory):
    forms = request.param.removesuffix("+cache8").split("-")
    folder = tmp_path_factory.mktemp("pair")
    file = written(exported, folder, *forms, small_cache=request.param.endswith("+cache8"))
    with open_language_model(file, 1)[0] as opened:
        yield opened


def test_parts_prefixes_and_earlier_answers_change_no_token(model: LanguageModel, tmp_path: Path):
    require_same_tokens_in_parts(model, PLAIN, tmp_path / "prefixes")


def test_the_graph_of_tokens_tells_how_probable_a_prompt_is(model: LanguageModel):
    prompt = [int(token) for token in np.arange(3, 90) % VOCABULARY]  # more than one run
    odds = list(prompt_odds(model, prompt, 1))
    assert len(odds) == len(prompt)
    text = [*model.begin_tokens, *prompt]
    rows = model.decoder(len(text)).run(text)  # several tokens a run: weights in blocks sum single ones otherwise
    expected = [odds_of(row, token, 1).logprob for row, token in zip(rows, text[1:], strict=False)]
    known = [each.logprob for each in odds if each.logprob is not None]
    assert known == pytest.approx(expected[len(expected) - len(known) :], abs=0.02)


def test_texts_beside_others_have_their_own_tokens(model: LanguageModel):
    alone = answers_of(model, PLAIN)
    model.forget()
    behind = [piece.token for piece in model.generate([*PROMPTS[5], 9], PLAIN)]
    with SharedModel(model, 3, chunk_tokens=5) as shared, ThreadPoolExecutor(6) as pool:
        for _ in range(2):  # the second time on what rows still hold
            ask = [pool.submit(lambda prompt=prompt: shared.generate(prompt, PLAIN)) for prompt in PROMPTS]
            assert [[piece.token for piece in answer.result()] for answer in ask] == alone
        list(shared.generate(PROMPTS[5], PLAIN))
        before = shared.work.reused_tokens
        assert [piece.token for piece in shared.generate([*PROMPTS[5], 9], PLAIN)] == behind
        assert shared.work.reused_tokens == before + 2 * GRAIN


def test_the_next_turn_is_computed_ahead_up_to_the_last_cut(model: LanguageModel):
    prompt = PROMPTS[2]
    answer = [piece.token for piece in model.generate(prompt, PLAIN)]
    turn = [*prompt, *answer, 9, 11]
    model.forget()
    alone = [piece.token for piece in model.generate(turn, PLAIN)]
    begun = len(prompt) + len(answer)
    model.forget()
    assert [piece.token for piece in model.generate(prompt, PLAIN)] == answer
    model.expect(turn[:begun])
    with model.generate(turn, PLAIN) as again:
        assert [piece.token for piece in again] == alone
    assert again.account.reused_tokens == model.plan.reusable(model.begins_with + begun)
    model.forget()
    with SharedModel(model, 2) as shared:
        assert [piece.token for piece in shared.generate(prompt, PLAIN)] == answer
        shared.expect(turn[:begun], prompt)
        until(lambda: bool(shared.work.ahead_tokens) and shared.is_idle)
        beside = shared.generate(turn, PLAIN)
        assert [piece.token for piece in beside] == alone
    assert beside.account.reused_tokens == model.plan.reusable(model.begins_with + begun)


def test_a_text_beyond_the_context_goes_on_as_behind_a_prompt_of_what_stayed(exported: Path, tmp_path: Path):
    with open_language_model(written(exported, tmp_path, "w8a8", "w4"), 1, 96)[0] as model:
        prompt, asked = PROMPTS[2], replace(PLAIN, most_tokens=60, shifts=True, keep=5)
        with model.generate(prompt, asked) as answer:
            tokens = [piece.token for piece in answer]
        assert answer.account.shifts == 1
        room = model.context - model.begins_with - len(prompt)
        whole = [*prompt, *tokens[:room]]
        fixed = 5
        del whole[fixed : fixed + (model.context - model.begins_with - fixed) // 2]
        model.forget()
        assert [piece.token for piece in model.generate(whole, replace(PLAIN, most_tokens=60 - room))] == tokens[room:]


def test_guesses_change_no_token_of_an_exact_answer(model: LanguageModel):
    if model.sums is Sums.APART:
        pytest.skip("this processor sums single tokens otherwise than several, and pairs too")
    exact = answers_of(model, replace(PLAIN, exact=True))
    assert answers_of(model, replace(PLAIN, exact=True, guesses=3)) == exact
    with SharedModel(model, 2, exact=True) as shared:
        assert [[piece.token for piece in shared.generate(prompt, PLAIN)] for prompt in PROMPTS] == exact


def test_prompts_are_the_one_form_s_and_tokens_the_other_s(exported: Path, tmp_path: Path):
    """The same by hand: a form computes all of a prompt but its last token, another goes on in a copy of its cache."""
    files = {}
    for name in ("w8", "w4"):
        files[name] = tmp_path / name / "model.onnx"
        save_model(FORMS[name](load_model(exported)), files[name])
        for beside in ("recipe.toml", "tokenizer.json"):
            shutil.copyfile(exported.parent / beside, files[name].parent / beside)
    file, tokens = written(exported, tmp_path / "both", "w8", "w4"), PROMPTS[2]
    with (
        open_language_model(files["w8"], 1)[0] as prompts,
        open_language_model(files["w4"], 1)[0] as singles,
        open_language_model(file, 1)[0] as both,
    ):
        filled: Decoder = prompts.decoder(128)
        filled.run(tokens[:-1], last=1)
        by_hand = singles.decoder(128)
        by_hand.restore(filled.stored(), len(tokens) - 1)
        expected = [by_hand.run([tokens[-1]])[-1]]
        decoder = both.decoder(128)
        made = [both.run_prompt(decoder, tokens)[-1]]
        alone = singles.decoder(128)
        assert not np.array_equal(alone.run(tokens, last=1)[-1], expected[0])
        for token in (3, 77, 12):
            expected.append(by_hand.run([token])[-1])
            made.append(decoder.run([token])[-1])
    np.testing.assert_array_equal(np.stack(made), np.stack(expected))


def test_what_both_read_is_stored_once_and_prompts_have_no_head(exported: Path, tmp_path: Path):
    file = written(exported, tmp_path, "w8a8", "w4")
    tokens, prompts = (onnx.load(path, load_external_data=False) for path in (file, tmp_path / "prefill.onnx"))
    assert [value.name for value in prompts.graph.output] == [
        f"present.{i}.{kind}" for i in range(2) for kind in ("key", "value")
    ]
    assert {value.name for value in prompts.graph.input} <= {value.name for value in tokens.graph.input}
    known = [{one.name for one in proto.graph.initializer if VOCABULARY in one.dims} for proto in (tokens, prompts)]
    assert known[1], "its embedding is that of the other graph"
    large = written(exported, tmp_path / "large", "w8a8", "w4")
    pieces = [
        tuple((entry.key, entry.value) for entry in one.external_data)
        for path in (large, large.with_name("prefill.onnx"))
        for one in onnx.load(path, load_external_data=False).graph.initializer
        if one.external_data
    ]
    assert len(pieces) == len(set(pieces)) or weights_beside(large).stat().st_size < sum(
        int(dict(piece)["length"]) for piece in pieces
    )


def test_it_is_judged_on_the_ends_of_windows_against_the_same_of_the_original(exported: Path, tmp_path: Path):
    windows = [list(range(start, start + 40)) for start in (0, 50, 100)]
    with (
        open_language_model(exported, 1)[0] as original,
        open_language_model(written(exported, tmp_path, "w8", "w8"), 1)[0] as both,
    ):
        scores = score_text(original, windows), score_text(both, windows)
        assert both.logits(windows[0]).shape == (21, VOCABULARY)
    assert [len(array) for array in scores[1].likeliest] == [21] * 3
    rows = on_the_same({"original": scores[0], "both": scores[1]})
    assert rows["original"].losses != scores[0].losses
    np.testing.assert_allclose(rows["original"].losses[0], scores[0].nats[0][-20:].mean())
    assert abs(rise_between(*scores).value) < 0.05
    assert agreement_between(*scores) > 0.8


def test_a_prefix_below_a_part_is_not_kept_and_that_is_told(exported: Path, tmp_path: Path):
    with open_language_model(written(exported, tmp_path, "w8a8", "w4"), 1)[0] as opened:
        prefix = opened.keep_prefix(list(range(GRAIN - 1)))
        assert (prefix.held_tokens, prefix.note) == (0, "nothing of 15 tokens is kept: prompts run in parts of 16")
        assert opened.keep_prefix(list(range(2 * GRAIN + 5))).computed_tokens == 2 * GRAIN
        with opened.generate(list(range(60)), PLAIN) as answer:
            assert answer.account.reused_tokens == 2 * GRAIN


def test_graphs_without_the_same_cache_are_refused(exported: Path, tmp_path: Path):
    file = written(exported, tmp_path, "w8a8", "w4")
    small = written(exported, tmp_path / "small", "w8a8", "w4", small_cache=True)
    for name in ("prefill.onnx", "model.onnx.data"):
        shutil.copyfile(small.with_name(name), file.with_name(name))
    shutil.copyfile(small, file.with_name("other.onnx"))
    with pytest.raises(UnsupportedError, match="share no cache"):
        open_language_model(file, 1)
    file.with_name("prefill.onnx").unlink()
    with pytest.raises(InvalidFileError, match=r"prefill\.onnx"):
        open_language_model(file, 1)


@pytest.fixture
def lengths() -> Iterator[tuple[int, int, int]]:
    return ((count, past, most) for count in range(1, 60) for past in range(count) for most in (0, 1, 7, 16, 100))


def test_parts_of_a_prompt_end_at_the_same_places_wherever_it_goes_on(lengths):
    plan, plain = PromptPlan(is_split=True, grain=GRAIN), PromptPlan()
    for count, past, most in lengths:
        tokens = list(range(count))
        parts = plan.parts(tokens, kept := plan.reusable(past), most)
        assert [token for part in parts for token in part] == tokens[kept:]
        assert parts[-1] == tokens[-1:]
        assert all(part[0] % GRAIN == 0 and len(part) <= GRAIN for part in parts[:-1])
        assert all(len(part) == GRAIN for part in parts[:-2])
        assert [token for part in plain.parts(tokens, past, most) for token in part] == tokens[past:]


def test_a_cold_start_asks_the_page_cache_for_every_file_that_is_read(exported, tmp_path):
    file = written(exported, tmp_path, "w8", "w4")
    shutil.copy(file, tmp_path / "seen.onnx")
    read = recipe_beside(file)
    image = replace(read.image, encoder="seen.onnx", token="<image>", rows=1, tile=8, longest=8)
    sees = replace(read, image=image)
    for graph in (file, file.with_name("prefill.onnx")):
        onnx.save(onnx.load(graph), graph, save_as_external_data=True, location="weights.bin", size_threshold=0)
    expected = {"model.onnx", "prefill.onnx", "weights.bin", "tokenizer.json"}
    assert {path.name for path in files_read(file, read)} == expected
    assert len(files_read(file, read)) == len(expected)  # the weights of both graphs are one file
    assert {path.name for path in files_read(file, sees)} == expected | {"seen.onnx"}
