"""A model whose numbers are wrong on this device is not used; rounding is let pass, and what lies between is told."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_bundles import bundle_with_test, reseal
from fixture_models import model, numbers

from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.made_up import synthetic_like
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import MANIFEST, make_selftest, read_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.selftest import FILE, choose_samples, noise, read_stored

DIGITS = find_model("digits_detector")
SAMPLES = [{"x": numbers(1, 3, 8, 8, seed=seed)} for seed in range(4)]
WEIGHTS = numbers(4, 3, 3, 3, seed=9)


def net(off: float = 0.0) -> Model:
    """Return a convolution whose weights are off by so much of their spread."""
    weights = WEIGHTS + np.float32(off) * numbers(4, 3, 3, 3, seed=10)
    return model(
        "net (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w) y = Relu(c) }", w=weights
    )


def shipped(folder: Path, *off: float) -> Path:
    """Return a bundle of models that are off the one that was judged."""
    models = {name: net(one).data for name, one in zip(("model.onnx", "fallback.onnx"), off, strict=False)}
    return bundle_with_test(folder, net(), find_recipe("tensors"), SAMPLES, models).folder


@pytest.mark.parametrize("off", [0.0, 1e-5, 1e-3])
def test_rounding_passes_without_a_word(tmp_path, off):
    with Runtime.load(shipped(tmp_path, off)) as runtime:
        assert (runtime.artefact.file, runtime.notes) == ("model.onnx", ())
        assert runtime.stats().fed == 0, "the test and the warm-up are no frames of the app"


def test_numbers_that_are_off_by_more_than_rounding_are_told(tmp_path):
    with Runtime.load(shipped(tmp_path, 0.01)) as runtime:
        assert runtime.artefact.file == "model.onnx"
        (note,) = runtime.notes
    assert note.detail.startswith("model.onnx: output y is ")
    assert "% off what was measured (0.4" in note.detail
    assert "edgeopt optimize" in note.hint


@pytest.mark.parametrize("off", [0.2, 1e9, np.nan])
def test_wrong_numbers_are_refused_and_the_next_model_runs(tmp_path, off):
    folder = shipped(tmp_path, off, 0.0)
    with Runtime.load(folder) as runtime:
        assert runtime.artefact.file == "fallback.onnx"
        (note,) = runtime.notes
        assert note.detail.startswith("model.onnx not used: its numbers are wrong on this device: output y is ")
        assert runtime.predict(SAMPLES[0])["y"].shape == (1, 4, 8, 8)
        with pytest.raises(UnavailableError, match="wrong on this device"):
            runtime.with_artefact(runtime.bundle.artefacts[0])
        assert runtime.predict(SAMPLES[0])["y"].shape == (1, 4, 8, 8), "a refused model changes nothing"
    with pytest.raises(UnavailableError, match=r"model.onnx cannot be used, and strict forbids the others: its"):
        Runtime.load(folder, strict=True)


def test_where_all_are_wrong_one_error_names_each(tmp_path):
    with pytest.raises(EdgeoptError, match=r"no model of .*: model.onnx .* wrong .*; fallback.onnx .* wrong"):
        Runtime.load(shipped(tmp_path, 1.0, -1.0))


def test_a_real_detector_is_tested_on_pictures(tmp_path):
    real = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, real.inputs, real.outputs, real.metadata).recipe
    pictures = open_frames(DIGITS.parent / "calib")
    samples = choose_samples([pictures.picture(i) for i in range(4)], recipe.input.size)
    folder = bundle_with_test(tmp_path, real, recipe, samples, {"model.onnx": real.data}).folder
    assert (tmp_path / FILE).stat().st_size < 400_000
    stored = read_stored(read_bundle(folder))
    assert all(np.array_equal(one, other) for one, other in zip(stored.samples, samples, strict=True))
    with Runtime.load(folder) as runtime:
        assert runtime.notes == ()


def halved(given: Model, layer: str) -> bytes:
    """Return a model with the weights of one layer halved."""
    proto = onnx.ModelProto()
    proto.CopyFrom(given.proto)
    weights = next(one for one in proto.graph.initializer if one.name == layer)
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) * np.float32(0.5), layer))
    return proto.SerializeToString()


def test_made_up_pictures_tell_right_from_wrong_as_well(tmp_path):
    real = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, real.inputs, real.outputs, real.metadata).recipe
    samples = choose_samples([*synthetic_like(open_frames(DIGITS.parent / "calib"), recipe.input.size, 4)], (160, 160))
    layers = [one.name for one in real.proto.graph.initializer if len(one.dims) == 4]
    for layer in [layers[0], layers[len(layers) // 2], *(one for one in layers if "objectness" in one)]:
        models = {"model.onnx": halved(real, layer), "fallback.onnx": real.data}
        folder = bundle_with_test(tmp_path / layer.replace("/", "_"), real, recipe, samples, models).folder
        with Runtime.load(folder) as runtime:
            assert runtime.artefact.file == "fallback.onnx", layer
            assert [note.detail.partition(":")[0] for note in runtime.notes] == ["model.onnx not used"]


def test_made_up_arrays_take_over_only_types_shapes_and_ranges(tmp_path):
    given = {"x": numbers(6, 3, 4) * 50 - 300, "ids": np.arange(60, dtype=np.int64).reshape(6, 10) + 7}
    np.savez(tmp_path / "given.npz", **given)
    made = synthetic_like(open_frames(tmp_path / "given.npz"), (), 4)
    again = synthetic_like(open_frames(tmp_path / "given.npz"), (), 4)
    for name, arrays in given.items():
        drawn = np.stack([made.tensors(i)[name] for i in range(4)])
        assert drawn.dtype == arrays.dtype
        assert drawn.shape[1:] == made.tensors(0)[name].shape
        assert arrays.min() <= drawn.min() < drawn.max() <= arrays.max()
        assert np.array_equal(drawn, [again.tensors(i)[name] for i in range(4)])
        assert not any(np.array_equal(one, other) for one in drawn for other in arrays)


def test_samples_are_few_small_and_plain():
    pictures = [np.full((1080, 1920, 3), i, np.uint8) for i in range(9)]
    kept = choose_samples(pictures, (640, 640))
    assert [one.shape for one in kept] == [(360, 640, 3)] * 3, "two MiB and no more"
    assert [one.shape for one in choose_samples([np.zeros((9, 5, 3), np.uint8)], (64, 64))] == [(9, 5, 3)]
    assert [one.shape for one in choose_samples([np.zeros((1, 5000, 3), np.uint8)], (64, 64))] == [(1, 64, 3)]
    assert len(choose_samples(SAMPLES * 3, ())) == 4
    assert choose_samples([{"x": np.zeros(5 << 20, np.float32)}], ()) == ()
    assert choose_samples([{"x": np.array(["text"], object)}], ()) == ()


def test_noise_is_relative_to_each_channel_and_whole_numbers_count():
    rows = numbers(500, 3) * np.array([1, 1000, 0.5], np.float32)
    assert noise(rows, rows) == 0
    assert 1.3 < noise(rows[::-1].copy(), rows) < 1.5, "nothing in common"
    spoiled = rows.copy()
    spoiled[:, 0] += 0.1
    assert 0.05 < noise(spoiled, rows) < 0.12, "the large channel hides nothing"
    assert noise(rows[:-1], rows) == noise(np.where(rows > 1, np.nan, rows), rows) == np.inf
    assert noise(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]])) == 0.25
    assert noise(np.zeros((4, 2), np.float32), np.zeros((4, 2), np.float32)) == 0
    assert noise(np.ones((40, 2), np.float32), np.zeros((40, 2), np.float32)) == np.inf
    assert noise(np.full((40, 2), np.nan), np.full((40, 2), np.nan)) == 0


def test_scores_beside_boxes_are_seen_and_a_constant_is_no_infinity():
    rows = np.abs(numbers(400, 6)) * np.array([640, 640, 640, 640, 0.5, 80], np.float32)
    lost = rows.copy()
    lost[:, 4] = rows[:, 4].mean()
    assert noise(lost, rows) > 0.3, "one of six columns is gone"
    rows[:, 4] = 0.5
    rounded = rows + np.float32(1e-3)
    assert noise(rounded, rows) < 0.002
    rows[:, 4] = 0
    assert noise(rows + np.float32(1e-3), rows) < 0.001


def test_a_channel_that_is_lost_among_a_thousand_is_not_hidden_by_the_others():
    rows = numbers(64, 1000)
    rounded = rows + 0.02 * numbers(64, 1000, seed=1)
    assert 0.01 < noise(rounded, rows) < 0.03, "chance makes no channel stand out"
    rounded[:, 7] = rows[:, 7].mean()
    assert noise(rounded, rows) > 0.2


Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays], bytes | None]


def rewrite(folder: Path, change: Change) -> None:
    """Change the arrays of a test as one who knows how a bundle is sealed."""
    arrays = dict(np.load(folder / FILE))
    data = change(arrays)
    if data is None:
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        data = file.getvalue()
    (folder / FILE).write_bytes(data)
    told = make_selftest(FILE, data, len(SAMPLES))
    reseal(folder, lambda values: values["selftest"].update(sha256=told.sha256, size_bytes=told.size_bytes))


def without(name: str) -> Change:
    return lambda arrays: arrays.pop(name).tobytes()[:0] or None


def pickled(arrays: Arrays) -> None:
    arrays["input_0_0"] = np.array([print], object)


def bomb(arrays: Arrays) -> None:
    arrays["more"] = np.zeros(65 << 20, np.uint8)


def claims(arrays: Arrays) -> bytes:
    """Return an archive with an array whose head claims 2 PiB."""
    head = str({"descr": "<f4", "fortran_order": False, "shape": (1 << 49,)}).encode().ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (pickled, "claims Python objects"),
        (bomb, "unpacks to 65 MiB, more than 64 MiB"),
        (claims, "bytes in 0"),
        (lambda arrays: b"no archive", "is no archive"),
        (without("input_2_0"), "lacks the array input_2_0"),
        (without("inputs"), "lacks the array inputs"),
        (lambda arrays: arrays.update(inputs=np.empty(0, np.str_)), "lacks the array frame_0"),
        (lambda arrays: arrays.update(inputs=np.empty(0, np.str_), frame_0=np.ones(3)), "frame_0 is no picture"),
    ],
)
def test_a_test_that_was_tampered_with_is_refused_in_one_line(tmp_path, change, told):
    folder = shipped(tmp_path, 0.0)
    rewrite(folder, change)
    with pytest.raises(InvalidFileError, match=told) as caught:
        Runtime.load(folder)
    assert len(caught.value.problem.splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(input_1_0=np.ones((1, 3, 9, 9), np.float32)),
        lambda arrays: arrays.update(inputs=np.array(["z"])),
        lambda arrays: arrays.update(rows_0_1_0=np.array([-1], np.int32)),
        lambda arrays: arrays.update(rows_0_1_0=np.array([1 << 30], np.int32)),
        lambda arrays: arrays.update(rows_0_1_0=np.array([[0.5]])),
        lambda arrays: arrays.update(expected_0_0=np.array(["text"])),
        lambda arrays: arrays.update(expected_0_0=arrays["expected_0_0"].astype(np.int64)),
        without("rows_0_0_0"),
    ],
)
def test_arrays_that_do_not_fit_the_model_refuse_it(tmp_path, change):
    folder = shipped(tmp_path, 0.0)
    rewrite(folder, change)
    with pytest.raises(EdgeoptError, match=r"no model of .* opens here: model.onnx not used"):
        Runtime.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../selftest.npz"},
        {"file": MANIFEST},
        {"samples": 0},
        {"samples": 10**6},
        {"size_bytes": 1 << 40},
        {"sha256": "0" * 64},
        {"more": 1},
    ],
)
def test_a_manifest_that_lies_of_its_test_is_refused(tmp_path, change):
    folder = shipped(tmp_path, 0.0)
    reseal(folder, lambda values: values["selftest"].update(change))
    with pytest.raises(InvalidFileError):
        Runtime.load(folder)


def test_a_bundle_without_a_test_is_still_a_bundle(tmp_path):
    folder = shipped(tmp_path, 0.0)
    reseal(folder, lambda values: values.update(selftest=None))
    (folder / FILE).unlink()
    with Runtime.load(folder) as runtime:
        assert runtime.notes == ()
    assert json.loads((folder / MANIFEST).read_text())["selftest"] is None


def test_a_bundle_whose_channels_were_taken_from_another_axis_is_still_tested(tmp_path):
    wide = model("net (float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Relu(x) }")
    samples = [{"x": numbers(1, 16, 8, 8, seed=seed)} for seed in range(4)]
    folder = bundle_with_test(tmp_path, wide, find_recipe("tensors"), samples, {"model.onnx": wide.data}).folder
    before = [np.maximum(one["x"], 0).reshape(-1, 8) for one in samples]

    def as_once(arrays: Arrays) -> None:
        arrays["expected_0_0"] = np.concatenate(before)
        arrays.update({f"rows_0_{i}_0": np.arange(len(one), dtype=np.int32) for i, one in enumerate(before)})

    rewrite(folder, as_once)
    with Runtime.load(folder) as runtime:
        assert runtime.notes == ()
