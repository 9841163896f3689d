"""Pictures in uint8 that ncnn makes planes of, as bundles that embed their normalisation feed them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from engine_ops import right
from few_labels import write_few
from fixture_brief import briefly
from npu_models import numbers, parse

import edgeopt
from edgeopt.errors import InvalidFileError, NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.ncnn import EXECUTOR, ncnn_file
from edgeopt.executors.ncnn.file import read_ncnn_file
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.embedded import PICTURE
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.embed_normalise import embed_normalise
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared.target import find_target
from edgeopt.tasks import make_task

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = SessionOptions(("CPU",), 1)
DIGITS = Path(__file__).parents[2] / "models" / "digits_detector"
HEAD = "pictures (uint8[9,7,3] picture) => (float[1,4,9,7] y) { u = Unsqueeze(picture, front)"
TAKEN = {
    "planes first": "t = Transpose<perm = [0,3,1,2]>(u) f = Cast<to = 1>(t) y = Conv(f, w) }",
    "floats first": "f = Cast<to = 1>(u) t = Transpose<perm = [0,3,1,2]>(f) y = Conv(t, w) }",
    "arithmetic on rows": "f = Cast<to = 1>(u) m = Add(f, mean) t = Transpose<perm = [0,3,1,2]>(m) y = Conv(t, w) }",
    "arithmetic on planes": "t = Transpose<perm = [0,3,1,2]>(u) f = Cast<to = 1>(t) m = Mul(f, f) y = Conv(m, w) }",
}
REFUSED = {
    "goes through Gather": "g = Gather<axis = 3>(u, order) t = Transpose<perm = [0,3,1,2]>(g) y = Cast<to = 1>(t) }",
    "goes turned": "t = Transpose<perm = [0,3,2,1]>(u) y = Cast<to = 1>(t) }",
}


def model_with(body: str):
    return parse(
        f"{HEAD} {body}",
        front=np.array([0], np.int64),
        order=np.array([2, 1, 0], np.int64),
        mean=np.array([-3.5, -2, 1], np.float32),
        w=numbers(4, 3, 1, 1),
    )


def pixels(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("way", TAKEN)
def test_a_picture_is_taken_in_every_order_in_which_planes_are_made_of_it(way):
    model, inputs = model_with(TAKEN[way]), {PICTURE: pixels(9, 7)}
    session = EXECUTOR.open(model.data, CPU)
    assert [(spec.name, spec.dtype, spec.shape) for spec in session.inputs] == [(PICTURE, "uint8", (9, 7, 3))]
    np.testing.assert_allclose(session.run(inputs)["y"], right(model, inputs)["y"], rtol=1e-5, atol=0.01)


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_plain_picture_is_refused_in_one_line(said):
    with pytest.raises(UnsupportedError, match=f"three channels that become floats, and 'picture' {said}"):
        EXECUTOR.open(model_with(REFUSED[said]).data, CPU)


def test_bfloat16_holds_every_pixel():
    model = parse(
        f"{HEAD} {TAKEN['planes first']}",
        front=np.array([0], np.int64),
        w=np.eye(4, 3, dtype=np.float32)[..., None, None],
    )
    picture = pixels(9, 7)
    made = EXECUTOR.open(model.data, replace(CPU, precision="bf16")).run({PICTURE: picture})["y"]
    np.testing.assert_array_equal(made[0, :3], picture.transpose(2, 0, 1))


def test_a_file_with_a_picture_is_read_back_and_no_earlier_version_takes_it_for_floats():
    file = ncnn_file(model_with(TAKEN["planes first"]).data)
    data = file.to_bytes()
    assert read_ncnn_file(data, "it") == file
    assert data[8] == 2, "the version that earlier readers refuse"
    plain = parse("p (float[1,3,9,7] x) => (float[1,4,9,7] y) { y = Conv(x, w) }", w=numbers(4, 3, 1, 1))
    assert ncnn_file(plain.data).to_bytes()[8] == 1
    wrong = replace(file, inputs=(replace(file.inputs[0], shape=(3, 9, 7)),))
    with pytest.raises(InvalidFileError, match="neither float32 nor a picture"):
        read_ncnn_file(wrong.to_bytes(), "it")


def test_another_type_or_size_is_refused_before_ncnn_reads_beyond_it():
    session = EXECUTOR.open(model_with(TAKEN["planes first"]).data, CPU)
    for wrong in (pixels(9, 7).astype(np.float32), pixels(7, 9)):
        with pytest.raises(ValueError, match="not uint8"):
            session.run({PICTURE: wrong})


def test_a_frame_of_any_size_is_refused():
    given = open_given("digits_detector", "cpu", None)
    with pytest.raises(UnsupportedError, match="every shape in numbers, and 'frame' has none"):
        EXECUTOR.open(embed_preprocess(given.model, given.recipe).data, CPU)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_few(DIGITS / "eval" / "instances.json", 8, tmp_path_factory.mktemp("few") / "labels.json")


def test_a_bundle_of_ncnn_holds_the_normalisation_and_answers_as_before(few, tmp_path):
    steps = ("embed-normalise",)
    with briefly():
        report = edgeopt.optimize(
            "digits_detector", target="ncnn-cpu", out=tmp_path / "o", steps=steps, threads=1, eval=few, emit=("ncnn",)
        )
    assert report.inside is not None
    assert report.inside.parts == ("normalise",)
    assert any("normalise is in the bundle alone" in note.detail for note in report.notes)
    bundle = read_bundle(tmp_path / "o")
    height, width = open_given("digits_detector", "cpu", None).recipe.input.size
    assert bundle.artefacts[0].file == "model.ncnn"
    assert [(port.name, port.dtype, port.shape) for port in bundle.artefacts[0].inputs] == [
        (PICTURE, "uint8", (height, width, 3))
    ]
    given = open_given("digits_detector", "cpu", None)
    alone = EXECUTOR.open(given.model.data, CPU)
    frames = [cv2.imread(str(path)) for path in sorted((DIGITS / "calib").iterdir())[:6]]
    task = make_task(given.recipe, given.model.inputs, given.model.outputs, evaluating=False)
    with edgeopt.Runtime.load(tmp_path / "o") as runtime:
        assert not runtime.notes
        answers = runtime.predict_batch(frames)
    wanted = []
    for frame in frames:
        inputs, geometry = task.preprocess(frame)
        wanted.append(task.postprocess(alone.run(inputs), geometry))
    assert task.agreement(answers, wanted) >= 0.999


@pytest.mark.parametrize("step", ["embed-normalise", "embed-preprocess"])
def test_models_of_ncnn_beside_the_choice_are_in_the_bundle_or_the_screen_says_why_not(
    step, few, tmp_path, monkeypatch
):
    """Which model is lighter, times say: here it is one of ncnn, beside the original on ONNX Runtime."""
    monkeypatch.setattr(
        "edgeopt.optimization.deployment.deploy.judged_lighter",
        lambda run, alike, best, notes: tuple(each for each in alike if each.executor == "ncnn")[:1],
    )
    with briefly():
        report = edgeopt.optimize(
            "digits_detector", target="cpu", out=tmp_path / "o", steps=(step,), threads=1, eval=few
        )
    bundle = read_bundle(tmp_path / "o")
    about = [note for note in report.notes if "lighter-1" in note.detail and "the bundle has" not in note.detail]
    if step == "embed-normalise":
        assert not about
        assert [artefact.file for artefact in bundle.lighter] == ["lighter-1.ncnn"]
        assert bundle.lighter[0].inputs == bundle.artefacts[0].inputs
        return
    assert not bundle.lighter
    assert len(about) == 1
    assert about[0].kind is NoteKind.SKIPPED
    assert "is not in the bundle, whose models are fed alike: ncnn's files are written" in about[0].detail
    assert "--skip embed-preprocess keeps it" in str(about[0])


def test_asking_ncnn_for_frames_of_any_size_names_the_step_that_it_takes(few, tmp_path):
    with briefly():
        report = edgeopt.optimize(
            "digits_detector", target="ncnn-cpu", out=tmp_path / "o", steps=("embed-preprocess",), threads=1, eval=few
        )
    assert report.inside is None
    (told,) = [note for note in report.notes if note.detail.startswith("nothing embedded")]
    assert "embed-normalise in place of embed-preprocess" in str(told)


def test_an_integer_model_whose_first_grid_takes_the_normalisation_is_refused():
    """Pixels are then rounded on one grid and read on another, which is 255 times as fine."""
    given, target = open_given("digits_detector", "cpu", None), find_target("ncnn-cpu")
    frames = [cv2.imread(str(path)) for path in sorted((DIGITS / "calib").iterdir())[:4]]
    task = make_task(given.recipe, given.model.inputs, given.model.outputs, evaluating=False)
    calibration = [task.preprocess(frame)[0] for frame in frames]
    made = quantize(given.model, calibration, target.rules_here, form=Form.INPUTS).model
    with pytest.raises(UnsupportedError, match="DequantizeLinear of another grid"):
        EXECUTOR.open(embed_normalise(made, given.recipe).data, CPU)
