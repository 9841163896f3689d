"""A model whose pictures are cut into patches goes through the commands, from a Hugging Face folder to a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest
from click.testing import CliRunner
from fixture_brief import briefly
from qwen_models import photo, write_qwen_folder

import edgeopt
from edgeopt.cli import cli
from edgeopt.runtime.decoding.opening import open_language_model

TEXT = Path(__file__).parents[2] / "models" / "tiny_lm" / "held_out.txt"
ASK = ["--prompt", "What is this?", "--output-tokens", "4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen_folder(folder / "net", "qwen2_5_vl")
    (folder / "photos").mkdir()
    for seed in range(8):
        cv2.imwrite(str(folder / "photos" / f"{seed}.png"), photo(seed, 60 + 10 * seed, 120))
    done = run("export", f"hf:{folder / 'net'}", "-o", str(folder / "out" / "model.onnx"))
    assert done.exit_code == 0, done.output
    return folder


def run(*words: str):
    return CliRunner().invoke(cli, list(words))


def test_run_and_inspect_know_patches(place):
    model, photos = str(place / "out" / "model.onnx"), place / "photos"
    done = run("run", model, *ASK, "--image", str(photos / "1.png"), "--image", str(photos / "2.png"), "--json")
    assert done.exit_code == 0, done.output
    tokens = [json.loads(line)["token"] for line in done.stdout.splitlines()]
    with open_language_model(Path(model), 1)[0] as opened:
        answer = opened.generate("What is this?", images=[photos / "1.png", photos / "2.png"], most_tokens=4)
        assert [piece.token for piece in answer] == tokens
    shown = run("inspect", model)
    assert shown.exit_code == 0, shown.output
    assert "patches of 8 pixels" in " ".join(shown.output.split())
    (place / "clip.mp4").write_bytes(b"")
    refused = run("run", model, *ASK, "--image", str(place / "clip.mp4"))
    assert refused.exit_code == 1
    assert "is a video, and a prompt takes pictures" in refused.output


def test_bench_tells_vision_prefill_and_first_token(place):
    words = ["--prompt-tokens", "8", "--output-tokens", "3", "--seconds", "0.1", "--threads", "1", "--format", "json"]
    done = run("bench", str(place / "out" / "model.onnx"), "--image", str(place / "photos" / "1.png"), *words)
    assert done.exit_code == 0, done.output
    (length,) = json.loads(done.stdout)["lengths"]
    with open_language_model(place / "out" / "model.onnx", 1)[0] as opened:
        assert length["rows"] == opened.images.feeder.rows(70, 120)
    assert min(length[name]["p50"]["value_ns"] for name in ("encode", "prefill", "first")) > 0


def test_optimize_judges_forms_of_the_encoder_and_the_bundle_answers(place, tmp_path):
    model, out = str(place / "out" / "model.onnx"), tmp_path / "bundle"
    lengths = ["--prompt-tokens", "8", "--output-tokens", "4", "--threads", "1", "--time-limit", "8s"]
    with briefly():
        done = run(
            "optimize", model, "--target", "cpu", "--eval", str(TEXT), "--pictures", str(place / "photos"), *lengths,
            "-o", str(out), "--max-drop", "0.5",
        )  # fmt: skip
    assert done.exit_code in (0, 3), done.output
    shown = " ".join(done.output.split())
    assert "the encoder of pictures in INT8" in shown or "the encoder of pictures stays" in shown
    assert "w8a8: " in shown or "not judged to its end" in shown
    with edgeopt.Runtime.load(out) as runtime:
        answer = runtime.generate("What is this?", images=[photo(1, 90, 120)], most_tokens=4)
        assert answer.text()
        assert answer.account.image_rows == runtime.language_model.images.feeder.rows(90, 120)
