"""`inspect`, `run` and `serve` from Python, for every kind: what the command does, as objects; or one line."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import cv2
import pytest
from click.testing import CliRunner
from exported_pairs import TONE, unpacked
from fixture_pipelines import shop
from headless_videos import write_piped
from seeing_models import picture, write_exported
from served import served_here
from speech_pairs import chirps, speech_model

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.inspection.inspect import Inspection
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.report.facts import WorkloadFacts
from edgeopt.running.answers import RunResult
from edgeopt.runtime.decoding.generation import Piece
from edgeopt.runtime.decoding.speech.segments import SpeechSegment
from edgeopt.steps.quantize.inspection.view import QuantizedView
from edgeopt.workloads import kind_of, kinds, verbs
from edgeopt.workloads.generation.options import GenerationRun

CODE = "def find(crops, classes):\n    return ['a', 'b']\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    unpacked("whisper", folder / "hears")
    unpacked("t5", folder / "translates")
    speech_model(folder / "speech")
    write_exported(folder / "seeing")
    write_wav(folder / "tone.wav", TONE)
    write_wav(folder / "long.wav", chirps(65))
    (folder / "pictures").mkdir()
    for seed in (1, 2):
        cv2.imwrite(str(folder / "pictures" / f"{seed}.png"), picture(seed))
    (folder / "app").mkdir()
    (folder / "app" / "shop.py").write_text(CODE, "utf-8")
    shop(folder / "shop")
    return folder


Maker = Callable[[Path], tuple[str, str | None, dict[str, Any], list[str]]]
"""A workload, what it answers, and the options: of Python, and of the command line."""
LIMIT = {"output_tokens": 4, "threads": 1}
WORDS = ["--output-tokens", "4", "--threads", "1"]


def detector(place: Path) -> Any:
    return "digits_detector", str(place / "pictures"), {"threads": 1}, ["--threads", "1"]


def language_model(place: Path) -> Any:
    return "tiny_lm", None, {"prompt": "import os", **LIMIT}, ["--prompt", "import os", *WORDS]


def seeing(place: Path) -> Any:
    image = place / "pictures" / "1.png"
    words = ["--prompt", "What is it?", "--image", str(image), *WORDS]
    return str(place / "seeing" / "model.onnx"), None, {"prompt": "What is it?", "image": (image,), **LIMIT}, words


def hearing(place: Path) -> Any:
    return str(place / "hears"), str(place / "tone.wav"), LIMIT, WORDS


def transcribing(place: Path) -> Any:
    return str(place / "speech"), str(place / "long.wav"), {"language": "en", "threads": 1}, ["--language", "en"]


def translating(place: Path) -> Any:
    return str(place / "translates"), None, {"prompt": "hello there", **LIMIT}, ["--prompt", "hello there", *WORDS]


def pipeline(place: Path) -> Any:
    app = place / "app"
    return str(place / "shop" / "bundle"), str(place / "pictures"), {"code": app}, ["--code", str(app)]


RUNS: tuple[Maker, ...] = (detector, language_model, seeing, hearing, transcribing, translating, pipeline)
TIMES = ("at_ms", "age_ms", "latency_ms", "missed", "artefact")


def test_every_kind_that_runs_is_tried_here(place):
    tried = {kind_of(make(place)[0]).name for make in RUNS}
    assert tried == {kind.name for kind in kinds() if kind.has("run")}


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_answers_are_those_of_the_command_line_and_have_its_json(place, make):
    source, sample, wishes, words = make(place)
    result = edgeopt.run(source, sample, **wishes)
    assert isinstance(result, RunResult)
    assert result.exit_code == 0
    assert result.answers
    shown = CliRunner().invoke(cli, ["run", source, *([sample] if sample else []), *words, "--json"])
    assert shown.exit_code == 0, shown.output
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    own = json.loads(json.dumps(result.as_json(), allow_nan=False))["answers"]
    assert list(own[0]) == list(lines[0])
    assert [untimed(answer) for answer in own] == [untimed(line) for line in lines]


def untimed(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in TIMES}


def test_a_program_reads_answers_as_objects(place):
    result = edgeopt.run("digits_detector", place / "pictures", threads=1)
    assert [Path(answer.name).name for answer in result.answers] == ["1.png", "2.png"]
    assert result.answers[0].answer.boxes.shape[1:] == (4,)
    assert result.stats.served == 2
    assert any("recipe" in str(note) for note in result.notes)
    assert pickle.loads(pickle.dumps(result)).answers[0].as_json() == result.answers[0].as_json()
    with pytest.raises(FrozenInstanceError):
        result.seconds = 0
    written = edgeopt.run("tiny_lm", prompt="import os", **LIMIT)
    assert written.text == "".join(piece.text for piece in written.answers)
    assert len(written.answers) == len(written.account.token_at_ns) == 4
    assert all(isinstance(piece, Piece) for piece in written.answers)
    heard = edgeopt.run(place / "speech", place / "long.wav", language="en", threads=1)
    assert all(isinstance(segment, SpeechSegment) for segment in heard.answers)
    assert heard.language == "en"


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_a_function_hears_each_answer_in_place_of_the_result(place, make):
    source, sample, wishes, _ = make(place)
    answers: list[Any] = []
    result = edgeopt.run(source, sample, hear=answers.append, **wishes)
    assert result.answers == ()
    assert answers
    assert all(isinstance(answer.as_json(), dict) for answer in answers)


def test_an_error_of_the_function_that_hears_ends_the_run(place):
    def hear(answer: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        edgeopt.run("digits_detector", place / "pictures", hear=hear, threads=1)


def test_ctrl_c_is_not_swallowed(place):
    def hear(answer: Any) -> None:
        raise KeyboardInterrupt

    for make in (detector, language_model, transcribing, translating):
        source, sample, wishes, _ = make(place)
        with pytest.raises(KeyboardInterrupt):
            edgeopt.run(source, sample, hear=hear, **wishes)


def test_lines_of_a_run_are_said(place):
    said: list[str] = []
    result = edgeopt.run("digits_detector", place / "pictures", threads=1, view=True, say=said.append)
    assert said[0].startswith("view: http://127.0.0.1:")
    assert result.viewed


def test_options_objects_hold_and_wishes_go_over_them():
    options = GenerationRun(prompt="import os", output_tokens=9, threads=1)
    assert len(edgeopt.run("tiny_lm", options=options, output_tokens=2).answers) == 2


def test_a_conversation_asks_a_function(place):
    words = iter(["hello", "and then?"])
    told: list[Any] = []
    result = edgeopt.run("tiny_lm", chat=True, ask=lambda: next(words, None), hear=told.append, **LIMIT)
    assert len(result.texts) == len(result.accounts) == 2
    assert "".join(piece.text for piece in told).startswith(result.texts[0])
    with pytest.raises(EdgeoptError, match="nobody is there to be asked"):
        edgeopt.run("tiny_lm", chat=True, **LIMIT)


def test_what_ends_a_run_is_raised_after_its_answers(tmp_path):
    for seed in range(4):
        cv2.imwrite(str(tmp_path / f"{seed}.png"), picture(seed))
    answers: list[Any] = []

    def hear(answer: Any) -> None:
        answers.append(answer)
        for seed in (2, 3):  # the second may be read already
            (tmp_path / f"{seed}.png").unlink(missing_ok=True)

    with pytest.raises(EdgeoptError, match="does not exist"):
        edgeopt.run("digits_detector", tmp_path, hear=hear, threads=1)
    assert answers


@pytest.mark.parametrize(
    ("source", "sample", "wishes", "problem"),
    [
        ("http://localhost:8000/v1", None, {}, "a server is measured"),
        ("digits_detector", None, {"prompt": "hi"}, "--prompt is for a language model"),
        ("tiny_lm", None, {"prompt": "hi", "fps": 30.0}, "--fps is for"),
        ("digits_detector", None, {}, "Missing argument 'SOURCE'"),
        ("tiny_lm", None, {}, "it answers --prompt TEXT"),
        ("digits_detector", "no/such.jpg", {}, "no/such.jpg"),
    ],
)
def test_what_a_kind_does_not_run_is_one_line(source, sample, wishes, problem):
    with pytest.raises(EdgeoptError) as refused:
        edgeopt.run(source, sample, **wishes)
    assert problem in refused.value.problem
    assert "\n" not in refused.value.problem
    with pytest.raises(TypeError, match=r"run\(\) got an unexpected keyword argument 'promt'"):
        edgeopt.run("tiny_lm", promt="hi")


def test_answers_without_an_end_are_not_kept(place, monkeypatch):
    from edgeopt.runtime.stream.sources.pictures import Pictures

    monkeypatch.setattr(Pictures, "is_live", True)
    monkeypatch.setattr(Pictures, "count", property(lambda self: None, lambda self, value: None), raising=False)
    with pytest.raises(EdgeoptError, match="has no end") as refused:
        edgeopt.run("digits_detector", place / "pictures", threads=1)
    assert "hear=" in refused.value.remedy
    assert len(edgeopt.run("digits_detector", place / "pictures", threads=1, limit=1).answers) == 1


@pytest.mark.parametrize("name", ["ask", "hear"])
def test_ctrl_c_in_a_conversation_reaches_the_program(name):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    functions = {"ask": lambda: "import os", "hear": lambda piece: None, name: interrupted}
    with pytest.raises(KeyboardInterrupt):
        edgeopt.run("tiny_lm", chat=True, **functions, **LIMIT)


def test_a_video_has_an_end_though_its_header_does_not_tell_it(tmp_path):
    assert len(edgeopt.run("digits_detector", write_piped(tmp_path / "piped", 8), threads=1).answers) == 8


SOURCES = {"endpoint": "http://localhost:8000/v1", "pipeline": "shop/bundle"}
REQUIRED = {"check": ["--baseline", "b.json"], "optimize": ["--target", "cpu"]}
REFUSED = [(kind, verb) for kind in kinds() for verb in verbs() if not kind.has(verb)]


@pytest.mark.parametrize(("kind", "verb"), REFUSED, ids=lambda value: getattr(value, "name", value))
def test_a_kind_refuses_a_verb_in_the_same_line_from_both_sides(place, kind, verb):
    source = SOURCES[kind.name]
    source = str(place / source) if (place / source).exists() else source
    sources = [source, source] if verb == "compare" else [source]
    problem, remedy = kind.refusals[verb]
    shown = CliRunner(env={"COLUMNS": "400"}).invoke(cli, [verb, *sources, *REQUIRED.get(verb, [])])
    assert shown.exit_code == 1
    assert shown.output == f"error: {problem}\n  -> {remedy}\n"
    with pytest.raises(EdgeoptError) as refused:
        getattr(edgeopt, verb)(*sources)
    assert (refused.value.problem, refused.value.remedy) == (problem, remedy)


# inspect

FACTS: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
    ("digits_detector", {"target": "cpu", "nodes": True}, ["--target", "cpu", "--nodes"]),
    ("tiny_lm", {}, []),
    ("seeing/model.onnx", {}, []),
    ("hears", {}, []),
    ("translates", {}, []),
)


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """A result as JSON with the hash of its machine alone: other facts of it change from moment to moment."""
    return values | {"environment": values["environment"]["hash"]}


@pytest.mark.parametrize(
    ("source", "wishes", "words"), FACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_facts_are_those_of_the_command_line(place, source, wishes, words):
    source = str(place / source) if (place / source).exists() else source
    facts = edgeopt.inspect(source, **wishes)
    assert isinstance(facts, Inspection)
    assert facts.parameters > 0
    assert (facts.partition is not None) is bool(wishes)
    shown = CliRunner().invoke(cli, ["inspect", source, *words, "--format", "json"])
    assert timeless(json.loads(shown.stdout)) == timeless(json.loads(json.dumps(facts.as_json())))


def test_integers_of_a_quantized_model_are_facts_too(place, tmp_path):
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    constants = [
        numpy_helper.from_array(np.full((4, 4), 3, np.int8), "w"),
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "q", ports[:1], ports[1:], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "q.onnx")
    view = edgeopt.inspect(tmp_path / "q.onnx", quantized=True)
    assert isinstance(view, QuantizedView)
    assert view.tensors[0].scales == (0.5,)
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "q.onnx"), "--quantized", "--format", "json"])
    assert timeless(json.loads(shown.stdout)) == timeless(json.loads(json.dumps(view.as_json())))


@pytest.mark.parametrize(
    ("source", "wishes", "problem"),
    [
        ("http://localhost:8000/v1", {}, "a server is measured"),
        ("shop/bundle", {}, "a pipeline has no whole graph"),
        ("digits_detector", {"calib": "pictures"}, "--calib and --float belong to --quantized"),
        ("no_such_model", {}, "no_such_model"),
    ],
)
def test_what_a_kind_does_not_inspect_is_one_line(place, source, wishes, problem):
    source = str(place / source) if (place / source).exists() else source
    with pytest.raises(EdgeoptError) as refused:
        edgeopt.inspect(source, **wishes)
    assert problem in refused.value.problem
    assert "\n" not in refused.value.problem


def test_facts_are_frozen():
    assert issubclass(Inspection, WorkloadFacts)
    with pytest.raises(FrozenInstanceError):
        edgeopt.inspect("tiny_lm").opset = 1


# serve


def fetch(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}{path}", data, kind), timeout=30) as reply:
        return json.loads(reply.read())


@served_here
def test_a_server_answers_inside_the_with_and_ends_with_it():
    with edgeopt.serve("tiny_lm", port=0, threads=1) as server:
        assert server.names == ("tiny_lm",)
        assert repr(server) == f"RunningServer({server.address!r}, 'tiny_lm')"
        reply = fetch(server.address, "/v1/completions", {"model": "tiny_lm", "prompt": "import", "max_tokens": 3})
        assert reply["usage"]["completion_tokens"] == 3
    assert str(server.stop()) == "tiny_lm: 1 answer"
    with pytest.raises(URLError):
        fetch(server.address, "/healthz")


@served_here
def test_several_models_of_several_kinds_are_one_server(place):
    said: list[str] = []
    sources = ("tiny_lm", place / "hears", place / "translates", place / "seeing" / "model.onnx")
    with edgeopt.serve(*sources, port=0, threads=1, say=said.append) as server:
        assert len(server.names) == 4
        assert fetch(server.address, "/healthz")["models"].keys() == {*server.names}
        reply = fetch(server.address, "/v1/completions", {"model": "tiny_lm", "prompt": "import", "max_tokens": 2})
        assert reply["model"] == "tiny_lm"
    assert "4 models" in said[0]
    assert server.stop().answered == 1


@served_here
@pytest.mark.parametrize(
    ("sources", "wishes", "problem"),
    [
        (("shop/bundle",), {}, "pipelines are not served so far"),
        (("http://localhost:8000/v1",), {}, "a server is measured"),
        (("digits_detector",), {}, "digits_detector is no bundle"),
        (("digits_detector",), {"guesses": 2}, "--guesses is for a language model"),
        (("tiny_lm", "tiny_lm"), {"name": "x"}, "--name is for one model"),
        (("hears",), {"context": 64}, "--context is not for encoders with decoders"),
        (("tiny_lm",), {"host": "no.such.host.invalid"}, "is no address of this machine"),
        ((), {}, "nothing is named that could be served"),
    ],
)
def test_what_is_not_served_is_one_line_and_nothing_is_left_behind(place, sources, wishes, problem):
    sources = [str(place / source) if (place / source).exists() else source for source in sources]
    with pytest.raises(EdgeoptError) as refused:
        edgeopt.serve(*sources, **{"port": 0, **wishes})
    assert problem in refused.value.problem
    assert "\n" not in refused.value.problem


@served_here
def test_an_option_of_no_kind_is_a_wrong_argument():
    with pytest.raises(TypeError, match=r"serve\(\) got an unexpected keyword argument 'prot'"):
        edgeopt.serve("tiny_lm", prot=1)


WAITING = """
import signal
import edgeopt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
server = edgeopt.serve("tiny_lm", port=0, threads=1)
print(server.address, flush=True)
print(server.wait(), flush=True)
"""
FORGOTTEN = """
import edgeopt
server = edgeopt.serve("tiny_lm", port=0, threads=1)
print(server.address, flush=True)
"""


@served_here
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGTERM to be heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_waits_ends_by_a_signal_with_its_answers_finished(number):
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            body = {"model": "tiny_lm", "prompt": "import os", "max_tokens": 500, "stream": True, "ignore_eos": True}
            request = Request(
                f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urlopen(request, timeout=60) as reply:
                assert reply.readline().startswith(b"data: {")
                process.send_signal(number)
                assert reply.read().endswith(b"data: [DONE]\n\n")
            assert process.wait(60) == 0
            assert process.stdout.read() == "tiny_lm: 1 answer\n"
        finally:
            process.kill()


@served_here
def test_a_program_that_forgets_its_server_ends():
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stderr == ""


# imports


def test_names_are_there_without_importing_what_is_behind_them():
    code = (
        "import sys, edgeopt\n"
        "assert {'inspect', 'run', 'serve'} <= {*dir(edgeopt)}\n"
        "print([name for name in ('numpy', 'onnx', 'edgeopt.verbs', 'edgeopt.workloads') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
