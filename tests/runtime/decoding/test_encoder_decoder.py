"""Folders of optimum-cli with an encoder and a decoder write what transformers' `generate` writes.

Graphs and expected tokens: `fixtures/encoder_decoder_graphs/make.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from exported_pairs import EXPECTED, TONE, unpacked

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.sampling import Sampling

TEXT = "import os and the brown fox"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("whisper", tmp_path_factory.mktemp("pair") / "whisper")


def test_whisper_chooses_its_language_and_writes_the_tokens_of_transformers(whisper):
    expected = EXPECTED["whisper"]["detected"]
    with (
        open_encoder_decoder(whisper, 1) as model,
        model.generate(TONE, AnswerOptions(most_tokens=len(expected))) as answer,
    ):
        assert [piece.token for piece in answer] == expected
        assert len(expected) >= 64
        account = answer.account
    assert account.heard_rows == 1500
    assert account.token_at_ns[0] > account.tokenize_ns + account.encode_ns + account.prefill_ns > 0
    assert account.prompt_tokens == 3  # start, the language that it chose, no times
    assert account.runs == len(expected) - 1


def test_a_language_that_the_configuration_names_is_taken(tmp_path):
    folder = unpacked("whisper", tmp_path / "net", language="de", task="transcribe")
    expected = EXPECTED["whisper"]["german"]
    with (
        open_encoder_decoder(folder, 1) as model,
        model.generate(TONE, AnswerOptions(most_tokens=len(expected))) as answer,
    ):
        assert [piece.token for piece in answer] == expected
    (folder / "generation_config.json").write_text(
        json.dumps(
            json.loads((folder / "generation_config.json").read_text("utf-8"))
            | {"language": None, "task": None, "forced_decoder_ids": [[1, 259], [2, 260]]}
        )
    )
    with (
        open_encoder_decoder(folder, 1) as model,
        model.generate(TONE, AnswerOptions(most_tokens=len(expected))) as answer,
    ):
        assert [piece.token for piece in answer] == expected


def test_what_is_suppressed_is_never_chosen(tmp_path):
    folder = unpacked("whisper", tmp_path / "net", suppress_tokens=[0], begin_suppress_tokens=[1])
    with open_encoder_decoder(folder, 1) as model:
        drawn = [
            p.token for p in model.generate(TONE, AnswerOptions(40, Sampling(temperature=100, seed=1), ends=False))
        ]
        expected = model.generate(TONE, AnswerOptions(1))
        first = next(expected).token
    refused = unpacked("whisper", tmp_path / "other", suppress_tokens=[0, *drawn[1:4]], begin_suppress_tokens=[first])
    with open_encoder_decoder(refused, 1) as model:
        again = [
            p.token for p in model.generate(TONE, AnswerOptions(40, Sampling(temperature=100, seed=1), ends=False))
        ]
        assert next(model.generate(TONE, AnswerOptions(1))).token != first
    assert not {0, *drawn[1:4]} & set(again)


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_texts_are_read_and_answered_as_transformers_does(kind, tmp_path):
    expected = EXPECTED[kind]["text"]
    with open_encoder_decoder(unpacked(kind, tmp_path / kind), 1) as model:
        with model.generate(TEXT, AnswerOptions(most_tokens=len(expected))) as answer:
            assert [piece.token for piece in answer] == expected
        assert model.files.beams.count == (4 if kind == "marian" else 1)  # as its configuration asks
        with pytest.raises(EdgeoptError, match="hears no sound"):
            model.generate(TONE)
        with pytest.raises(EdgeoptError, match="the model reads"):
            model.generate("x" * 2000)
        with pytest.raises(EdgeoptError, match="is empty"):
            model.generate("")


def test_an_end_ends_an_answer(tmp_path):
    expected = EXPECTED["t5"]["text"]
    folder = unpacked("t5", tmp_path / "net", eos_token_id=[256, expected[5]])
    with open_encoder_decoder(folder, 1) as model, model.generate(TEXT) as answer:
        assert [piece.token for piece in answer] == expected[: expected.index(expected[5]) + 1]
        assert answer.account.reason == "end"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size = 3 is not honoured"),
        ({"return_timestamps": True}, "return_timestamps"),
        ({"forced_decoder_ids": [[2, 260]]}, "forced_decoder_ids"),
        ({"bad_words_ids": [[1, 2]]}, "several tokens"),
        ({"language": "xx"}, "none of lang_to_id"),
        ({"suppress_tokens": [999]}, "the token 999 that is never chosen is none of the model's, 0 to 261"),
    ],
)
def test_what_is_not_honoured_is_refused(changed, told, tmp_path):
    with pytest.raises(EdgeoptError, match=told):
        open_encoder_decoder(unpacked("whisper", tmp_path / "net", **changed), 1)


def test_the_commands_take_such_a_folder_or_refuse_it_in_a_line(whisper, tmp_path):
    sound = tmp_path / "tone.wav"
    write_wav(sound, TONE)
    done = CliRunner().invoke(cli, ["run", str(whisper), str(sound), "--output-tokens", "8", "--json"])
    assert done.exit_code == 0, done.output
    told = [json.loads(line)["token"] for line in done.stdout.splitlines()]
    assert told == EXPECTED["whisper"]["detected"][:8]
    words = ["bench", str(whisper), "--output-tokens", "4", "--seconds", "0.1", "--threads", "1", "--format", "json"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    source = json.loads(done.stdout)["lengths"][0]
    parts = sum(source[name]["p50"]["value_ns"] for name in ("encode", "prefill"))
    assert 0 < parts < source["ttft"]["max_ns"]
    for words, why in (
        ([], "answers SOURCE"),
        (["--prompt", "x"], "reads no text"),
        (["x", "--guesses", "2"], "guess"),
    ):
        done = CliRunner().invoke(cli, ["run", str(whisper), *words])
        assert done.exit_code in (1, 2)
        assert why in done.output
