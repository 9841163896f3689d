"""A bundle is what was made, or refused in one line: hashed whole, read from its own folder, shared by threads."""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from fixture_bundles import packed, reseal
from fixture_models import model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.optimization.deployment.deploy import _recipe_of_bundle
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import MANIFEST, SCHEMA, Bundle, read_bundle, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.threads import logical_cores, usual_threads

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")


def made(folder: Path, threads: int = 1) -> Bundle:
    """Return a bundle of the shipped detector, the same model twice."""
    net, data = load_model(DIGITS), DIGITS.read_bytes()
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    models = [packed(name, "fp32", data, CPU, threads) for name in ("model.onnx", "fallback.onnx")]
    return write_bundle(folder, models, CPU, recipe, {"accuracy": 0.5, "machine": None}, {"numpy": "2"})


@pytest.fixture
def bundle(tmp_path) -> Bundle:
    return made(tmp_path / "bundle")


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> Path:
    """A bundle whose models are a few bytes: reading one runs nothing."""
    folder = tmp_path_factory.mktemp("light")
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    models = [packed(name, "w8a8", name.encode(), CPU, 2) for name in ("model.onnx", "fallback.onnx")]
    write_bundle(folder, models, CPU, recipe, {"accuracy": 0.5, "machine": None}, {"numpy": "2"})
    return folder


def test_what_is_read_is_what_was_written(bundle):
    found = read_bundle(bundle.folder)
    assert replace(found, folder=bundle.folder) == bundle
    assert found.recipe.class_names == tuple("0123456789")
    assert sorted(one.name for one in bundle.folder.iterdir()) == ["fallback.onnx", MANIFEST, "model.onnx"]


def test_an_older_bundle_is_refused_in_one_line(bundle):
    reseal(bundle.folder, lambda values: values.update(schema=SCHEMA - 1))
    with pytest.raises(InvalidFileError, match=f"has schema {SCHEMA - 1}, this edgeopt reads {SCHEMA}"):
        read_bundle(bundle.folder)


@pytest.mark.parametrize(
    ("table", "key", "value", "said"),
    [
        ((), "looks", {"each": 1}, "unknown looks"),
        (("recipe",), "colour", "grey", "recipe: unknown colour"),
        (("recipe", "tokenizer"), "overlap", 3, "recipe: tokenizer: unknown overlap"),
        (("recipe", "tokenizer"), "fill", "by-line", "recipe: tokenizer: fill is 'by-line'"),
        (("target",), "neighbours", 2, "target: unknown neighbours"),
        ((), "schema", 5, "has schema 5, this edgeopt reads 3 and 4"),
    ],
)
def test_what_a_newer_edgeopt_wrote_is_told_with_the_remedy(bundle, table, key, value, said):
    def add(values: dict[str, Any]) -> None:
        for name in table:
            values = values.setdefault(name, {})
        values[key] = value

    reseal(bundle.folder, add)
    with pytest.raises(InvalidFileError, match=re.escape(said)) as refused:
        read_bundle(bundle.folder)
    assert refused.value.problem.endswith(": it was made by a newer edgeopt")
    assert "\n" not in refused.value.problem
    assert "pip install -U edgeopt" in refused.value.remedy
    done = CliRunner().invoke(cli, ["bench", str(bundle.folder)])
    assert done.exit_code == 1
    assert "it was made by a newer edgeopt" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "name", ["../evil.onnx", "/etc/passwd", "sub/model.onnx", "..", "", ".hidden", "a\\b", MANIFEST, "a\n", "x" * 300]
)
def test_a_bundle_names_files_of_its_own_folder_only(bundle, name):
    shutil.copy(DIGITS, bundle.folder.parent / "evil.onnx")
    reseal(bundle.folder, lambda values: values["artefacts"][0].update(file=name))
    with pytest.raises(InvalidFileError, match="is no name of a file in the bundle's folder"):
        read_bundle(bundle.folder)


@pytest.mark.parametrize("file", ["model.onnx", MANIFEST])
def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(bundle, file):
    inside, outside = bundle.folder / "..data", bundle.folder.parent / "elsewhere"
    inside.mkdir()
    shutil.move(bundle.folder / file, inside / file)
    (bundle.folder / file).symlink_to(Path("..data") / file)  # as an orchestrator mounts files
    assert read_bundle(bundle.folder).artefacts == bundle.artefacts
    shutil.move(inside, outside)
    (bundle.folder / file).unlink()
    (bundle.folder / file).symlink_to(outside / file)
    with pytest.raises(InvalidFileError, match="is a link out of the bundle"):
        read_bundle(bundle.folder)


