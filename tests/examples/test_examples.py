"""The examples in other languages, built and run as their pages say, give the answers of the Python runtime."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from fixture_brief import briefly
from fixture_bundles import packed
from onnx import TensorProto, helper, numpy_helper
from small_decoders import bundle_small
from two_graphs import GRAIN, bundle_pair, write_pair

import edgeopt
from edgeopt.executors import SessionOptions
from edgeopt.executors.browser import EXECUTOR as BROWSER
from edgeopt.executors.mnn import mnn_file
from edgeopt.executors.mnn.file import MnnFile, read_mnn_file
from edgeopt.executors.onnxruntime.flash_attention import VARIABLE
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.measurement.opening.given import open_given
from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import make_artefact, read_bundle, write_bundle
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps.convert.kv_cache import cache_ranges, make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import find_target

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TINY = ROOT / "models" / "tiny_lm" / "model.onnx"
PICTURES = ROOT / "models" / "digits_detector" / "calib"
HEADERS = tuple(Path(one) / "onnxruntime" for one in ("/usr/include", "/usr/local/include"))
SIZES = ((160, 160), (240, 500), (97, 61))
"""Height and width: as the model has it, wider, smaller."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the shipped detector, and of a fallback behind it, whose models hold both parts."""
    given, target = open_given("digits_detector", "cpu", None), find_target("cpu-x86-vnni")
    made = embed_postprocess(embed_preprocess(given.model, given.recipe), given.recipe)
    folder = tmp_path_factory.mktemp("examples")
    models = [
        (make_artefact(name, made.data, "fp32", target, 1, made.inputs, made.outputs), made.data)
        for name in ("model.onnx", "fallback.onnx")
    ]
    write_bundle(folder, models, target, given.recipe.with_embedded(Embedded.PREPROCESS, Embedded.POSTPROCESS), {}, {})
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a classifier whose scores are the means of the channels."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", (1, 3, 24, 24)), ("y", (1, 3, 1, 1)))
    ]
    graph = helper.make_graph([helper.make_node("GlobalAveragePool", ["x"], ["y"])], "means", *ends)
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "means")
    recipe = replace(find_recipe("imagenet").with_size(24, 24), class_names=("red", "green", "blue"))
    made = embed_postprocess(embed_preprocess(model, recipe), recipe)
    target, folder = find_target("cpu-x86-vnni"), tmp_path_factory.mktemp("classifier")
    models = [packed("model.onnx", "fp32", made.data, target, 1)]
    write_bundle(folder, models, target, recipe.with_embedded(Embedded.PREPROCESS, Embedded.POSTPROCESS), {}, {})
    return folder


@pytest.fixture(scope="module")
def named(classifier: Path, pictures: list[Path]) -> list[dict[str, Any]]:
    """Python's classes of the first picture."""
    with edgeopt.Runtime.load(classifier) as runtime:
        found = runtime.task.as_json(runtime.predict(cv2.imread(str(pictures[0]))))["classes"]
    assert {one["class"] for one in found} == {"red", "green", "blue"}
    return found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of several sizes, without loss."""
    folder = tmp_path_factory.mktemp("pictures")
    chosen = sorted(PICTURES.iterdir())[1 : 1 + len(SIZES)]
    for i, (source, (height, width)) in enumerate(zip(chosen, SIZES, strict=True)):
        cv2.imwrite(str(folder / f"{i}.png"), cv2.resize(cv2.imread(str(source)), (width, height)))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def wanted(bundle: Path, pictures: list[Path]) -> list[list[dict[str, Any]]]:
    """Python's answers."""
    with edgeopt.Runtime.load(bundle) as runtime:
        answers = [runtime.task.as_json(runtime.predict(cv2.imread(str(one)))) for one in pictures]
    assert all(one["detections"] for one in answers)
    return [one["detections"] for one in answers]


