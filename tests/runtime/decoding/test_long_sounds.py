"""Sounds longer than a window are refused, cut, or heard in windows, as asked; long texts are refused or cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from exported_pairs import TONE, unpacked

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions, Long
from edgeopt.runtime.decoding.speech.long_sounds import fitted_sound

RATE = 16000
NOISE = (0.1 * np.random.default_rng(0).standard_normal(64 * RATE)).astype(np.float32)
FEW = AnswerOptions(most_tokens=3, ends=False)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("whisper", tmp_path_factory.mktemp("pair") / "whisper")


def test_windows_end_where_it_is_quietest_and_nothing_is_lost():
    audio = Audio(rate_hz=RATE, features=Features.WHISPER, samples=10 * RATE)
    samples = NOISE[: 25 * RATE].copy()
    samples[int(8.9 * RATE) : int(9.3 * RATE)] *= 0.01
    samples[int(5 * RATE) : int(6 * RATE)] = 0  # too early: half a window would be wasted
    found = fitted_sound(Sound(samples, RATE), audio, Long.WINDOWS)
    assert 8.95 < found[0].seconds < 9.25
    assert all(8 <= one.seconds <= 10 for one in found[:-1])
    np.testing.assert_array_equal(np.concatenate([one.samples for one in found]), samples)
    assert fitted_sound(TONE, audio, Long.REFUSE) == [TONE]
    with pytest.raises(EdgeoptError, match=r"25\.0 s, the model hears 10 s") as refused:
        fitted_sound(Sound(samples, RATE), audio, Long.REFUSE)
    assert "--long windows" in refused.value.remedy
    (last,) = fitted_sound(Sound(samples, RATE), audio, Long.HEAD)
    np.testing.assert_array_equal(last.samples, samples[-10 * RATE :])


def test_the_answer_is_that_of_each_window_and_it_can_be_cancelled(whisper):
    with open_encoder_decoder(whisper, 1) as model:
        assert model.files.audio is not None
        sound = Sound(NOISE[: 50 * RATE], RATE)
        windows = fitted_sound(sound, model.files.audio, Long.WINDOWS)
        alone = [[piece.token for piece in model.generate(one, FEW)] for one in windows]
        with model.generate(sound, replace(FEW, long=Long.WINDOWS)) as answer:
            pieces = list(answer)
        assert [piece.token for piece in pieces] == [token for one in alone for token in one]
        assert len(windows) == answer.account.windows == 2
        assert answer.account.heard_rows == 2 * 1500
        assert answer.account.reason == "length"
        assert (
            [piece.at_ns for piece in pieces] == list(answer.account.token_at_ns) == sorted(answer.account.token_at_ns)
        )
        with model.generate(sound, replace(FEW, long=Long.WINDOWS)) as answer:
            next(answer)
            answer.cancel()
            assert list(answer) == []
        assert answer.account.reason == "cancelled"


def test_an_answer_cancelled_while_a_window_is_heard_has_no_token_of_it(whisper, monkeypatch):
    with open_encoder_decoder(whisper, 1) as model:
        answer, hear = model.generate(Sound(NOISE[: 50 * RATE], RATE), replace(FEW, long=Long.WINDOWS)), model._heard

        def cancelled(fed):
            answer.cancel()  # as another thread does while the encoder runs
            return hear(fed)

        monkeypatch.setattr(model, "_heard", cancelled)
        with answer:
            assert list(answer) == []
        assert answer.account.reason == "cancelled"


def test_run_refuses_a_long_sound_and_tells_what_it_leaves_out(whisper, tmp_path):
    file = tmp_path / "long.wav"
    write_wav(file, Sound(NOISE[: 41 * RATE], RATE))
    words = ["run", str(whisper), str(file), "--output-tokens", "2"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert "41.0 s, the model hears 30 s" in done.output
    done = CliRunner().invoke(cli, [*words, "--long", "tail"])
    assert done.exit_code == 0, done.output
    assert "11.0 s of the sound were left out" in done.output
    done = CliRunner().invoke(cli, [*words, "--long", "summarise"])
    assert "summarises nothing" in done.output
    done = CliRunner().invoke(cli, ["run", "tiny_lm", "--prompt", "x", "--long", "windows"])
    assert "only sounds are heard in windows" in done.output


def test_a_text_that_is_too_long_is_cut_where_asked(tmp_path):
    with open_encoder_decoder(unpacked("marian", tmp_path / "marian"), 1) as model:
        text = "the beginning " + "x" * 200
        with pytest.raises(EdgeoptError, match="--long"):
            model.generate(text, FEW)
        tokens = model.tokenizer.encode(text)
        cut = [piece.token for piece in model.generate(text, replace(FEW, long=Long.TAIL))]
        assert cut == [piece.token for piece in model.generate(tokens[: model.reads], FEW)]
