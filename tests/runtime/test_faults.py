"""Each fault ends in one clear error or a documented way out, and the process goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_bundles import bundle_with_test, packed, reseal
from fixture_models import model, numbers

from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError, UnsupportedError
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import MANIFEST, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.selftest import FILE
from edgeopt.system.declared.target import find_target

CPU = find_target("cpu-x86-vnni")
TENSORS = find_recipe("tensors")
LOOK_UP = model(
    "net (float[1,4] x, int64[1] i) => (float[1,4] y) { t = Gather(table, i) y = Add(x, t) }", table=numbers(3, 4)
)
GIVEN = {"x": numbers(1, 4), "i": np.array([1])}
BEYOND = {**GIVEN, "i": np.array([7])}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A bundle of a look-up in a table of three rows, with a fallback and the test of both."""
    models = {"model.onnx": LOOK_UP.data, "fallback.onnx": LOOK_UP.data}
    return bundle_with_test(tmp_path / "bundle", LOOK_UP, TENSORS, [GIVEN], models).folder


@pytest.mark.parametrize("file", ["model.onnx", "fallback.onnx", FILE, MANIFEST])
@pytest.mark.parametrize("fault", ["flipped", "missing", "empty"])
def test_a_damaged_bundle_is_refused_and_one_that_is_loaded_goes_on(folder, file, fault):
    with Runtime.load(folder) as runtime:
        expected = runtime.predict(GIVEN)["y"]
        good = (folder / file).read_bytes()
        if fault == "missing":
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(b"" if fault == "empty" else bytes([good[0] ^ 4]) + good[1:])
        with pytest.raises(InvalidFileError) as caught:
            Runtime.load(folder)
        assert len(str(caught.value).splitlines()) == 2, "what happened, and what to do"
        assert file in caught.value.problem
        assert np.array_equal(runtime.predict(GIVEN)["y"], expected)
        (folder / file).write_bytes(good)
    with Runtime.load(folder) as again:
        assert np.array_equal(again.predict(GIVEN)["y"], expected)


def test_a_file_that_is_spoiled_after_the_load_is_not_opened_later(folder):
    with Runtime.load(folder) as runtime:
        (folder / "fallback.onnx").write_bytes(b"other")
        with pytest.raises(InvalidFileError, match=r"fallback.onnx differs from its hash"):
            runtime.with_artefact(runtime.bundle.artefacts[1])
        assert runtime.predict(GIVEN)["y"].shape == (1, 4)


@pytest.mark.parametrize("file", [FILE, "lighter.onnx"])
def test_every_file_of_a_bundle_lies_in_its_folder(tmp_path, file):
    lighter = [packed("lighter.onnx", "fp32", LOOK_UP.data, CPU)]
    models = {"model.onnx": LOOK_UP.data}
    folder = bundle_with_test(tmp_path / "b", LOOK_UP, TENSORS, [GIVEN], models, lighter=lighter).folder
    with Runtime.load(folder) as runtime, runtime.with_artefact(runtime.bundle.lighter[0]) as other:
        assert other.predict(GIVEN)["y"].shape == (1, 4)
    (folder / file).rename(tmp_path / "elsewhere")
    (folder / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidFileError, match="is a link out of the bundle"):
        Runtime.load(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda values: values["lighter"].append({**values["artefacts"][0], "file": "../x"}), "is no name of a file"),
        (lambda values: values.update(lighter=values["artefacts"] * 2), "names 4 lighter models, more than 2"),
        (lambda values: values.update(artefacts=values["artefacts"] * 20), "names 40 models"),
        (
            lambda values: values["artefacts"][0].update(noise_limits={"y": {"rounding": 2.0, "wrong": 3.0}}),
            "rounding is",
        ),
        (lambda values: values["tools"].update(more="x" * (5 << 20)), "has 5 MiB, more than 4 MiB"),
    ],
)
def test_a_sealed_manifest_that_goes_too_far_is_refused(folder, change, told):
    reseal(folder, change)
    with pytest.raises(InvalidFileError, match=told):
        Runtime.load(folder)