def require_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Compare two answers: engines of other versions may differ in the last digits."""
    assert [one["class"] for one in found] == [one["class"] for one in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine["score"] == pytest.approx(theirs["score"], abs=2e-3)
        np.testing.assert_allclose(mine["box"], theirs["box"], atol=0.2)


def require_named(found: list[dict[str, Any]], named: list[dict[str, Any]]) -> None:
    """Compare the classes of two answers."""
    keys = ("class", "index")
    assert [[one[key] for key in keys] for one in found] == [[one[key] for key in keys] for one in named]
    np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in named], atol=2e-3)


def tools(*names: str) -> list[str]:
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    return [str(shutil.which(name)) for name in names]


@pytest.fixture(scope="module")
def library() -> Path:
    """ONNX Runtime's library of the Python wheel, with headers on this machine that fit it."""
    found = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        pytest.skip("this wheel of onnxruntime holds no libonnxruntime.so")
    if not any((one / "onnxruntime_cxx_api.h").is_file() for one in HEADERS):
        pytest.skip("no headers of ONNX Runtime: run examples/onnxruntime_headers.sh /usr/local/include")
    return found[-1]


def built(language: str, library: Path, folder: Path, program: str = "edgeopt_run") -> Path:
    """Build an example in a folder of its own; skip where a library for it is not installed."""
    cmake, _ = tools("cmake", "gcc" if language == "c" else "g++")
    given = ["-DCMAKE_BUILD_TYPE=Debug", f"-DONNXRUNTIME_LIBRARY={library}"]
    made = subprocess.run(
        [cmake, "-S", str(EXAMPLES / language), "-B", str(folder), *given], capture_output=True, text=True
    )
    missing = re.search(r"(Could not find \w+ using the following files: \S+|could not find any of[^.]*)", made.stderr)
    if made.returncode and (missing or "nlohmann_json" in made.stderr):
        pytest.skip(" ".join(made.stderr.split())[:200])
    assert made.returncode == 0, made.stderr
    subprocess.run([cmake, "--build", str(folder)], check=True, capture_output=True, text=True)
    return folder / program