def test_a_model_that_is_missing_longer_changed_or_a_pipe_is_refused(bundle):
    data = bundle.model.read_bytes()
    for changed in (data + b"\0", data[:-1], bytes([data[0] ^ 1]) + data[1:]):
        bundle.model.write_bytes(changed)
        with pytest.raises(InvalidFileError, match="differs from its hash"):
            read_bundle(bundle.folder)
    bundle.model.unlink()
    with pytest.raises(InvalidFileError, match="is missing"):
        read_bundle(bundle.folder)
    os.mkfifo(bundle.model)
    with pytest.raises(InvalidFileError, match="is missing"):
        read_bundle(bundle.folder)


def put_file(folder: Path) -> None:
    (folder / "plugin.so").write_bytes(b"code")


def put_hidden_file(folder: Path) -> None:
    (folder / ".hidden").write_bytes(b"code")


def put_engine(folder: Path) -> None:
    """An engine as TensorRT keeps it: a program for the GPU, which earlier versions read from there."""
    (folder / "engines" / "0123456789abcdef").mkdir(parents=True)
    (folder / "engines" / "0123456789abcdef" / "a.engine").write_bytes(b"code")


def put_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def put_link(folder: Path) -> None:
    (folder / "there").symlink_to(folder.parent)


def put_dead_link(folder: Path) -> None:
    (folder / "nowhere").symlink_to("none")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
@pytest.mark.parametrize("put", [put_file, put_hidden_file, put_engine, put_pipe, put_link, put_dead_link])
def test_a_file_that_no_hash_names_is_refused_in_one_line(light, tmp_path, put):
    folder = tmp_path / "bundle"
    shutil.copytree(light, folder)
    put(folder)
    with pytest.raises(InvalidFileError, match=r"in the bundle .* is not named in its manifest\.json") as refused:
        read_bundle(folder)
    assert "remove it" in refused.value.remedy
    done = CliRunner().invoke(cli, ["bench", str(folder)])
    assert (done.exit_code, "is not named in its manifest.json" in done.output) == (1, True)


def test_what_an_orchestrator_or_a_file_manager_puts_there_is_no_strangers_file(light, tmp_path):
    """A volume of Kubernetes: each file is a link through ..data into a folder with a time in its name."""
    folder = tmp_path / "bundle"
    shutil.copytree(light, folder)
    timed = folder / "..2026_11_26"
    timed.mkdir()
    (folder / "..data").symlink_to(timed.name)
    for path in [one for one in folder.iterdir() if one.is_file()]:
        shutil.move(path, timed / path.name)
        path.symlink_to(Path("..data") / path.name)
    (folder / ".DS_Store").write_bytes(b"")
    (folder / "empty").mkdir()
    assert read_bundle(folder).artefacts
    (timed / "more.so").write_bytes(b"code")
    with pytest.raises(InvalidFileError, match=r"more\.so' in the bundle"):
        read_bundle(folder)


def test_a_bundle_written_over_another_leaves_none_of_its_files(tmp_path):
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    folder = tmp_path / "bundle"
    for names in (("model.onnx", "fallback.onnx", "lighter-1.onnx"), ("model.onnx",)):
        models = [packed(name, "w8a8", name.encode(), CPU, 2) for name in names]
        write_bundle(folder, models, CPU, recipe, {}, {}, companions={f"of-{len(names)}.json": b"{}"})
        assert {one.file for one in read_bundle(folder).artefacts} == {*names}
    assert {one.name for one in folder.iterdir()} == {MANIFEST, "model.onnx", "of-1.json"}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("size", [], "feeds pictures and has no size"),
        ("states", {"session.x": "y"}, "no input of the model named 'session.x'"),
        ("states", {"images": "y"}, "no output of the model named 'y'"),
        ("tensor", "session.x", "no input of the model named 'session.x'"),
    ],
)
def test_a_recipe_that_does_not_fit_the_model_of_its_bundle_is_one_line(bundle, field, value, told):
    reseal(bundle.folder, lambda values: values["recipe"]["input"].update({field: value}))
    with pytest.raises(EdgeoptError, match=told):
        Runtime.load(bundle.folder)


def test_states_that_the_model_lacks_are_refused_of_every_recipe(tmp_path):
    lines = (DIGITS.parent / "recipe.toml").read_text("utf-8").splitlines()
    shipped = "\n".join(line for line in lines if not line.startswith(("labels", "model", "calib")))
    (tmp_path / "recipe.toml").write_text(shipped + '\n[input]\nstates = { "session.x" = "y" }\n', "utf-8")
    for command in ("bench", "inspect"):
        arguments = [command, str(DIGITS), "--recipe", str(tmp_path / "recipe.toml")]
        done = CliRunner().invoke(cli, arguments)
        assert (done.exit_code, "no input of the model named 'session.x'" in done.output) == (1, True), done.output


