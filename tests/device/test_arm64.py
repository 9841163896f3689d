"""The forms for Arm compute on Arm what they were judged by here: numbers under QEMU's user emulation, never times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import small_nets
from fixture_arm64 import LEVELS, ROUNDING, TARGET, WITH_DOT, Built, distance, python_for_arm, run_on_arm
from fixture_brief import briefly, ending_after
from tokenizers import Tokenizer

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.candidates.engines import as_there, open_engine
from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.inputs.pictures import read_picture
from edgeopt.runtime.runtime import Runtime
from edgeopt.steps.convert.blocks import k_quant
from edgeopt.steps.convert.float16 import make_float16
from edgeopt.steps.convert.precisions import CONVERSIONS
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

TOKENS = 48
FRAMES = 12
SIZE = (160, 160)
"""The model's own: OpenCV's resize on Arm rounds some 5 % of the numbers otherwise, by one level."""
MODELS = Path(__file__).parents[2] / "models"
INTEGERS = tuple(f"{net}-{form}" for net in ("mobile", "residual", "detector") for form in ("qdq", "nhwc"))


@pytest.fixture(scope="module")
def python() -> Path:
    return python_for_arm()


def token_inputs(model: Model, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs of a decoder for one text from its beginning, with one run along a first axis."""
    empty = {
        spec.name: np.zeros([1, *(size if isinstance(size, int) and size > 0 else 0 for size in spec.shape[1:])], "f4")
        for spec in model.inputs
        if spec.name.startswith("past")
    }
    inputs = {"input_ids": tokens[None], "attention_mask": np.ones((1, len(tokens)), np.int64), **empty}
    return {name: value[None] for name, value in inputs.items()}


def run_here(model: Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(entries=as_there(open_engine(TARGET, 1)).entries))
    first = session.outputs[0].name
    runs = [{name: value[i] for name, value in inputs.items()} for i in range(len(next(iter(inputs.values()))))]
    return np.stack([session.run(run)[first] for run in runs])


@pytest.fixture(scope="module")
def built(python, tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("forms")
    here, original = {}, {}

    def keep(name: str, made: Model, source: Model, inputs: dict[str, np.ndarray]) -> None:
        (folder / f"{name}.onnx").write_bytes(made.data)
        np.savez(folder / f"{name}.npz", **inputs)
        here[name], original[name] = run_here(made, inputs), run_here(source, inputs)

    for net in ("mobile", "residual", "detector"):
        model = getattr(small_nets, net)()
        calibration = list(small_nets.frames(model))
        inputs = {"x": np.stack([frame["x"] for frame in small_nets.frames(model, 4, seed=9)])}
        keep(f"{net}-float", model, model, inputs)
        for form in Form.QDQ, Form.NHWC:
            made = quantize(model, calibration, TARGET.rules_here, form=form).model
            keep(f"{net}-{form}", made, model, inputs)
        if net == "mobile":
            keep(f"{net}-fp16", make_float16(model, calibration).model, model, inputs)
    model = load_model(MODELS / "tiny_lm" / "model.onnx")
    text = (MODELS / "tiny_lm" / "held_out.txt").read_text("utf-8")[:1000]
    tokens = np.array(Tokenizer.from_file(str(MODELS / "tiny_lm" / "tokenizer.json")).encode(text).ids[:TOKENS])
    forms = {
        "w8a8": make_dynamic(model, TARGET.rules_here),
        "w8": make_weight_only(model, 8, 64, tables=True),
        "w4": make_weight_only(model, 4, 32, rounding=k_quant, tables=True),  # with zeros, as fitted blocks have them
        "w4-frames": CONVERSIONS["w4"](model, TARGET, [])[0],  # to the nearest step, of a model of frames
    }
    for name, outcome in forms.items():
        keep(name, outcome.model, model, token_inputs(model, tokens))
        keep(f"{name}-token", outcome.model, model, token_inputs(model, tokens[:1]))
    with briefly(), ending_after(1):
        report = optimize(
            "digits_detector", target=TARGET.name, out=folder / "run", steps=("fuse", "quantize"), eval=""
        )
    shutil.copytree(report.folder / "bundle", folder / "bundle")
    pictures = sorted((MODELS / "digits_detector" / "eval").rglob("*.jpg"))[:FRAMES]
    frames = {path.stem: cv2.resize(read_picture(path), SIZE) for path in pictures}
    np.savez(folder / "frames.npz", **frames)
    return Built(folder, here, original)


@pytest.fixture(scope="module", params=LEVELS)
def there(request, python, built, tmp_path_factory) -> tuple[str, Path]:
    """The level of a processor for Arm, and the folder of the numbers that it computes of the same files."""
    out = tmp_path_factory.mktemp("arm")
    run_on_arm(python, request.param, built.folder, out)
    return request.param, out


def test_integer_forms_compute_on_arm_what_they_were_judged_by(built, there):
    level, out = there
    for name in INTEGERS:
        wanted = built.here[name]
        worst = np.abs(np.load(out / f"{name}.npy") - wanted).max() / np.abs(wanted).max()
        assert worst <= ROUNDING, f"{name} on {level} is {worst:.1e} off"
        assert distance(wanted, built.original[name]) > 100 * ROUNDING, f"{name} is the float model"


def test_float_models_compute_on_arm_what_they_compute_here(built, there):
    for name in ("mobile-float", "residual-float", "detector-float"):
        assert distance(np.load(there[1] / f"{name}.npy"), built.here[name]) <= ROUNDING


def test_a_model_in_float16_stays_as_near_to_the_original_in_kernels_of_float16(built, there):
    original = built.original["mobile-fp16"]
    assert 1e-6 < distance(np.load(there[1] / "mobile-fp16.npy"), original) < 3e-3  # 11 bits, over 8 layers


@pytest.mark.parametrize("form", ["w8a8", "w8", "w4", "w4-frames"])
def test_forms_of_a_language_model_lose_on_arm_what_they_lose_here(built, there, form):
    """Rounding as it comes magnifies the last bits of a float: texts differ, but what is lost does not grow."""
    level, out = there
    text, original, here = np.load(out / f"{form}.npy"), built.original[form], built.here[form]
    assert distance(text, original) < 1.2 * distance(here, original)
    assert np.mean(text.argmax(-1) == here.argmax(-1)) > 0.9
    if form == "w8a8" or level in WITH_DOT:  # without a dot product blocks multiply floats that are not rounded
        first, wanted = np.load(out / f"{form}-token.npy"), built.here[f"{form}-token"]
        assert distance(first, wanted) < 1e-4


def test_a_bundle_made_here_passes_the_test_of_its_numbers_on_arm(there):
    assert json.loads((there[1] / "bundle.json").read_text()) == {"file": "model.onnx", "notes": []}


def test_its_answers_on_arm_are_those_that_were_judged(built, there):
    with Runtime.load(built.folder / "bundle") as runtime, np.load(built.folder / "frames.npz") as frames:
        task, pictures = runtime.task, [frames[name] for name in frames.files]
    session = as_there(open_engine(TARGET, 1)).open(load_model(built.folder / "bundle" / "model.onnx"), "w8a8")
    answers = []
    for picture in pictures:
        inputs, geometry = task.preprocess(picture)
        answers.append(task.postprocess(session.run(inputs), geometry))
    assert sum(len(answer.scores) for answer in answers) > FRAMES
    for name, tolerance in {"classes": 0, "scores": 1e-4, "boxes": 0.01}.items():
        wanted = np.concatenate([getattr(answer, name) for answer in answers])
        np.testing.assert_allclose(np.load(there[1] / f"{name}.npy"), wanted, rtol=0, atol=tolerance)
