"""Language models against each other and against a baseline: speed in turns, perplexity, size, cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_decoders import bundle_small, export_small

from edgeopt.cli import cli

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
BRIEF = ("--prompt-tokens", "6", "--output-tokens", "3", "--seconds", "0.1s", "--threads", "1")
WIDE = ("--latency-ratio", "1000")  # no timing decides


def run(*args: str):
    return CliRunner().invoke(cli, args)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "held_out.txt"
    file.write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:6000], "utf-8")
    return str(file)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def bundle(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_small(small, tmp_path_factory.mktemp("deployed") / "mine")


def test_the_same_model_compared_loses_nothing(bundle, small, text):
    done = run("compare", str(bundle), str(small), "--eval", text, *BRIEF, "--format", "json")
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)["rows"]
    assert first["label"] == "mine"
    assert second["quality"]["metric"] == "perplexity"
    assert second["quality"]["loss"]["name"] == "rise"
    assert second["quality"]["loss"]["value"] == pytest.approx(0.0, abs=1e-9)
    assert second["quality"]["agreement"] == 1.0
    assert set(second["ratios"]) == {"answer", "TTFT", "TPOT"}


def test_models_of_other_tokens_are_compared_by_speed_alone(bundle, text):
    done = run("compare", str(bundle), "tiny_lm", "--eval", text, *BRIEF)
    assert done.exit_code == 0, done.output
    assert "no perplexity is compared: their tokens differ" in done.stdout
    assert "nan" not in done.stdout.lower()


def test_the_gate_passes_the_same_model_and_fails_a_worse_one(bundle, small, text, tmp_path):
    baseline = tmp_path / "baseline.json"
    written = run("check", str(small), "-b", str(baseline), "--update", "--eval", text, *BRIEF)
    assert written.exit_code == 0, written.output
    same = run("check", str(bundle), "-b", str(baseline), "--eval", text, *BRIEF, *WIDE, "--judge-noisy")
    assert same.exit_code == 0, same.output
    other = run("check", "tiny_lm", "-b", str(baseline), "--eval", text, *BRIEF, "--skip", "latency")
    assert other.exit_code == 2, other.output  # larger by far
    assert "size" in other.output
    over = run(
        "check",
        str(bundle),
        "-b",
        str(baseline),
        "--eval",
        text,
        *BRIEF,
        *WIDE,
        "--judge-noisy",
        "--budget",
        "tpot:1us",
    )
    assert over.exit_code == 2, over.output
    assert "budget TPOT" in over.output


def test_a_baseline_that_no_text_judged_says_what_it_does_not_guard(small, tmp_path):
    skipped = ("--skip", "latency,accuracy")
    written = run("check", str(small), "-b", str(tmp_path / "b.json"), "--update", *BRIEF, *skipped)
    assert written.exit_code == 0, written.output
    assert " ".join(written.output.split()).count("holds no perplexity: check guards speed, size and cache, not") == 1


def test_the_gate_fails_a_perplexity_that_rose(small, text, tmp_path):
    better, baseline = export_small(tmp_path / "better", rope_theta=100.0), tmp_path / "baseline.json"
    run("check", str(better), "-b", str(baseline), "--update", "--eval", text, *BRIEF, "--skip", "latency")
    done = run("check", str(small), "-b", str(baseline), "--eval", text, *BRIEF, "--skip", "latency", "--json")
    assert done.exit_code == 2, done.output
    found = {one["name"]: one for one in json.loads(done.stdout)["results"]}["perplexity"]
    assert found["verdict"] == "FAIL"
    assert found["measured"] > 0.05


def test_a_baseline_whose_model_is_gone_judges_by_what_it_holds(small, text, tmp_path):
    copied = tmp_path / "model"
    shutil.copytree(small.parent, copied)
    baseline = tmp_path / "baseline.json"
    run("check", str(copied), "-b", str(baseline), "--update", "--eval", text, *BRIEF)
    shutil.rmtree(copied)
    found = run("check", str(small), "-b", str(baseline), "--eval", text, *BRIEF, "--skip", "latency", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert {one["name"]: one["verdict"] for one in told["results"]}["perplexity"] == "PASS"
    assert any("is not there any more" in one["detail"] for one in told["notes"])


def test_times_of_other_lengths_are_not_compared_with_those_in_the_file(small, text, tmp_path):
    copied, baseline = tmp_path / "model", tmp_path / "baseline.json"
    shutil.copytree(small.parent, copied)
    run("check", str(copied), "-b", str(baseline), "--update", "--eval", text, *BRIEF)
    shutil.rmtree(copied)
    longer = [*BRIEF[:3], "4", *BRIEF[4:]]
    found = json.loads(run("check", str(small), "-b", str(baseline), "--eval", text, *longer, "--json").stdout)
    (latency,) = {one["detail"] for one in found["results"] if one["name"].startswith("latency")}
    assert latency.endswith("and it was measured with output tokens 3, not 4")


def test_a_model_that_was_replaced_is_judged_by_what_the_baseline_holds(small, text, tmp_path):
    copied, baseline = tmp_path / "model", tmp_path / "baseline.json"
    shutil.copytree(small.parent, copied)
    run("check", str(copied), "-b", str(baseline), "--update", "--eval", text, *BRIEF, "--skip", "latency")
    other = export_small(tmp_path / "other", rope_theta=100.0)
    shutil.copytree(other.parent, copied, dirs_exist_ok=True)
    found = run("check", str(small), "-b", str(baseline), "--eval", text, *BRIEF, "--skip", "latency", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert any("is another one now" in note["detail"] for note in told["notes"])
    assert {one["name"]: one["verdict"] for one in told["results"]}["perplexity"] == "PASS"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["compare", "tiny_lm"], "a comparison needs two, 1 given"),
        (
            ["compare", "tiny_lm", "digits_detector"],
            "tiny_lm is a language model, and digits_detector is a single model of frames",
        ),
        (
            ["compare", "digits_detector", "digits_detector", "--prompt-tokens", "4"],
            "--prompt-tokens is for a language model, and digits_detector",
        ),
        (["compare", "tiny_lm", "tiny_lm", "--prompt-tokens", "2000"], "the context of"),
        (["check", "tiny_lm", "-b", "nothing.json"], "does not exist"),
        (["check", "tiny_lm", "-b", "nothing.json", "--skip", "placement"], "no check of a language model named"),
        (["check", "tiny_lm", "-b", "nothing.json", "--starts", "4"], "--starts is for a single model of frames"),
        (
            ["check", "digits_detector", "-b", "nothing.json", "--budget", "33ms"],
            "--budget is for a language model, and digits_detector",
        ),
    ],
)
def test_what_does_not_go_is_one_line(args, told):
    done = run(*args)
    assert done.exit_code == 1
    assert told in done.output
    assert "Traceback" not in done.output


def test_a_damaged_baseline_is_told(tmp_path):
    file = tmp_path / "baseline.json"
    file.write_text('{"schema": 5, "command": "check --update", "kind": "generation"}', "utf-8")
    assert "is damaged" in run("check", "tiny_lm", "-b", str(file)).output
    file.write_text('{"schema": 5, "command": "check", "kind": "generation"}', "utf-8")
    assert "is no baseline of edgeopt check" in run("check", "tiny_lm", "-b", str(file)).output
    file.write_text('{"schema": 1, "kind": "edgeopt baseline of a language model"}', "utf-8")
    assert "has schema 1, this edgeopt reads 5" in run("check", "tiny_lm", "-b", str(file)).output
