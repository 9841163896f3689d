"""Language models on the command line: answers, figures, and what they are refused for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_decoders import write_decoder

from edgeopt.cli import cli

TOKENIZER = Path(__file__).parents[2] / "models" / "tiny_lm" / "tokenizer.json"


def run(*args: str):
    return CliRunner().invoke(cli, args)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_decoder(tmp_path / "small", vocab_size=300)
    values = json.loads(TOKENIZER.read_text("utf-8"))
    vocabulary = {token: i for token, i in values["model"]["vocab"].items() if i < 300}
    merges = [one for one in values["model"]["merges"] if "".join(one) in vocabulary]
    values["model"] |= {"vocab": vocabulary, "merges": merges}
    (made / "tokenizer.json").write_text(json.dumps(values), "utf-8")
    return made


def test_the_shipped_model_answers_and_the_same_again():
    asked = ["run", "tiny_lm", "--prompt", "import os\nimport ", "--output-tokens", "24"]
    first, second = run(*asked), run(*asked, "--guesses", "4")
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout != "\n"
    assert "TTFT" in first.stderr
    assert "tokens/s" in first.stderr
    assert "ended by length" in first.stderr


def test_tokens_come_as_lines_of_json():
    done = run("run", "tiny_lm", "--prompt", "import os", "--output-tokens", "5", "--json", "--temperature", "0.8")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 5
    assert [row["at_ms"] for row in rows] == sorted(row["at_ms"] for row in rows)


def test_a_folder_is_exported_run_and_measured(folder, tmp_path):
    file = tmp_path / "out" / "model.onnx"
    exported = run("export", f"hf:{folder}", "-o", str(file))
    assert exported.exit_code == 0, exported.output
    assert "edgeopt run" in exported.stdout
    assert {one.name for one in file.parent.iterdir()} == {"model.onnx", "recipe.toml", "tokenizer.json"}
    answered = run("run", str(file.parent), "--prompt", "abc", "--output-tokens", "6")
    assert answered.exit_code == 0, answered.output
    done = run(
        "bench", str(file), "--prompt-tokens", "4,9", "--output-tokens", "6", "--seconds", "0.2s", "--format", "json"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [one["prompt_tokens"] for one in found["lengths"]] == [4, 9]
    for one in found["lengths"]:
        assert one["answers"] >= 6
        assert one["itl"]["n"] == 5 * one["answers"]
        assert 0 < one["prefill"]["p50"]["value_ns"] <= one["ttft"]["p50"]["value_ns"]


def test_figures_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run("bench", "tiny_lm", "--prompt-tokens", "16", "--output-tokens", "4", "--seconds", "0.2s")
    assert done.exit_code == 0, done.output
    for told in ("TTFT p50 ms", "TPOT p50 ms", "ITL p50 ms", "tokens/s", "2 KiB a token"):
        assert told in done.stdout
    assert "nan" not in done.stdout.lower()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run", "tiny_lm"], "or --prompt TEXT for a language model"),
        (["run", "tiny_lm", "frame.jpg", "--seed", "3"], "error: --seed belongs to --prompt"),
        (["run", "tiny_lm", "frame.jpg", "--temperature", "0"], "error: --temperature belongs to --prompt"),
        (["run", "tiny_lm", "--prompt", "a", "--view"], "--view is not for language models"),
        (["bench", "tiny_lm", "--prompt-tokens", "4", "--budget", "9ms"], "--budget is not for language models"),
        (["bench", "tiny_lm", "--prompt-tokens", "4", "--out", "here"], "--out is not for language models"),
        (["run", "tiny_lm", "frame.jpg", "--prompt", "a"], "takes the place of SOURCE"),
        (["run", "digits_detector", "--prompt", "a"], "is not the recipe of a language model"),
        (["run", "tiny_lm", "--prompt", "word " * 2000], "the context 1024: nothing could follow"),
        (["run", "no_such_model", "--prompt", "a"], "no model file or shipped model"),
        (["bench", "tiny_lm"], "--prompt-tokens 128"),
        (["bench", "tiny_lm", "--output-tokens", "8"], "belongs to --prompt-tokens"),
        (["bench", "tiny_lm", "--prompt-tokens", "1000"], "the context has 1024"),
        (["quantize", "tiny_lm", "--target", "cpu"], "writes token after token"),
        (["compare", "tiny_lm", "tiny_lm"], "writes token after token"),
    ],
)
def test_what_does_not_go_is_one_line(args, told):
    done = run(*args)
    assert done.exit_code not in (0, None)
    assert told in done.output
    assert "Traceback" not in done.output


def test_what_a_folder_lacks_is_named(folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    done = run("export", f"hf:{folder}", "-o", str(tmp_path / "out" / "model.onnx"))
    assert done.exit_code == 1
    assert "tokenizer.json" in done.output
    assert not (tmp_path / "out").exists()
    done = run("export", f"hf:{folder}", "--input", "ids=1x4:int64")
    assert "leave --input" in done.output
