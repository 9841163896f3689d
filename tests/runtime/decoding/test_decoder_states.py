"""A decoder with states beside keys and values: whole texts go on, parts of them do not."""

from __future__ import annotations

import numpy as np
import pytest
from small_mixtures import logits_of, write_by_transformers

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.rows import SharedRows, takes_rows
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.export.export import export
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

PLAIN = AnswerOptions(10, ends=False)
TEXT = np.random.default_rng(2).integers(0, 300, 60).tolist()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    layers = ["conv", "full_attention", "conv"]
    module = write_by_transformers(folder / "source", "Lfm2Config", layer_types=layers, num_hidden_layers=3)
    return module, export(f"hf:{folder / 'source'}", out=folder / "made" / "model.onnx").file


@pytest.fixture
def model(hybrid):
    with open_language_model(hybrid[1], 1)[0] as opened:
        yield opened


def written(module, prompt, count=10):
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits_of(module, text)[-1].argmax()))
    return text[len(prompt) :]


def tokens_of(generation):
    return [piece.token for piece in generation]


def test_chunks_of_a_prompt_and_single_tokens_carry_the_states_on(hybrid, model):
    expected = logits_of(hybrid[0], TEXT)
    decoder = model.decoder(len(TEXT))
    parts = [decoder.run(TEXT[:1]), decoder.run(TEXT[1:20]), decoder.run(TEXT[20:23])]
    parts += [decoder.run([token]) for token in TEXT[23:31]] + [decoder.run(TEXT[31:])]
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-4 * np.abs(expected).max()
    assert decoder.cache_bytes > len(TEXT) * model.token_bytes


def test_a_text_goes_on_behind_all_that_is_held_and_else_begins_anew(hybrid, model):
    module = hybrid[0]
    first = model.generate(TEXT[:20], PLAIN)
    answer = tokens_of(first)
    assert answer == written(module, TEXT[:20])
    turn = [*TEXT[:20], *answer, *TEXT[40:44]]
    again = model.generate(turn, PLAIN)
    assert tokens_of(again) == written(module, turn)
    assert again.account.reused_tokens == 20 + len(answer) - 1, "all that was held begins the prompt"
    for prompt in (TEXT[:20], TEXT[:12], [*TEXT[:25], 7]):  # only parts of what is held begin these
        generation = model.generate(prompt, PLAIN)
        assert generation.account.reused_tokens == 0
        assert tokens_of(generation) == written(module, prompt)
    decoder = model.decoder(30)
    decoder.run(TEXT[:9])
    with pytest.raises(ValueError, match="cannot go back"):
        decoder.rewind(5)


def test_a_prefix_is_kept_and_stored_and_taken_where_a_prompt_begins_with_all_of_it(hybrid, model, tmp_path):
    module = hybrid[0]
    assert model.keep_prefix(TEXT[:15], tmp_path).computed_tokens == 15
    model.forget()
    assert model.keep_prefix(TEXT[:15], tmp_path).computed_tokens == 0, "it was stored with its states"
    for prompt, reused in ((TEXT[:24], 15), ([*TEXT[:12], *TEXT[30:35]], 0), (TEXT[:15], 0)):
        generation = model.generate(prompt, PLAIN)
        assert generation.account.reused_tokens == reused
        assert tokens_of(generation) == written(module, prompt)
        generation.close()
        model._idle.clear()


def test_slots_begin_behind_a_stored_prefix_each_time_and_not_behind_a_part_of_another_text(hybrid, model):
    prefix = model.keep_prefix(TEXT[:20])
    prompts = [prefix.before(TEXT[30:35]), prefix.before(TEXT[40:46]), prefix.before(TEXT[50:53])]
    with SharedModel(model, 1) as shared:
        for prompt in prompts:
            answer = shared.generate(prompt, PLAIN)
            assert tokens_of(answer) == written(hybrid[0], prompt)
            assert answer.account.reused_tokens == prefix.held_tokens


def test_the_next_turn_is_expected_and_a_shift_begins_anew(hybrid, model):
    prompt = TEXT[:12]
    answer = tokens_of(model.generate(prompt, PLAIN))
    turn = [*prompt, *answer, 7, 8]
    assert model.expect(turn[:-2]) == 1  # the last token of the answer never ran
    with model.generate(turn, PLAIN) as again:
        assert tokens_of(again) == written(hybrid[0], turn)
    assert again.account.reused_tokens == model.begins_with + len(turn) - 2
    with open_language_model(hybrid[1], 1, 32)[0] as small:
        tokens = tokens_of(small.generate(prompt, AnswerOptions(30, ends=False, shifts=True)))
        room = small.context - small.begins_with - len(prompt)
        whole = [*prompt, *tokens[:room]]
        del whole[: (small.context - small.begins_with) // 2]
        small.forget()
        assert tokens_of(small.generate(whole, AnswerOptions(4, ends=False))) == tokens[room : room + 4]


def test_guesses_are_refused_in_one_line(model):
    with pytest.raises(UnsupportedError, match="a wrong guess cannot be taken back"):
        model.generate(TEXT[:5], AnswerOptions(5, guesses=3))
    with pytest.raises(UnsupportedError, match="has states"):
        model.use_draft(model)


@pytest.mark.parametrize("together", [True, False])
def test_texts_side_by_side_have_a_state_each(hybrid, model, together, monkeypatch):
    assert takes_rows(model.session.engine, model.parts)
    if not together:
        monkeypatch.setattr("edgeopt.runtime.decoding.batching.shared_model.takes_rows", lambda *_: False)
    prompts = [TEXT[i : i + 6 + 5 * i] for i in range(6)]
    prompts.append([*prompts[0], 9, 8])  # begins like another text, whose row holds more by then
    model.keep_prefix(prompts[3][:10])
    with SharedModel(model, 3, chunk_tokens=4) as shared:
        assert shared.is_together == together
        answers = [shared.generate(prompt, PLAIN) for prompt in prompts]
        found = [[piece.token for piece in answer] for answer in answers]
        assert answers[3].account.reused_tokens == 10, "the prefix is kept with its states"
    assert found == [written(hybrid[0], prompt) for prompt in prompts]


def test_rows_with_states_move_and_begin_anew(hybrid, model):
    rows = SharedRows(model.session.engine, model.parts, 3, 40)
    for row, count in ((0, 7), (1, 12)):
        rows.run(row, TEXT[:count], is_prompt=True)
    rows.swap(0, 1)
    assert rows.copy(0, 2, 12) == 12
    assert rows.copy(0, 2, 11) == 0, "states are not cut back"
    with pytest.raises(ValueError, match="cannot go back"):
        rows.rewind(0, 3)
    assert rows.copy(1, 2, 7) == 7
    rows.arrange(3, 30, [2, 0])
    logits = [rows.run(row, TEXT[count : count + 1])[-1] for row, count in ((0, 7), (1, 12))]
    expected = [logits_of(hybrid[0], TEXT[: count + 1])[-1] for count in (7, 12)]
    assert np.abs(np.stack(logits) - np.stack(expected)).max() < 1e-3
    rows.rewind(1, 0)
    anew = rows.run(1, TEXT[:5])[-1]
    assert np.abs(anew - logits_of(hybrid[0], TEXT[:5])[-1]).max() < 1e-3


def test_floats_are_alike_however_they_are_cut(model):
    assert model.sums is Sums.ALIKE
    assert not model.pairs