@pytest.mark.parametrize(
    "key", ["trt_extra_plugin_lib_paths", "trt_dump_subgraphs", "ep.context_file_path", "session.custom_ops_library"]
)
def test_a_bundle_whose_options_load_a_library_or_write_files_is_refused(bundle, key, tmp_path):
    """Its maker knows the seal, and every model of it says so."""
    made = tmp_path / "made.so"

    def set_option(values: dict[str, Any]) -> None:
        for artefact in values["artefacts"]:
            artefact["options"][key] = str(made)

    reseal(bundle.folder, set_option)
    with pytest.raises(EdgeoptError, match=key.replace(".", r"\.")):
        Runtime.load(bundle.folder)
    done = CliRunner().invoke(cli, ["bench", str(bundle.folder), "--seconds", "0.1"])
    assert done.exit_code == 1
    assert key in done.output
    assert not made.exists()


def test_a_manifest_of_brackets_is_one_line(bundle):
    (bundle.folder / MANIFEST).write_text("[" * 100_000)
    shown = CliRunner().invoke(cli, ["run", str(bundle.folder), str(DIGITS.parent / "calib")])
    assert shown.exit_code == 1
    assert "nests deeper" in shown.output
    assert len(shown.output.splitlines()) == 2


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 2**31), bit=st.integers(0, 7), file=st.sampled_from([MANIFEST] * 3 + ["model.onnx"]))
def test_a_flipped_bit_changes_nothing_in_silence(light, position, bit, file):
    before, good = read_bundle(light), (light / file).read_bytes()
    bad = bytearray(good)
    bad[position % len(bad)] ^= 1 << bit
    try:
        (light / file).write_bytes(bytes(bad))
        with suppress(EdgeoptError):
            assert read_bundle(light) == before
    finally:
        (light / file).write_bytes(good)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.sampled_from(["folder", "file", "name", "x"]), st.integers(), max_size=2),
)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the path of every value in a manifest."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, one in inner for found in ((*path, key), *places(one, (*path, key)))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), sealed=st.booleans(), removed=st.booleans(), odd=ODD)
def test_a_manifest_with_odd_values_is_refused_or_is_a_bundle(light, data, sealed, removed, odd):
    """One who knows the seal may say other things, and still gets an answer in one line or a bundle of its folder."""
    good = (light / MANIFEST).read_text("utf-8")
    values = json.loads(good)
    *path, last = data.draw(st.sampled_from(places(values)))
    table = values
    for key in path:
        table = table[key]
    if removed:
        del table[last]
    else:
        table[last] = odd
    try:
        (light / MANIFEST).write_text(json.dumps(values), "utf-8")
        if sealed:
            reseal(light, lambda _: None)
        with suppress(EdgeoptError):
            read_bundle(light)
    finally:
        (light / MANIFEST).write_text(good, "utf-8")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.floats(), st.lists).map(json.dumps)))
def test_what_is_no_manifest_is_refused(light, text):
    good = (light / MANIFEST).read_bytes()
    try:
        (light / MANIFEST).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(EdgeoptError):
            read_bundle(light)
    finally:
        (light / MANIFEST).write_bytes(good)


def test_the_measured_threads_are_used_up_to_the_cores_that_are_here(tmp_path):
    runtime = Runtime.load(made(tmp_path / "one", threads=1).folder)
    assert (runtime.opening.options.threads, runtime.notes) == (1, ())
    assert Runtime.load(tmp_path / "one", threads=logical_cores()).opening.options.threads == logical_cores()
    many = Runtime.load(made(tmp_path / "many", threads=1000).folder)
    assert many.opening.options.threads == logical_cores()
    assert "was measured on 1000 threads" in many.notes[0].detail
    assert Runtime.load(made(tmp_path / "any", threads=0).folder).opening.options.threads == usual_threads()


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (None, "not None, as OpenCV reads what it cannot"),
        ("cat.jpg", "not str"),
        (np.zeros((4, 4), np.uint8), r"not \(4, 4\) uint8"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.zeros((0, 4, 3), np.uint8), r"not \(0, 4, 3\)"),
        ({}, "inputs are , not images"),
        ({"images": np.zeros((1, 3, 8, 8), np.float32)}, "images is float32 1x3x8x8, the model takes"),
    ],
)
def test_what_is_no_frame_is_named(bundle, frame, told):
    with pytest.raises(ValueError, match=told):
        Runtime.load(bundle.folder).predict(frame)


def test_threads_that_share_a_runtime_get_their_own_answers(bundle):
    runtime = edgeopt.Runtime.load(bundle.folder)
    pictures = open_frames(DIGITS.parent / "calib")
    frames = [pictures.picture(i) for i in range(8)]
    alone = [runtime.predict(frame) for frame in frames]
    assert len({one.scores.tobytes() for one in alone}) == 8

    def ask(i: int) -> bool:
        found, expected = runtime.predict(frames[i % 8]), alone[i % 8]
        return all(np.array_equal(getattr(found, one), getattr(expected, one)) for one in ("boxes", "scores"))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(320)))