def test_an_artefact_for_another_device_gives_way_and_is_told_once(tmp_path):
    elsewhere = replace(CPU, providers=("NoSuchExecutionProvider",))
    models = [packed("model.onnx", "fp32", LOOK_UP.data, elsewhere), packed("fallback.onnx", "fp32", LOOK_UP.data, CPU)]
    write_bundle(tmp_path, models, elsewhere, TENSORS, {}, {})
    with Runtime.load(tmp_path) as runtime:
        (note,) = runtime.notes
        assert note.detail.startswith("model.onnx not used: ")
        assert note.hint
        assert runtime.predict(GIVEN)["y"].shape == (1, 4)
        assert len(runtime.notes) == 1
    with pytest.raises(UnavailableError, match=r"model.onnx cannot be used, and strict forbids the others") as caught:
        Runtime.load(tmp_path, strict=True)
    assert caught.value.remedy
    write_bundle(tmp_path, models[:1], elsewhere, TENSORS, {}, {})
    with pytest.raises(EdgeoptError, match=r"no model of .* opens here"):
        Runtime.load(tmp_path)


def test_a_frame_that_the_engine_refuses_is_one_error_and_costs_no_buffers(folder):
    with Runtime.load(folder) as runtime:
        expected = runtime.predict(GIVEN)["y"]
        for _ in range(100):
            with pytest.raises(UnsupportedError, match="does not run the model on these inputs"):
                runtime.predict(BEYOND)
        assert np.array_equal(runtime.predict(GIVEN)["y"], expected)
        with runtime.begin(timeout_s=1) as work:
            work.preprocess(GIVEN)
        found = runtime.stats()
    assert (found.fed, found.served, found.failed, found.waiting) == (103, 2, 101, 0)


@pytest.mark.parametrize(
    "frame",
    [None, "frame.jpg", np.zeros((4, 4, 3), np.uint8), {}, {"x": GIVEN["x"]}, {**GIVEN, "x": numbers(2, 4)}],
    ids=["none", "path", "picture", "nothing", "one input", "other shape"],
)
def test_a_wrong_frame_is_told_and_the_next_one_is_answered(folder, frame):
    with Runtime.load(folder) as runtime:
        with pytest.raises((ValueError, UnsupportedError)):
            runtime.predict(frame)
        assert runtime.predict(GIVEN)["y"].shape == (1, 4)


def test_a_batch_ends_at_the_first_wrong_frame(folder):
    with Runtime.load(folder) as runtime:
        with pytest.raises(UnsupportedError):
            runtime.predict_batch([GIVEN, BEYOND, GIVEN])
        assert runtime.stats().served == 1


def test_nan_in_gives_nan_out_and_is_found_out(folder):
    spoiled = {**GIVEN, "x": np.full((1, 4), np.nan, np.float32)}
    with Runtime.load(folder) as runtime:
        assert np.isnan(runtime.predict(spoiled)["y"]).all()
        assert runtime.why_no_answer(spoiled) == "output y is NaN in 4 of 4"
        assert np.isfinite(runtime.predict(GIVEN)["y"]).all(), "no frame leaves anything to the next"
        assert runtime.why_no_answer(GIVEN) == ""


def test_closing_while_threads_ask_gives_each_an_answer_or_the_reason(folder):
    runtime = Runtime.load(folder)
    expected = runtime.predict(GIVEN)["y"]

    def ask(_: int) -> str:
        try:
            return "right" if np.array_equal(runtime.predict(GIVEN)["y"], expected) else "wrong"
        except UnavailableError as error:
            return error.problem

    with ThreadPoolExecutor(8) as workers:
        asked = [workers.submit(ask, i) for i in range(400)]
        asked[50].result(60)
        runtime.close()
        found = {one.result(60) for one in asked}
    assert found <= {"right", "the runtime is closed"}
    assert ask(0) == "the runtime is closed"
