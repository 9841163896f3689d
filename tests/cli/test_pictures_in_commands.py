"""`run --image` and `bench --image`: a prompt about pictures on the command line."""

from __future__ import annotations

import json

import cv2
import pytest
from click.testing import CliRunner
from seeing_models import picture, write_exported

from edgeopt.cli import cli
from edgeopt.recipes.texts.chat_template import ChatMessage
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.text import printable


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("seeing")
    write_exported(folder)
    for seed in (1, 2):
        cv2.imwrite(str(folder / f"photo{seed}.png"), picture(seed))
    (folder / "broken.png").write_bytes(b"\x89PNG nothing")
    return folder


def run(*words: str):
    return CliRunner().invoke(cli, list(words))


def test_run_answers_a_prompt_about_pictures(place):
    model, asked = str(place / "model.onnx"), ["--prompt", "What is this?", "--output-tokens", "4"]
    done = run("run", model, *asked, "--image", str(place / "photo1.png"), "--image", str(place / "photo2.png"))
    assert done.exit_code == 0, done.output
    assert "2 pictures in " in done.stderr
    alone = run("run", model, *asked, "--image", str(place / "photo1.png"), "--json")
    tokens = [json.loads(line)["token"] for line in alone.stdout.splitlines()]
    with open_language_model(place / "model.onnx", 1)[0] as opened:
        answer = opened.generate("What is this?", images=[picture(1)], most_tokens=4)
        assert [piece.token for piece in answer] == tokens


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--image", "nowhere.png"], "nowhere.png does not exist"),
        (["--image", "photo1.png"], "--image belongs to --prompt TEXT"),
        (["--chat", "--image", "photo1.png"], "--image belongs to --prompt TEXT"),
        (["--prompt", "a", "--image", "broken.png"], "does not decode as a picture"),
        (["--prompt", "a", "--image", "photo1.png", "--system", "recipe.toml"], "--system stands before a prompt"),
        (["--prompt", "a", "--image", "photo1.png", "--long", "tail"], "with pictures is never cut"),
        (["--prompt", "a <image> <image>", "--image", "photo1.png"], "2 such marks for 1 picture"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(place, monkeypatch, words, message):
    monkeypatch.chdir(place)
    done = run("run", "model.onnx", *words)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_conversation_without_pictures_is_written_by_the_template_too(place):
    done = CliRunner().invoke(cli, ["run", str(place / "model.onnx"), "--chat", "--output-tokens", "3"], "hello\n\n")
    assert done.exit_code == 0, done.output
    with open_language_model(place / "model.onnx", 1)[0] as opened:
        reader = opened.images.conversations
        text = reader.text_of([ChatMessage("user", "hello")])
        assert text == "<|im_start|>User: hello<end_of_utterance>\nAssistant:"
        tokens = opened.tokenizer.encode(text, reads_special=True)
        assert printable(opened.generate(tokens, most_tokens=3).text()) in done.stdout


def test_models_without_eyes_refuse_pictures(place):
    done = run("run", "tiny_lm", "--prompt", "a", "--image", str(place / "photo1.png"))
    assert "sees no pictures" in done.output
    done = run("bench", "tiny_lm", "--image", str(place / "photo1.png"))
    assert "sees no pictures" in done.output


def test_bench_tells_vision_prefill_and_first_token_apart(place, tmp_path):
    model, photo = str(place / "model.onnx"), str(place / "photo1.png")
    words = ["--prompt-tokens", "8", "--output-tokens", "3", "--seconds", "0.1", "--threads", "1"]
    done = run("bench", model, "--image", photo, *words, "--format", "json")
    assert done.exit_code == 0, done.output
    (length,) = json.loads(done.stdout)["lengths"]
    assert length["name"] == "1 picture and 8 tokens"
    assert length["images"] == 1
    assert length["rows"] == 20
    parts = [length[name]["p50"]["value_ns"] for name in ("encode", "prefill", "first")]
    assert min(parts) > 0
    assert sum(parts) < 2 * length["ttft"]["max_ns"]
    shown = run("bench", model, "--image", photo, *words)
    heading = next(line for line in shown.stdout.splitlines() if line.startswith("prompt"))
    assert all(name in heading for name in ("TTFT p50 ms", "vision p50 ms", "prefill", "first token"))
    refused = run("bench", model, "--image", photo, "--load", "closed:2")
    assert "--load measures prompts of text alone" in refused.output
    refused = run("bench", model, "--image", photo, "--prompt-tokens", "250")
    assert "or fewer pictures" in refused.output
