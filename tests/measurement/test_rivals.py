"""Other engines beside a language model: what is refused, what a crash costs, and that they compute the same."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.generation import rivals
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.rivals import OWN, EngineRequest, llama_cpp
from edgeopt.measurement.generation.sides.apart import ApartModel, ApartWriter, EngineFailure
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import Origin
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.verbs.remote.places import PlacesThere
from edgeopt.verbs.remote.results import read_result, store_result
from edgeopt.workloads.generation import rival_sides

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
BRIEF = ("--prompt-tokens", "12", "--output-tokens", "4", "--seconds", "0.1s", "--threads", "1")
PROMPT = (51, 40, 41, 38, 52, 221, 15)
FIGURES = {"TTFT", "TPOT", "decode", "cold start", "peak memory"}


def run(*args: str):
    return CliRunner().invoke(cli, args)


def require(name: str) -> None:
    if why := rivals.find(name).why_unavailable:
        pytest.skip(why)


def test_the_folder_is_the_registry():
    assert rivals.names() == ("llama.cpp", "onnxruntime-genai", "openvino-genai")


@pytest.mark.parametrize(
    ("rivals_asked", "more", "said"),
    [
        ("llama", (), "no rival named 'llama'"),
        ("llama.cpp:q9", (), "no form of llama.cpp named 'q9'"),
        ("onnxruntime-genai:q4_0", (), "reads the compared file itself"),
        ("llama.cpp,llama.cpp", (), "names llama.cpp twice"),
        ("onnxruntime-genai", ("--rival-model", "llama.cpp=a.gguf"), "add --rivals llama.cpp"),
        ("onnxruntime-genai", ("--rival-model", "a.gguf"), "names no rival and its file"),
    ],
)
def test_a_wrong_wish_is_one_line_with_a_remedy(rivals_asked: str, more: tuple[str, ...], said: str):
    done = run("compare", "tiny_lm", "--rivals", rivals_asked, *more, *BRIEF)
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) <= 3


def test_a_rival_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    said = r"llama-cpp-python is not installed; openvino-genai is not .*\n  -> pip install llama-cpp-python, or '"
    with pytest.raises(EdgeoptError, match=said):
        edgeopt.compare("tiny_lm", rivals=("llama.cpp", "openvino-genai"), threads=1)


def test_one_model_alone_is_no_comparison():
    done = run("compare", "tiny_lm", *BRIEF)
    assert done.exit_code == 1
    assert "a comparison needs two" in done.output


def test_a_model_of_frames_takes_no_rivals():
    done = run("compare", "digits_detector", "digits_detector", "--rivals", "llama.cpp")
    assert done.exit_code == 1
    assert "--rivals is for a language model" in done.output


@pytest.fixture
def own() -> ApartModel:
    model, recipe = open_language_model(SHIPPED / "model.onnx", 1)
    with model:
        tokenizer = model.tokenizer
    request = EngineRequest(SHIPPED / "model.onnx", 1, 256)
    return ApartModel("mine", OWN, request, recipe.generation.begin, Origin(request.file, 1, 1), tokenizer)


def test_our_engine_answers_in_a_process_of_its_own_as_it_does_here(own: ApartModel):
    writer = ApartWriter(own)
    try:
        answer = writer.generate(PROMPT, AnswerOptions(most_tokens=6, ends=False))
        score = writer.score([list(PROMPT)])
    finally:
        writer.close()
    with open_language_model(SHIPPED / "model.onnx", 1)[0] as model:
        expected = [piece.token for piece in model.generate(PROMPT, AnswerOptions(most_tokens=6, ends=False))]
    assert list(answer.tokens) == expected
    assert len(answer.account.token_at_ns) == 6
    assert list(answer.account.token_at_ns) == sorted(answer.account.token_at_ns)
    assert score.likeliest[0][-1] == expected[0] or score.perplexity > 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_process_that_dies_is_told_by_its_signal(own: ApartModel):
    writer = ApartWriter(own)
    try:
        os.kill(writer._worker.pid, signal.SIGKILL)
        with pytest.raises(EngineFailure, match="mine: its process died of SIGKILL"):
            writer.generate(PROMPT, AnswerOptions(most_tokens=2))
    finally:
        writer.close()


def test_an_engine_that_refuses_its_file_says_so(own: ApartModel, tmp_path: Path):
    request = EngineRequest(tmp_path / "model.onnx", 1, 256)
    with pytest.raises(EngineFailure, match="mine: "):
        ApartWriter(ApartModel("mine", OWN, request, (), own.origin, own.tokenizer))


def test_onnxruntime_genai_gives_our_tokens_and_every_figure(tmp_path: Path):
    require("onnxruntime-genai")
    options = SideOptions(
        rivals=("onnxruntime-genai",),
        prompt_tokens=12,
        output_tokens=4,
        seconds=0.1,
        threads=1,
        eval=str(SHIPPED / "held_out.txt"),
        out=tmp_path / "out",
    )
    result = edgeopt.compare("tiny_lm", options=options)
    told = json.loads((tmp_path / "out" / "compare.json").read_text("utf-8"))
    mine, other = told["rows"]
    assert other["label"] == "onnxruntime-genai"
    same, of = other["more"]["same answers"].split(" of ")
    assert same == of
    assert int(of) >= 8
    assert other["quality"]["loss"]["value"] == pytest.approx(0.0, abs=1e-4)
    assert set(other["ratios"]) == {"answer", "TTFT", "TPOT"}
    for row in (mine, other):
        assert set(row["figures"]) == FIGURES
        for figure in row["figures"].values():
            assert 0 < figure["low"] <= figure["value"] <= figure["high"]
        assert row["settings"]["threads"] == "1"
        assert row["size_bytes"] == (SHIPPED / "model.onnx").stat().st_size
    page = (tmp_path / "out" / "compare.md").read_text("utf-8")
    assert "cold start" in page
    assert "onnxruntime-genai" in page
    store_result(result, tmp_path / "result.npz")
    read = read_result(tmp_path / "result.npz", Comparison, None, "ssh://board", PlacesThere("/@"))
    assert read.rows[1].facts.figures == result.rows[1].facts.figures


def test_a_rival_that_fails_costs_one_line_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rival_sides, "STARTS", 1)
    require("onnxruntime-genai")
    (tmp_path / "genai_config.json").write_text('{"model": {}}', "utf-8")
    models = ("tiny_lm", str(SHIPPED / "model.onnx"))
    named = ("--rival-model", f"onnxruntime-genai={tmp_path}")
    done = run("compare", *models, "--rivals", "onnxruntime-genai", *named, *BRIEF, "--format", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert len(told["rows"]) == 2
    assert [note["detail"] for note in told["notes"] if "onnxruntime-genai left out" in note["detail"]]


@pytest.mark.parametrize("name", ["llama.cpp:f32", "openvino-genai:f16"])
def test_an_engine_of_gguf_gives_our_tokens(name: str):
    require(name.partition(":")[0])
    held_out = str(SHIPPED / "held_out.txt")
    options = SideOptions(rivals=(name,), prompt_tokens=12, output_tokens=4, seconds=0.1, threads=1, eval=held_out)
    mine, other = edgeopt.compare("tiny_lm", options=options).rows
    assert other.facts.more["same answers"].startswith("8 of 8") or name == "openvino-genai:f16"
    assert other.label == name.replace(":", " ")
    assert abs(other.quality.loss.value) < 0.01
    assert other.quality.agreement > 0.95
    assert other.facts.figures.keys() == FIGURES
    assert mine.facts.settings["engine"] != other.facts.settings["engine"]


def test_a_form_in_blocks_meets_rivals_with_as_many_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    require("openvino-genai")
    monkeypatch.setattr(rival_sides, "STARTS", 1)
    for file in ("recipe.toml", "tokenizer.json"):
        text = (SHIPPED / file).read_text("utf-8")
        text = text.replace('calib = "held_out.txt"', "").replace('draft = "draft/model.onnx"', "")
        (tmp_path / file).write_text(text, "utf-8")
    save_model(make_weight_only(load_model(SHIPPED / "model.onnx"), 4, tables=True).model, tmp_path / "model.onnx")
    options = SideOptions(rivals=("openvino-genai",), prompt_tokens=12, output_tokens=4, seconds=0.1, threads=1)
    with pytest.raises(EdgeoptError, match="does not hold its weights in float"):
        edgeopt.compare(str(tmp_path), options=options)
    named = ("openvino-genai=tiny_lm",)
    result = edgeopt.compare(str(tmp_path), options=options, rival_models=named)
    assert [row.label for row in result.rows][1:] == ["openvino-genai q4_0"]
    assert result.rows[1].size_bytes < 1 << 20


def test_a_build_of_llama_cpp_that_leaves_avx512_unused_is_told(monkeypatch: pytest.MonkeyPatch):
    info = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | LIMIT = 4 | "
    assert llama_cpp._features(info) == "SSE3 AVX2 OPENMP LIMIT=4"
    for flags, said in ((frozenset({"avx512f", "avx2"}), "without the AVX-512"), (frozenset({"avx2"}), "")):
        monkeypatch.setattr(llama_cpp, "cpu_flags", lambda flags=flags: flags)
        assert llama_cpp._lacking("CPU : AVX2 = 1 | ").startswith(said)
        assert bool(llama_cpp._lacking("CPU : AVX2 = 1 | ")) == bool(said)
    assert not llama_cpp._lacking("CPU : AVX2 = 1 | AVX512 = 1 | ")


def test_no_rival_is_found_by_a_path():
    with pytest.raises(NotFoundError):
        rivals.find("../llama_cpp")


def test_every_rival_names_its_package():
    for name in rivals.names():
        rival = rivals.find(name)
        installed = find_spec(rival.module) is not None
        assert (rival.why_unavailable == "") == installed
        assert rival.own_files
