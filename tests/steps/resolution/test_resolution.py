"""The step `resolution`: smaller pictures as candidates, whose bundle feeds them so, where the recipe allows it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from fixture_brief import briefly
from fixture_models import indices, model, numbers

import edgeopt
from edgeopt import Runtime
from edgeopt.errors import NoteKind
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.opening.given import open_given
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.engines import open_engines
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.deployment.embedding import EmbeddedParts
from edgeopt.optimization.folder.workspace import Workspace
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import all_steps, make_plan
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Run, Silence
from edgeopt.optimization.start import open_context, open_material
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.resolution import why_fixed
from edgeopt.system.declared.target import find_target
from edgeopt.tasks import make_task

DIGITS = Path(__file__).parents[3] / "models" / "digits_detector"
STEPS = ("simplify", "fuse", "resolution")
WISHES: list[Wish] = []
"""The wish of the one run."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """One run on the shipped detector, with a bundle for every candidate."""
    out, labels = tmp_path_factory.mktemp("resolution") / "out", tmp_path_factory.mktemp("labels")
    with briefly(), pytest.MonkeyPatch.context() as patch:

        def all_of_them(run: Run, _: object) -> list[Candidate]:
            WISHES.append(run.wish)
            return run.candidates[1:]

        # whether it is fast enough to be a finalist, and judged, is for the clock to say
        patch.setattr("edgeopt.optimization.choice.accuracy_proof._finalists", all_of_them)
        report = optimize(
            "digits_detector",
            out=out,
            options=Options(
                eval=str(_few(labels)), steps=(*STEPS, "finetune"), finetune_s=60.0, max_drop=0.5, threads=1
            ),
            bundle_of=lambda one, _: out / "bundles" / one.name,
        )
    return report, out


def _few(folder: Path) -> Path:
    labels = json.loads((DIGITS / "eval" / "instances.json").read_text("utf-8"))
    kept = labels["images"][:24]
    for one in kept:
        one["file_name"] = str(DIGITS / "eval" / "images" / Path(one["file_name"]).name)
    ids = {one["id"] for one in kept}
    boxes = [one for one in labels["annotations"] if one["image_id"] in ids]
    file = folder / "labels.json"
    file.write_text(json.dumps({**labels, "images": kept, "annotations": boxes}), "utf-8")
    return file


def test_a_candidate_says_its_size_and_is_scored_and_measured_like_any_other(made):
    report, out = made
    one = next(one for one in report.candidates if one.name == "resolution")
    assert one.input_size == (128, 128)
    sizes = {("resolution" in other.steps, other.input_size) for other in report.candidates}
    assert sizes == {(False, ()), (True, (128, 128))}  # what is made of it too
    assert one.drift is None
    assert one.score is not None
    assert one.speed is not None
    assert 0.5 < one.score.value < report.candidates[0].score.value + 0.05
    assert "input 128x128 in place of 160x160, 64% of the pixels" in str(one.notes[0])
    assert read_report(out, ModelReport).candidates == report.candidates
    assert load_model(out / one.file).inputs[0].shape == (1, 3, 128, 128)


def test_labels_let_it_change_more_answers_than_a_model_of_the_same_size(made):
    report, _ = made
    baseline, *others = report.candidates
    smaller = next(one for one in others if one.input_size)
    (wish,) = WISHES
    assert wish.asked_of(baseline) == wish.least_agreement
    assert wish.asked_of(smaller) == pytest.approx(wish.least_agreement**2, abs=1e-3)


def test_its_bundle_feeds_it_so_and_holds_no_model_of_another_size(made):
    _, out = made
    bundle = read_bundle(out / "bundles" / "resolution")
    assert bundle.recipe.input.size == (128, 128)
    assert {one.inputs[0].shape for one in (*bundle.artefacts, *bundle.lighter)} == {(1, 3, 128, 128)}
    assert read_bundle(out / "bundles" / "fuse").recipe.input.size == (160, 160)
    frames = [cv2.imread(str(one)) for one in sorted((DIGITS / "calib").iterdir())[:12]]
    with Runtime.load(out / "bundles" / "resolution") as small, Runtime.load(out / "bundles" / "fuse") as full:
        assert small.artefact.file == "model.onnx"
        assert not small.notes
        found, wanted = small.predict_batch(frames), full.predict_batch(frames)
        assert full.task.agreement(found, wanted) > 0.6  # the same boxes, in the frame's own pixels
        assert max(float(one.boxes.max()) for one in found if len(one)) > 130


def test_a_teacher_sees_pictures_of_the_same_size(made):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    told = [one.detail for one in made[0].notes]
    assert "nothing to heal: no step before finetune changed what the model computes" in told


def test_embedded_parts_are_made_for_the_smaller_size(made, tmp_path):
    _, out = made
    given = open_given("digits_detector", "cpu", None)
    plan = make_plan(given.recipe, given.target, Options(threads=1), 1)
    frames = open_material(given, plan, None).frames
    engine = open_engines(given.target, 1, str(out / "engines")).own
    context = open_context(given, plan, engine, frames, Workspace.open(tmp_path, {}, resume=False), Silence())
    steps = {name: step for name, step in all_steps().items() if name in ("embed-preprocess", "embed-postprocess")}
    parts = [step.embeds for step in steps.values() if step.embeds]
    small = load_model(out / "candidates" / "resolution" / "model.onnx", "resolution")
    whole = EmbeddedParts(context, "resolution", steps).put_into(small)
    recipe = context.recipe_of(small)
    plain = make_task(recipe, small.inputs, small.outputs, evaluating=False)
    reader = make_task(recipe.with_embedded(*parts), whole.inputs, whole.outputs, evaluating=False)
    answers = []
    for one, task in ((small, plain), (whole, reader)):
        session, found = context.open(one), []
        for i in range(8):
            inputs, geometry = task.preprocess(frames.picture(i))
            found.append(task.postprocess(session.run(inputs), geometry))
        session.close()
        answers.append(found)
    assert plain.agreement(answers[1], answers[0]) > 0.95


def test_a_centre_crop_sees_the_same_part_of_a_frame_at_a_smaller_size():
    recipe = find_recipe("imagenet").with_size(224, 224)
    inputs = model("agraph (float[1,3,168,168] x) => (float[1,3,168,168] y) { y = Relu(x) }").inputs
    smaller = recipe.for_inputs(inputs)
    assert smaller.input.size == (168, 168)
    assert smaller.preprocess.crop_from == 192  # 256 * 168 / 224
    assert recipe.for_inputs(inputs[:0]) is recipe


def test_it_is_off_and_the_recipe_may_forbid_it():
    recipe = find_recipe("yolox")
    assert "resolution" not in make_plan(recipe, find_target("cpu-x86-vnni"), Options(calib="synthetic"), 1).steps
    bound = recipe.with_size(416, 416)
    assert why_fixed(bound) == ""
    assert "says that the size is fixed" in why_fixed(replace(bound, input=replace(bound.input, smaller=False)))
    assert "arrays" in why_fixed(find_recipe("tensors"))


def test_a_classifier_with_weights_for_each_place_is_named_and_the_run_goes_on(brief, tmp_path):
    net = model(
        "agraph (float[1,3,32,32] x) => (float[1,10] y) { c = Conv<strides=[4,4], kernel_shape=[4,4]>(x, w) "
        "r = Reshape(c, flat) y = Gemm(r, m) }",
        w=numbers(8, 3, 4, 4),
        flat=indices(1, 512),
        m=numbers(512, 10),
    )
    save_model(net, tmp_path / "net.onnx")
    recipe = (Path(__file__).parents[3] / "models" / "imagenet" / "recipe.toml").read_text("utf-8")
    (tmp_path / "recipe.toml").write_text(recipe.partition("[[match]]")[0], "utf-8")
    for i in range(2):
        cv2.imwrite(str(tmp_path / f"{i}.png"), np.full((40, 40, 3), 100 + 50 * i, np.uint8))
    report = edgeopt.optimize(tmp_path / "net.onnx", out=tmp_path / "out", calib=str(tmp_path), steps=STEPS, threads=1)
    told = [one for one in report.notes if one.kind is NoteKind.WARNING and "resolution" in one.detail]
    assert len(told) == 1
    assert "Gemm" in told[0].detail
    assert "weights 512x10 have a row for each place" in told[0].detail
