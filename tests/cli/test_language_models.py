"""Language models on the command line: answers, figures, and what they are refused for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_decoders import bundle_small, write_decoder, write_tokenizer

from edgeopt.cli import cli
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.decoding.opening import open_language_model


def run(*args: str):
    return CliRunner().invoke(cli, args)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_decoder(tmp_path / "small")
    write_tokenizer(made)
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


def test_the_draws_of_the_command_are_those_of_the_library():
    def tokens(*args: str) -> list[int]:
        done = run("run", "tiny_lm", "--prompt", "import os", "--output-tokens", "24", "--json", *args)
        assert done.exit_code == 0, done.output
        return [json.loads(line)["token"] for line in done.stdout.splitlines() if '"token"' in line]

    with open_language_model(find_language_model("tiny_lm"))[0] as model:
        for args, wishes in (
            (["--repetition-penalty", "3"], {"repetition_penalty": 3.0}),
            (["--temperature", "3", "--top-k", "2", "--seed", "5"], {"temperature": 3.0, "top_k": 2, "seed": 5}),
            (["--temperature", "3", "--top-k", "1"], {}),
        ):
            expected = [one.token for one in model.generate("import os", most_tokens=24, **wishes)]
            assert tokens(*args) == expected
            assert (expected == tokens()) is not bool(wishes)


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
    for told in ("TTFT p50 ms", "TPOT p50 ms", "(ITL, ms)", "tokens/s", "2 KiB a token"):
        assert told in done.stdout
    assert "nan" not in done.stdout.lower()


def test_inspect_tells_what_a_language_model_takes(folder, tmp_path):
    done = run("inspect", "tiny_lm")
    assert done.exit_code == 0, done.output
    assert "context of 1024 tokens; tokenizer of 1024; cache" in done.stdout
    run("export", f"hf:{folder}", "-o", str(tmp_path / "out" / "model.onnx"))
    bundle = bundle_small(tmp_path / "out" / "model.onnx", tmp_path / "bundle")
    done = run("inspect", str(bundle), "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["recipe"].endswith("a language model, of its bundle")


def test_a_budget_decides_the_exit_code():
    short = ("--output-tokens", "4", "--seconds", "1s")
    met = run("bench", "tiny_lm", "--prompt-tokens", "8", *short, "--budget", "ttft:1h,tpot:1h")
    assert met.exit_code in (0, 4), met.output  # 4: other tests disturb the machine
    assert ("PASS" if met.exit_code == 0 else "NOISY") in met.stdout
    assert "met: TTFT 3600000 ms, TPOT 3600000 ms" in " ".join(met.stdout.split())
    missed = run("bench", "tiny_lm", "--prompt-tokens", "8", *short, "--budget", "ttft:1h,tpot:1us")
    assert missed.exit_code in (2, 4), missed.output
    assert "missed: TPOT 0.001 ms; met: TTFT" in " ".join(missed.stdout.split())
    for done in (met, missed):
        assert ("nothing is decided; seen:" in " ".join(done.stdout.split())) == (done.exit_code == 4)
    answered = run("run", "tiny_lm", "--prompt", "a", "--output-tokens", "3", "--budget", "tpot:1us")
    assert answered.exit_code == 2
    assert "missed by TPOT" in answered.stderr
    assert run("run", "tiny_lm", "--prompt", "a", "--output-tokens", "3", "--budget", "tpot:1h").exit_code == 0


def test_several_users_are_measured_in_several_numbers_of_slots(tmp_path):
    asked = ["bench", "tiny_lm", "--prompt-tokens", "4,40", "--output-tokens", "8", "--seconds", "0.3s"]
    done = run(
        *asked,
        "--load",
        "closed:3",
        "--slots",
        "1,3",
        "--budget",
        "ttft:1h,tpot:1h",
        "--max-miss",
        "0.3",
        "-o",
        str(tmp_path),
    )
    assert done.exit_code in (0, 4), done.output  # 4: other tests disturb the machine
    for told in ("Under closed:3", "goodput", "queue p50", "texts a run", "closed:3 in"):
        assert told in done.stdout
    one, three = json.loads((tmp_path / "bench.json").read_text("utf-8"))["loads"]
    assert (one["slots"], three["slots"]) == (1, 3)
    assert one["texts_a_run"] == 1.0 <= three["texts_a_run"] <= 3.0
    assert three["goodput"]["good"] == three["requests"] == three["all"]["answers"] >= 12
    assert {each["prompt_tokens"] for each in three["by_length"]} == {4, 40}
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == one["requests"] + three["requests"]
    assert all(len(row["account"]["token_at_ns"]) == 8 for row in rows)
    assert "Throughput against the time for each token" in (tmp_path / "bench.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run", "tiny_lm"], "is a language model: it answers --prompt TEXT"),
        (["run", "tiny_lm", "frame.jpg", "--seed", "3"], "it answers --prompt TEXT, and no SOURCE"),
        (["run", "tiny_lm", "frame.jpg", "--temperature", "0"], "it answers --prompt TEXT, and no SOURCE"),
        (
            ["run", "tiny_lm", "--prompt", "a", "--view"],
            "--view is for a single model of frames or a pipeline",
        ),
        (["bench", "tiny_lm", "--prompt-tokens", "4", "--budget", "9ms"], "each next one: --budget ttft:200ms"),
        (["run", "tiny_lm", "--prompt", "a", "--budget", "9ms"], "each next one: --budget ttft:200ms"),
        (["optimize", "tiny_lm", "-t", "cpu", "--budget", "9ms"], "each next one: --budget ttft:200ms"),
        (["bench", "digits_detector", "--budget", "ttft:9ms"], "limit a language model, and this is none"),
        (["optimize", "digits_detector", "-t", "cpu", "--budget", "ttft:9ms"], "and this is none"),
        (["bench", "tiny_lm", "--budget", "ttft:9kg"], "'9kg' is not a duration"),
        (["bench", "tiny_lm", "--budget", "itl:9ms"], "limits neither ttft nor tpot"),
        (
            ["bench", "tiny_lm", "--prompt-tokens", "4", "--energy"],
            "and tiny_lm is a language model",
        ),
        (["bench", "tiny_lm", "--load", "users:4"], "'users:4' is not a load"),
        (["bench", "tiny_lm", "--slots", "2,5000"], "5000 slots are more than 256"),
        (
            ["bench", "digits_detector", "--slots", "2"],
            "--slots is for a language model, and digits_detector is",
        ),
        (["run", "tiny_lm", "frame.jpg", "--prompt", "a"], "takes the place of SOURCE"),
        (
            ["run", "digits_detector", "--prompt", "a"],
            "--prompt is for a language model, and digits_detector",
        ),
        (["run", "tiny_lm", "--prompt", ""], "--prompt is empty"),
        (["run", "tiny_lm", "--chat", "--raw"], "--chat holds a conversation, which is never raw"),
        (["run", "tiny_lm", "--prompt", "a", "--seed", "3"], "--seed is for tokens that are drawn"),
        (["run", "tiny_lm", "--prompt", "a", "--temperature", "0", "--top-p", "0.5"], "--top-p is for tokens"),
        (["run", "tiny_lm", "--prompt", "a", "--top-k", "5"], "--top-k is for tokens"),
        (["run", "tiny_lm", "a.png", "--repetition-penalty", "2"], "it answers --prompt TEXT, and no SOURCE"),
        (["run", "tiny_lm", "--prompt", "a", "--stop", ""], "--stop is empty"),
        (["run", "tiny_lm", "--prompt", "a", "--guesses", "0", "--draft", "tiny_lm"], "leave one of them out"),
        (["bench", "tiny_lm", "--guesses", "0", "--draft", "tiny_lm"], "leave one of them out"),
        (["bench", "tiny_lm", "--context", "5000"], "tiny_lm has 1024"),
        (["bench", "tiny_lm", "--context", "64"], "the context has 64"),
        (["bench", "tiny_lm", "--context", "512", "--cold"], "leave --context or --cold out"),
        (["bench", "digits_detector", "--context", "64"], "--context is for a language model"),
        (["bench", "tiny_lm", "--slots", "0"], "'0' is no list of whole numbers from 1 on"),
        (["bench", "tiny_lm", "--budget", "ttft:200"], "'ttft:200' has no unit"),
        (["optimize", "tiny_lm", "-t", "cpu", "-o", __file__], "is a file"),
        (["run", "tiny_lm", "--prompt", "word " * 2000], "the context 1024: nothing could follow"),
        (["run", "no_such_model", "--prompt", "a"], "no model file or shipped model"),
        (
            ["bench", "digits_detector", "--output-tokens", "8"],
            "is for a language model or a server",
        ),
        (["run", "tiny_lm", "frame.jpg"], "it answers --prompt TEXT, and no SOURCE"),
        (["bench", "tiny_lm", "--prompt-tokens", "1000"], "the context has 1024"),
        (["bench", "tiny_lm", "--watts", "5"], "--watts belong to a device's price"),
        (["bench", "tiny_lm", "--device-price", "5", "--cloud-price", "1"], "are two machines"),
        (["quantize", "tiny_lm", "--target", "cpu"], "writes token after token"),
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


@pytest.mark.parametrize("command", [["run", "--prompt", "a"], ["bench"], ["serve"], ["compare", "tiny_lm"]])
def test_what_is_exported_first_is_told_with_the_command(command, tmp_path):
    (tmp_path / "small.gguf").write_bytes(b"GGUF" + bytes(60))
    for source in (str(tmp_path / "small.gguf"), f"hf:{tmp_path}", "hf:someone/model"):
        done = run(*command, source)
        assert done.exit_code == 1
        assert f"edgeopt export {source} -o model.onnx" in done.output
        assert "Traceback" not in done.output


@pytest.mark.parametrize("command", [["run", "--prompt", "a"], ["serve"]])
def test_a_key_that_no_recipe_has_is_named(command, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "recipe.toml").write_text('task = "generation"\ncontexts = 3\n', "utf-8")
    done = run(*command, str(tmp_path))
    assert done.exit_code == 1
    assert "unknown contexts" in done.output


def test_bench_tells_what_tokens_cost_and_what_stands_out():
    asked = ["bench", "tiny_lm", "--prompt-tokens", "8,300", "--output-tokens", "8", "--seconds", "0.2s"]
    done = run(*asked, "--cloud-price", "3600", "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["price_per_s"] == 1.0
    assert isinstance(found["findings"], list)
    assert "cost of 1000" in run(*asked, "--cloud-price", "3600").stdout


def test_bench_starts_a_language_model_in_fresh_processes():
    asked = ["bench", "tiny_lm", "--prompt-tokens", "8", "--output-tokens", "4", "--seconds", "0.1s"]
    done = run(*asked, "--cold", "--repeats", "1", "--json")
    assert done.exit_code == 0, done.output
    cold = json.loads(done.stdout)["cold"]
    assert {one["page_cache"] for one in cold["ways"]} <= {"warm", "cold"}
    for one in cold["runs"]:
        names = [point["name"] for point in one["points"]]
        assert names == ["interpreter", "import", "session", "first", "second"]
        assert all(point["took_ns"] > 0 for point in one["points"])


def test_bench_tells_what_tokens_cost_under_a_load():
    asked = ["bench", "tiny_lm", "--prompt-tokens", "8", "--output-tokens", "4", "--seconds", "0.1s"]
    done = run(*asked, "--load", "closed:2", "--cloud-price", "3600")
    assert done.exit_code == 0, done.output
    assert "per 1000 tokens of answers at" in done.stdout
    assert "tokens/s under closed:2" in done.stdout


@pytest.mark.parametrize("share", ["0", "100%"])
def test_a_share_that_no_run_can_prove_is_refused(share):
    asked = ["--prompt-tokens", "8", "--output-tokens", "4", "--budget", "ttft:1s", "--load", "closed:2"]
    done = run("bench", "tiny_lm", *asked, "--max-miss", share)
    assert done.exit_code == 1
    assert "no run can prove" in done.output


def test_a_recipe_whose_text_is_empty_is_one_line(tmp_path):
    copied = tmp_path / "lm"
    shutil.copytree(Path(__file__).parents[2] / "models" / "tiny_lm", copied)
    (copied / "held_out.txt").write_text("", "utf-8")
    done = run("bench", str(copied / "model.onnx"), "--prompt-tokens", "8")
    assert done.exit_code == 1
    assert "held_out.txt holds no text" in done.output