@pytest.mark.parametrize("given", ["bundle", "."])
@pytest.mark.parametrize("command", ["optimize", "quantize", "inspect"])
def test_a_bundle_given_as_a_model_is_told_from_one_and_the_advice_works(bundle, command, given):
    folder = bundle.folder.parent / given
    options = {"optimize": ["-t", "cpu"], "quantize": ["-t", "cpu", "-o", "q.onnx"], "inspect": []}[command]
    shown = CliRunner().invoke(cli, [command, str(folder), *options])
    assert shown.exit_code == 1
    assert "is a bundle, no model" in shown.output
    named = shown.output.split("or name ")[1].strip()
    assert named == str(bundle.model)
    assert CliRunner().invoke(cli, ["inspect", named]).exit_code == 0


def test_a_folder_with_a_model_leads_to_the_model(tmp_path):
    shutil.copy(DIGITS, tmp_path / "net.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path)])
    assert f"is a folder\n  -> name {tmp_path / 'net.onnx'}" in shown.output
    shutil.copy(DIGITS, tmp_path / "another.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path)])
    both = f"{tmp_path / 'another.onnx'}, {tmp_path / 'net.onnx'}"
    assert f"is a folder with 2 ONNX files\n  -> name one of them: {both}" in shown.output


def of_one_picture(folder: Path, model: Model, recipe: str) -> tuple[Bundle, Path]:
    """Return a bundle of a model by a recipe, and a picture to feed it."""
    found = choose_recipe(recipe, None, model.inputs, model.outputs, {}).recipe
    made = write_bundle(folder / "b", [packed("model.onnx", "fp32", model.data, CPU)], CPU, found, {}, {})
    cv2.imwrite(str(folder / "a.png"), np.full((32, 32, 3), 7, np.uint8))
    return made, folder / "a.png"


@pytest.mark.parametrize("recipe", ["imagenet", "tensors"])
def test_outputs_that_are_no_numbers_are_said_and_the_json_is_valid(tmp_path, recipe):
    weights = np.full((192, 10), np.nan, np.float32)
    net = model("nan (float[1,3,8,8] x) => (float[1,10] y) { f = Flatten(x) y = MatMul(f, w) }", w=weights)
    made, picture = of_one_picture(tmp_path, net, recipe)
    plain = CliRunner().invoke(cli, ["run", str(made.folder), str(picture)])
    told = "no answer: output y is NaN in 10 of 10" if recipe == "imagenet" else "NaN or infinite in 10 of 10"
    assert told in plain.stdout
    assert " nan" not in plain.stdout
    shown = CliRunner().invoke(cli, ["run", str(made.folder), str(picture), "--json"])
    values = json.loads(shown.stdout, parse_constant=lambda word: pytest.fail(word))
    assert values.get("problem", "") or values["outputs"]["y"]["values"] == [None] * 10


def test_a_picture_for_a_bundle_made_for_arrays_is_refused_and_the_arrays_are_not(tmp_path):
    net = model("net (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }")
    taken, picture = of_one_picture(tmp_path, net, "tensors")
    assert CliRunner().invoke(cli, ["run", str(taken.folder), str(picture)]).exit_code == 0
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3, 8, 8), np.float32))
    run = SimpleNamespace(context=SimpleNamespace(recipe=taken.recipe, frames=open_frames(tmp_path / "x.npz")))
    made = replace(taken, recipe=_recipe_of_bundle(run, taken.recipe))
    models = [packed("model.onnx", "fp32", net.data, CPU)]
    write_bundle(made.folder, models, CPU, made.recipe, {}, {})
    shown = CliRunner().invoke(cli, ["run", str(made.folder), str(picture)])
    assert shown.exit_code == 1
    assert "a picture cannot become the model's inputs x" in shown.output
    assert len(shown.output.splitlines()) == 2
    assert CliRunner().invoke(cli, ["run", str(made.folder), str(tmp_path / "x.npz")]).exit_code == 0


def test_arrays_for_a_bundle_of_pictures_must_have_its_inputs_names(bundle, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((1, 3, 160, 160), np.float32))
    shown = CliRunner().invoke(cli, ["run", str(bundle.folder), str(tmp_path / "x.npz")])
    assert "lacks images float32 1x3x160x160 and holds x, which the model does not take" in shown.output
    np.savez(tmp_path / "x.npz", images=np.ones((1, 3, 160, 160), np.float32))
    assert CliRunner().invoke(cli, ["run", str(bundle.folder), str(tmp_path / "x.npz")]).exit_code == 0
