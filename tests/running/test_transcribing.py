"""`edgeopt run` of a model of speech: segments with times, streams, voice activity, and refusals in a line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from speech_pairs import HEARD, RATE, chirps, speech_model
from voice_net import voice_net

from edgeopt.cli import cli
from edgeopt.errors import EXIT_INCONCLUSIVE
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.wav_files import write_wav


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    speech_model(folder / "speech")
    voice_net(folder / "voice")
    write_wav(folder / "long.wav", chirps(65))
    write_wav(folder / "short.wav", chirps(12))
    return folder


def run(place: Path, source: str, *words: str, data: bytes | None = None) -> Result:
    file = source if source == "-" else str(place / source)
    return CliRunner().invoke(cli, ["run", str(place / "speech"), file, *words, "--threads", "1"], input=data)


def test_a_long_sound_is_printed_segment_by_segment_with_its_times(place):
    done = run(place, "long.wav", "--language", "en")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(HEARD["english"]["times"])
    assert lines[0].startswith("[00:00.940 --> 00:13.020] ")
    assert "in 3 windows, language en, TTFT" in " ".join(done.stderr.split())
    done = run(place, "long.wav", "--language", "en", "--json")
    segments = [json.loads(line) for line in done.stdout.splitlines()]
    assert [token for segment in segments for token in segment["tokens"]] == HEARD["english"]["tokens"]


def test_options_reach_the_model(place):
    searched = run(place, "long.wav", "--language", "en", "--beams", "4", "--json")
    greedy = run(place, "long.wav", "--language", "en", "--json")
    translated = run(place, "long.wav", "--language", "de", "--translate", "--json")
    prompted = run(place, "long.wav", "--language", "en", "--prompt", "hello there", "--json")
    texts = {each.stdout for each in (searched, greedy, translated, prompted)}
    assert len(texts) == 4
    tokens = [token for line in translated.stdout.splitlines() for token in json.loads(line)["tokens"]]
    assert tokens == HEARD["translated"]["tokens"]
    drawn = run(place, "long.wav", "--language", "en", "--temperature", "0.8", "--seed", "3", "--json")
    assert json.loads(drawn.stdout.splitlines()[0])["temperature"] == 0.8


def test_a_short_sound_has_times_where_they_are_asked_for(place):
    untimed = run(place, "short.wav", "--language", "en", "--output-tokens", "8")
    assert "-->" not in untimed.stdout
    assert run(place, "short.wav", "--times").stdout.startswith("[00:0")
    tokens = [json.loads(line)["token"] for line in run(place, "short.wav", "--json").stdout.splitlines()]
    assert len(tokens) > 8  # without any such option its text comes token by token


def test_an_answer_of_a_search_has_no_time_of_a_token(place):
    done = run(place, "short.wav", "--beams", "2", "--output-tokens", "4", "--budget", "tpot:1000ms")
    told = " ".join(done.stderr.split())
    assert "ms for the whole answer; ended by" in told
    assert "not decided: the answer comes as a whole" in told
    assert done.exit_code == EXIT_INCONCLUSIVE
    assert run(place, "long.wav", "--beams", "2", "--output-tokens", "4", "--long", "windows").stderr.count("TPOT") == 0


def test_a_wav_on_the_standard_input_is_heard_as_it_comes(place):
    data = (place / "long.wav").read_bytes()
    endless = data[:4] + b"\xff\xff\xff\xff" + data[8:40] + b"\xff\xff\xff\xff" + data[44:]
    done = run(place, "-", "--language", "en", data=endless)
    assert done.exit_code == 0, done.output
    assert done.stdout.count(" --> ") > 3
    for bad, why in ((b"", "it is empty"), (b"RIFX" + data[4:], "it is no WAV"), (data[:30], "it has no chunk")):
        refused = run(place, "-", data=bad)
        assert (refused.exit_code, why in refused.stderr) == (1, True), refused.output


def test_what_a_detector_takes_for_silence_is_not_heard_and_times_are_those_of_the_whole_sound(place):
    quiet = np.zeros(20 * RATE, np.float32)
    loud = chirps(6, seed=5).samples + 0.2 * np.sin(np.arange(6 * RATE)).astype(np.float32)
    write_wav(place / "paused.wav", Sound(np.concatenate([quiet, loud, quiet, loud]).astype(np.float32), RATE))
    detector = ["--voice-activity", str(place / "voice" / "model.onnx"), "--times", "--json"]
    done = run(place, "paused.wav", "--language", "en", *detector)
    assert done.exit_code == 0, done.output
    segments = [json.loads(line) for line in done.stdout.splitlines()]
    assert segments
    for segment in segments:
        middle = (segment["start_s"] + segment["end_s"]) / 2
        assert 19.5 <= segment["start_s"] <= 52.0
        assert 19.5 <= middle <= 26.5 or 45.5 <= middle <= 52.0 or segment["start_s"] < 26.5 < segment["end_s"]
    streamed = run(place, "-", "--language", "en", *detector, data=(place / "paused.wav").read_bytes())
    starts = [json.loads(line)["start_s"] for line in streamed.stdout.splitlines()]
    assert any(19.5 <= start < 26.5 for start in starts)
    assert any(45.5 <= start < 52.0 for start in starts)
    write_wav(place / "silent.wav", Sound(quiet, RATE))
    silent = run(place, "silent.wav", *detector)
    assert (silent.exit_code, silent.stdout) == (0, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--times", "--stop", "x"], "--stop is not for transcriptions"),
        (["--language", "klingon"], "the model knows no language 'klingon'"),
        (["--voice-activity", "tiny_lm"], "tiny_lm"),
        (["--translate", "--top-k", "4"], "--top-k is for tokens that are drawn"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(place, words, why):
    done = run(place, "short.wav", *words)
    assert done.exit_code == 1
    assert why in done.stderr
    assert "Traceback" not in done.output


def test_a_device_elsewhere_does_not_hear_this_standard_input(place):
    done = run(place, "-", "--on", "ssh://nobody@localhost", data=b"")
    assert done.exit_code == 1
    assert "the standard input is that of the machine that you sit at" in done.stderr


def test_the_commands_of_the_docs_run(place):
    page = (Path(__file__).parents[2] / "docs" / "speech.md").read_text("utf-8")
    (block,) = re.findall(r"# Speech\n\n```sh\n(.*?)```", page, re.DOTALL)
    files = {"FOLDER": "speech", "meeting.wav": "long.wav", "short.wav": "short.wav"}
    files["silero_vad.onnx"] = "voice/model.onnx"
    lines = block.splitlines()
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line.rpartition("| ")[2])
        assert words[0] == "edgeopt"
        words = [str(place / files[word]) if word in files else word for word in words[1:]]
        data = (place / "long.wav").read_bytes() if "-" in words else None
        done = CliRunner().invoke(cli, [*words, "--threads", "1"], input=data)
        assert done.exit_code == 0, (line, done.output)
        assert done.stdout.count('"start_s"' if "--json" in words else " --> ") > 1, line


def test_options_of_speech_are_refused_by_language_models():
    done = CliRunner().invoke(cli, ["run", "tiny_lm", "--prompt", "x", "--times"])
    assert "--times is not for language models" in done.output
    done = CliRunner().invoke(cli, ["run", "tiny_lm", "--prompt", "x", "--beams", "4"])
    assert "--beams is not for language models" in done.output