@pytest.fixture(scope="module")
def generator(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that generates."""
    return built("cpp_generate", library, tmp_path_factory.mktemp("generator"), "edgeopt_generate")


def require_tokens_of_python(
    program: Path, bundle: Path, prompt_tokens: int = 2 * GRAIN + 1
) -> tuple[list[int], list[int]]:
    """Assert that the program writes the tokens of `Runtime.generate`; return a prompt of several runs, and them."""
    with edgeopt.Runtime.load(bundle, threads=1) as runtime:
        prompt = runtime.language_model.tokenizer.encode("import os\n\ndef main(" * 5)[:prompt_tokens]
        answer = runtime.generate(prompt, most_tokens=60, guesses=0, exact=False)
        pieces = [piece.token for piece in answer]
        expected = pieces[:-1] if answer.account.reason == "end" else pieces
    assert len(expected) > 20
    assert written_by(program, bundle, prompt) == (expected, "")
    return prompt, expected


def written_by(program: Path, bundle: Path, prompt: list[int]) -> tuple[list[int], str]:
    """Return the tokens that the program writes behind a prompt, and what it says beside them."""
    shown = subprocess.run([program, bundle, "60", *map(str, prompt)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return [int(line) for line in shown.stdout.split()], shown.stderr


def refused_by(program: Path, bundle: Path) -> str:
    """Return the one line with which the program refuses a bundle."""
    shown = subprocess.run([program, bundle, "5", "1"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (1, "")
    (line,) = shown.stderr.splitlines()
    return line


def test_a_program_writes_the_tokens_that_run_writes(generator, tmp_path):
    bundle = bundle_small(TINY, tmp_path / "bundle")
    require_tokens_of_python(generator, bundle)
    (bundle / "model.onnx").write_bytes(b"torn")
    assert "model.onnx is not as long as the manifest says" in refused_by(generator, bundle)
    (bundle / "manifest.json").write_text('{"schema": 4, "targets": []}')
    told = "is for several targets: take one out with edgeopt bundle BUNDLE --target NAME"
    assert told in refused_by(generator, bundle)


@pytest.mark.parametrize("pair", ["w8a8-w4", "w4-w8", "w8a8-w4+cache8"])
def test_a_program_runs_two_graphs_over_one_cache(pair, generator, tmp_path):
    original, (prompts, tokens) = load_model(TINY), pair.removesuffix("+cache8").split("-")
    models = [
        make_dynamic(original, find_target("cpu-x86-vnni").rules_here).model
        if form == "w8a8"
        else make_weight_only(original, int(form[1:]), 64, tables=True).model
        for form in (prompts, tokens)
    ]
    if pair.endswith("+cache8"):
        ranges = cache_ranges(original, [list(range(100))], threads=1)
        models = [make_integer_cache(model, ranges).model for model in models]
    file = write_pair(TINY, tmp_path / "pair", *models)
    shutil.copytree(TINY.parent / "draft", file.parent / "draft")
    bundle = bundle_pair(file, tmp_path / "bundle", prompts, tokens)
    prompt, expected = require_tokens_of_python(generator, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    assert manifest["recipe"]["generation"]["draft"]
    weights = manifest["artefacts"][0]["weights"]
    assert weights == manifest["parts"][0]["weights"]
    manifest["parts"][0] |= {"executor": "openvino", "options": {"NUM_STREAMS": "1"}}
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    told = "prefill.onnx was measured on openvino: ONNX Runtime computes prompts, slower\n"
    assert written_by(generator, bundle, prompt) == (expected, told)
    manifest["artefacts"][0]["executor"] = "openvino"
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert "tokens of this bundle run on openvino" in refused_by(generator, bundle)
    manifest["artefacts"][0]["executor"] = "onnxruntime"
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (bundle / weights["file"]).write_bytes(b"torn")
    assert f"{weights['file']} is not as long as the manifest says" in refused_by(generator, bundle)


def with_odd_runs_apart(model: Model) -> Model:
    """Return a decoder that takes each token for the next one where an odd number of them runs."""
    graph = Graph.from_model(model)
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    (embed,) = graph.consumers(ids)
    one, two, size = (graph.add_initializer("number", np.array([number], np.int64)) for number in (1, 2, 512))
    count = graph.insert("Gather", [graph.insert("Shape", [ids]).outputs[0], one]).outputs[0]
    is_odd = graph.insert("Mod", [count, two]).outputs[0]
    moved = graph.insert("Mod", [graph.insert("Add", [ids, is_odd]).outputs[0], size]).outputs[0]
    graph.set_input(embed, list(embed.inputs).index(ids), moved)
    return graph.to_model()


def test_odd_runs_are_padded_by_what_a_graph_holds_whatever_it_is_called(generator, tmp_path):
    apart = with_odd_runs_apart(make_weight_only(load_model(TINY), 4, 64, tables=True).model)
    file = write_pair(TINY, tmp_path / "pair", apart, load_model(TINY))
    shutil.copytree(TINY.parent / "draft", file.parent / "draft")
    require_tokens_of_python(generator, bundle_pair(file, tmp_path / "pair_bundle", "fp32", "w4"))
    own = shutil.copytree(TINY.parent, tmp_path / "own")
    save_model(apart, own / "model.onnx")
    single = bundle_small(own / "model.onnx", tmp_path / "bundle")
    for count in (2 * GRAIN, 2 * GRAIN + 1):  # behind the token that stands before every prompt
        require_tokens_of_python(generator, single, count)


@pytest.mark.parametrize("form", ["w8a8", "w4"])
def test_a_single_graph_runs_prompts_in_the_parts_of_python(form, generator, tmp_path):
    own, original = shutil.copytree(TINY.parent, tmp_path / "own"), load_model(TINY)
    rules = find_target("cpu-x86-vnni").rules_here
    made = make_dynamic(original, rules) if form == "w8a8" else make_weight_only(original, 4, 64, tables=True)
    save_model(keep_last_logits(made.model).model, own / "model.onnx")
    recipe = (own / "recipe.toml").read_text("utf-8").replace("[generation]", f"[generation]\nchunk = {GRAIN}")
    (own / "recipe.toml").write_text(recipe, "utf-8")
    require_tokens_of_python(generator, bundle_small(own / "model.onnx", tmp_path / "bundle"))


def test_a_program_hands_on_a_cache_that_each_run_makes_anew(generator, tmp_path):
    chance, width, vocabulary = np.random.default_rng(0), 16, 1024
    ends = [
        ("input_ids", TensorProto.INT64, (1, "tokens")),
        ("past_key_values.0.key", TensorProto.FLOAT, (1, 1, "past", width)),
        ("logits", TensorProto.FLOAT, (1, "tokens", vocabulary)),
        ("present.0.key", TensorProto.FLOAT, (1, 1, "all", width)),
    ]
    table, head = (chance.standard_normal(shape) for shape in ((vocabulary, width), (width, vocabulary)))
    constants = {
        "table": table.astype(np.float32), "head": head.astype(np.float32), "axis": np.array([1], np.int64),
        "places": np.array(2, np.int64), "far": np.array([1 << 62], np.int64), "minus": np.array([-1], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Unsqueeze", ["embedded", "axis"], ["new"]),
        helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        helper.make_node("CumSum", ["present.0.key", "places"], ["sums"]),
        helper.make_node("Shape", ["input_ids"], ["count"], start=1),
        helper.make_node("Mul", ["count", "minus"], ["start"]),
        helper.make_node("Squeeze", ["sums", "axis"], ["all"]),
        helper.make_node("Slice", ["all", "start", "far", "axis"], ["last"]),
        helper.make_node("MatMul", ["last", "head"], ["logits"]),
    ]
    values = [helper.make_tensor_value_info(*end) for end in ends]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "sums", values[:2], values[2:], stored)
    own = shutil.copytree(TINY.parent, tmp_path / "own")
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), own / "model.onnx")
    require_tokens_of_python(generator, bundle_small(own / "model.onnx", tmp_path / "bundle"))


PROBE = """
#define main run_program
#include "main.cpp"
#undef main

int main(int, char** arguments) {
  const auto said = [] {
    const char* value = std::getenv("ORT_GQA_DISABLE_FLASH_ATTENTION");
    std::cout << (value ? value : "unset") << '\\n';
  };
  {
    const Attention attention(false);
    said();
  }
  said();
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "probe");
  for (int i = 1; i < 3; ++i) {
    try {
      open_model(env, arguments[i], read_manifest(arguments[i]));
      std::cout << "opened ";
    } catch (const std::exception&) {
      std::cout << "refused ";
    }
    said();
  }
  const float nan = std::nanf(""), some[] = {nan, 1, nan, 3, 2}, none[] = {nan, nan};
  std::cout << likeliest(some, 5) << '\\n';
  try {
    likeliest(none, 2);
  } catch (const std::exception& error) {
    std::cout << error.what() << '\\n';
  }
}
"""


def test_a_process_is_left_as_it_was_and_nan_is_never_chosen(generator, tmp_path):
    (compiler,) = tools("g++")
    (tmp_path / "probe.cpp").write_text(PROBE, "utf-8")
    folders = [str(folder) for folder in (EXAMPLES / "cpp_generate", *HEADERS)]
    linked = generator.parent / "libonnxruntime.so.1"
    flags = ["-std=c++17", *(f"-I{folder}" for folder in folders), f"-Wl,-rpath,{linked.parent}"]
    subprocess.run([compiler, *flags, tmp_path / "probe.cpp", linked, "-o", tmp_path / "probe"], check=True)
    bundle = bundle_small(TINY, tmp_path / "bundle")
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    manifest["recipe"]["generation"]["flash_attention"] = False
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    torn = shutil.copytree(bundle, tmp_path / "torn")
    size = (torn / "model.onnx").stat().st_size
    (torn / "model.onnx").write_bytes(b"\0" * size)  # refused by ONNX Runtime itself
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    numbers = ["3", "no token can be chosen: all logits of the model are NaN"]
    for own, lines in (({}, ["1", *["unset"] * 3]), ({VARIABLE: "0"}, ["0"] * 4)):
        shown = subprocess.run(
            [tmp_path / "probe", bundle, torn], capture_output=True, text=True, check=True, env=environment | own
        )
        first, behind, opened, refused = lines
        expected = [first, behind, f"opened {opened}", f"refused {refused}", *numbers]
        assert shown.stdout.splitlines() == expected


@pytest.mark.parametrize("language", ["cpp", "c"])
def test_a_program_gives_pythons_answers(language, library, bundle, classifier, pictures, wanted, named, tmp_path):
    program = built(language, library, tmp_path / "build")
    for picture, answer in zip(pictures, wanted, strict=True):
        shown = subprocess.run([program, bundle, picture], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        require_same(json.loads(shown.stdout)["detections"], answer)
    shown = subprocess.run([program, classifier, pictures[0]], capture_output=True, text=True, check=True)
    require_named(json.loads(shown.stdout)["classes"], named)
    torn = shutil.copytree(bundle, tmp_path / "torn")
    (torn / "model.onnx").write_bytes(b"torn")
    shown = subprocess.run([program, torn, pictures[0]], capture_output=True, text=True, check=True)
    assert "model.onnx not used" in shown.stderr
    require_same(json.loads(shown.stdout)["detections"], wanted[0])
    plain = json.loads((bundle / "manifest.json").read_text("utf-8"))
    plain["recipe"]["embedded"] = []
    (torn / "manifest.json").write_text(json.dumps(plain), "utf-8")
    refused = subprocess.run([program, torn, pictures[0]], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "embed-preprocess" in refused.stderr
    several = edgeopt.combine_bundles([bundle], tmp_path / "several")
    refused = subprocess.run([program, several.folder, pictures[0]], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "edgeopt bundle BUNDLE --target NAME --out FOLDER" in refused.stderr


def built_for(engine: str, folder: Path) -> Path:
    """Build the example of an engine whose C++ library CMAKE_PREFIX_PATH leads to; skip where it does not."""
    pytest.importorskip(engine)
    cmake, _ = tools("cmake", "g++")
    source = EXAMPLES / f"cpp_{engine.lower()}"
    made = subprocess.run([cmake, "-S", source, "-B", folder], capture_output=True, text=True)
    if made.returncode and re.search(rf"{engine} not found|{engine}Config|nlohmann_json", made.stderr):
        pytest.skip(" ".join(made.stderr.split())[:200])
    assert made.returncode == 0, made.stderr
    subprocess.run([cmake, "--build", folder], check=True, capture_output=True, text=True)
    return folder / f"edgeopt_{engine.lower()}"


def require_numbers(command: list[Any], model: Path, engine: str) -> None:
    """Assert that a program writes the numbers that Python's engine computes.

    Args:
        command: The program and what it opens.
        model: The engine's own file.
        engine: As the executor is named.
    """
    session = load_executor(engine).open(model, SessionOptions(("CPU",), 1, precision="fp32"))
    (spec,) = session.inputs
    given = np.random.default_rng(0).uniform(0, 1, spec.shape).astype(np.float32)
    files = [model.with_name(name) for name in ("in.f32", "out.f32")]
    files[0].write_bytes(given.tobytes())
    shown = subprocess.run([*command, *files], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "first run in" in shown.stderr
    expected = np.concatenate([value.ravel() for value in session.run({spec.name: given}).values()])
    np.testing.assert_allclose(np.fromfile(files[1], np.float32), expected, atol=1e-3)
    model.write_bytes(b"torn")
    refused = subprocess.run([*command, *files], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "is no network" in refused.stderr


def test_a_program_on_ncnn_gives_pythons_numbers(tmp_path):
    program = built_for("ncnn", tmp_path / "build")
    with briefly():
        report = optimize("digits_detector", target="ncnn-cpu", out=tmp_path / "o", threads=1, steps=("fuse",))
    bundle = shutil.copytree(report.bundle, tmp_path / "bundle")
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    artefact = manifest["artefacts"][0]
    artefact["precision"] = "fp32"  # another build of ncnn rounds bfloat16 otherwise
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    require_numbers([program, bundle], bundle / artefact["file"], "ncnn")


def test_a_program_on_mnn_gives_pythons_numbers(tmp_path):
    program = built_for("MNN", tmp_path / "build")
    with briefly():
        report = optimize(
            "digits_detector", target="mnn-cpu", out=tmp_path / "o", threads=1, steps=("fuse",), emit=("mnn",)
        )
    folder = Path(report.bundle).parent / report.emitted[0]
    model, files = folder / "model.mnn", [tmp_path / "in.f32", tmp_path / "out.f32"]
    whole, size = model.read_bytes(), (1, 4)

    def ran(file: MnnFile) -> subprocess.CompletedProcess[str]:
        model.write_bytes(file.to_bytes())
        np.zeros(file.inputs[0].shape, np.float32).tofile(files[0])
        return subprocess.run([program, folder, *files], capture_output=True, text=True)

    own = read_mnn_file(whole, "own")
    refused = ran(replace(own, inputs=(replace(own.inputs[0], name="other"),)))
    assert refused.returncode == 1
    assert f"the network reads {own.inputs[0].name}, which its file does not name" in refused.stderr
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, size)] for name in "xy"]
    stored = [numpy_helper.from_array(np.full(size, value, np.float32), name) for name, value in (("a", 0.5), ("b", 2))]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "unread", *ends, stored)
    unread = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = mnn_file(unread.SerializeToString())
    for dtype in ("float32", "int64"):  # what is written is of the type that MNN gives
        shown = ran(replace(file, outputs=(replace(file.outputs[0], dtype=dtype),)))
        assert shown.returncode == 0, shown.stderr
        assert np.fromfile(files[1], np.float32).tolist() == [2.5] * 4
    model.write_bytes(whole)
    require_numbers([program, folder], model, "mnn")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def site(bundle: Path, classifier: Path, pictures: list[Path], node_modules: Path, tmp_path: Path) -> Iterator[str]:
    """The page with its package, bundles and pictures, served on the loopback."""
    folder = tmp_path / "web"
    folder.mkdir()
    for name, data in BROWSER.app_files().items():
        (folder / name).write_bytes(data)
    (folder / "node_modules").symlink_to(node_modules)
    shutil.copytree(bundle, folder / "bundle")
    shutil.copytree(classifier, folder / "classifier")
    for one in pictures:
        shutil.copy(one, folder)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


def test_a_page_gives_pythons_answers(site, pictures, wanted, named, tmp_path):
    tools("chromium")
    from chromium import chromium_page  # needs fork and pipes, which Windows has not

    with chromium_page(tmp_path / "profile") as page:
        page.open(f"{site}?bundle=bundle&picture={pictures[1].name}")
        answer = json.loads(page.wait_for("document.getElementById('answer')?.textContent"))
        shown = page.value("[...document.querySelectorAll('#table td:first-child')].map((one) => one.textContent)")
        assert page.value("canvas.width") == 720
        require_same(answer["detections"], wanted[1])
        assert shown == [one["class"] for one in wanted[1]]
        assert page.console == []
        page.open(f"{site}?bundle=classifier&picture={pictures[0].name}")
        page.wait_for("document.getElementById('answer')?.textContent.includes('classes')")
        require_named(json.loads(page.value("document.getElementById('answer').textContent"))["classes"], named)
        page.open(f"{site}?bundle=nowhere")
        said = page.wait_for("document.querySelector('#status.failed')?.textContent")
        assert "404" in said


def test_the_manifest_names_what_an_app_feeds_and_reads(bundle):
    first = read_bundle(bundle).artefacts[0]
    assert [(one.name, one.dtype, one.shape) for one in first.inputs] == [("frame", "uint8", (None, None, 3))]
    told = {one.name: (one.dtype, one.shape) for one in first.outputs}
    assert told == {"boxes": ("float32", (None, 4)), "scores": ("float32", (None,)), "classes": ("int64", (None,))}
