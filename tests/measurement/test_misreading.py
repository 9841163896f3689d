"""A recipe is a hypothesis: misread in five ways, a model is restored or refused with the change to make."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest
from few_labels import write_few
from fixture_models import model as small_model
from fixture_readings import Surgery

from edgeopt import tasks
from edgeopt.errors import EdgeoptError, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, open_labelled
from edgeopt.measurement.accuracy.misreading import Misreading, find_misreading, heed_misreading
from edgeopt.measurement.opening.given import open_given
from edgeopt.optimization.one_step.quantize import quantize
from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.inputs.preprocess import Colour
from edgeopt.recipes.recipe import Recipe, find_recipe, read_recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.system.declared import registry
from edgeopt.system.disk import assets

SIZE, CLASSES, CELLS = (160, 160), 10, 400 + 100 + 25
OWN = (1 / 255, 0.0, 1.0)
ALONE = SessionOptions(threads=1)
IMAGENET = (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def digits() -> Surgery:
    return Surgery(load_model(find_model("digits_detector")))


def as_yolox(model: Surgery, boxes: str = "cells", logits: bool = False) -> Model:
    made = model.node("Concat", model.boxes(SIZE, boxes), model.scores(CLASSES, joined=False, logits=logits), axis=2)
    return model.outputs(answer=(made, (1, CELLS, 15)))


def as_yolov8(model: Surgery, boxes: str = "pixels", logits: bool = False) -> Model:
    made = model.node("Concat", model.boxes(SIZE, boxes), model.scores(CLASSES, joined=True, logits=logits), axis=2)
    return model.outputs(answer=(model.node("Transpose", made, perm=[0, 2, 1]), (1, 14, CELLS)))


def as_ultraface(model: Surgery, boxes: str = "relative corners", logits: bool = False) -> Model:
    scores = model.scores(CLASSES, joined=True, logits=False)
    rest = model.node("ReduceMax", scores, axes=[2], keepdims=1)
    scores = model.node("Concat", model.node("Sub", model.constant(1.0), rest), scores, axis=2)
    if logits:
        scores = model.node("Log", model.node("Clip", scores, model.constant(1e-6)))
    return model.outputs(sure=(scores, (1, CELLS, 11)), corners=(model.boxes(SIZE, boxes), (1, CELLS, 4)))


def as_yolov10(model: Surgery, boxes: str = "corners", logits: bool = False) -> Model:
    scores = model.scores(CLASSES, joined=True, logits=False)
    best = model.node("ReduceMax", scores, axes=[2], keepdims=1)
    label = model.node("Cast", model.node("ArgMax", scores, axis=2, keepdims=1), to=1)
    made = model.node("Concat", model.boxes(SIZE, boxes), model.logits(best) if logits else best, label, axis=2)
    return model.outputs(answer=(made, (1, CELLS, 6)))


def as_yolov5_heads(model: Surgery, boxes: str = "cells", logits: bool = True) -> Model:
    """Return three raw heads of three anchors each; what the network finds is the last anchor's."""
    scores = model.scores(CLASSES, joined=False, logits=False)
    if boxes == "cells":
        _, strides = model.grid(SIZE)
        anchors = np.concatenate([np.full((n, 2), a) for n, a in zip((400, 100, 25), LAST_ANCHORS, strict=True)])
        centre = model.node("Mul", model.node("Add", model.part(0, 2), model.constant(0.5)), model.constant(0.5))
        extent = model.node("Exp", model.node("Mul", model.part(2, 4), model.constant(0.5)))
        extent = model.node("Mul", extent, model.constant(np.sqrt(strides / anchors[None]) / 2))
        made = model.node("Concat", centre, extent, scores, axis=2)
        made = model.logits(made) if logits else made
    else:  # no exporter applies the grid and leaves the sigmoid out
        logits, made = False, model.node("Concat", model.boxes(SIZE, boxes), scores, axis=2)
    nothing = [1.0] * 4 + [0.0] * 11, [0.0] * 4 + [-14.0 if logits else 0.0] * 11
    idle = model.node("Add", model.node("Mul", made, model.constant(nothing[0])), model.constant(nothing[1]))
    outputs, start = {}, 0
    for side in (20, 10, 5):
        ends = [model.constant([value], np.int64) for value in (start, start + side * side, 1)]
        shape = model.constant([1, 1, side, side, 15], np.int64)
        one, other = (model.node("Reshape", model.node("Slice", value, *ends), shape) for value in (made, idle))
        outputs[f"head_{side}"] = model.node("Concat", other, other, one, axis=1), (1, 3, side, side, 15)
        start += side * side
    return model.outputs(**outputs)


LAST_ANCHORS = ((33, 23), (59, 119), (373, 326))
LAYOUTS = {
    "yolox": (as_yolox, "pixels"),
    "yolov5": (lambda model, boxes="pixels", logits=False: as_yolox(model, boxes, logits), "relative"),
    "yolov8": (as_yolov8, "relative"),
    "yolov10": (as_yolov10, "relative corners"),
    "ultraface": (as_ultraface, "corners"),
    "yolov5_heads": (as_yolov5_heads, "pixels"),
}
WAYS = ["colour", "scale", "mean and std", "sigmoid", "grid"]


def misread(name: str, way: str) -> Model:
    """Return the detector in the layout of a recipe, but for one thing."""
    make, other_boxes = LAYOUTS[name]
    recipe = find_recipe(name).preprocess
    told = (recipe.scale, recipe.mean, recipe.std)
    bare = OWN if name == "yolox" else (1.0, 0.0, 1.0)
    after = {"scale": bare, "mean and std": IMAGENET}.get(way, told)
    swap = (recipe.colour == "BGR") != (way == "colour")
    if swap and way == "mean and std":
        after = (after[0], after[1][::-1], after[2][::-1])
    model = digits().feed(swap=swap, before=OWN, after=after)
    logits = (way == "sigmoid") != (name == "yolov5_heads")
    return make(model, **({"boxes": other_boxes} if way == "grid" else {}), logits=logits)


def bound(name: str, model: Model):
    recipe = bound_to(name, model)
    labels = find_recipe("digits_detector")
    letterbox = replace(recipe.preprocess, resize=labels.preprocess.resize, anchor=labels.preprocess.anchor)
    return replace(recipe, class_names=labels.class_names, preprocess=letterbox, evaluation=labels.evaluation)


@cache
def labelled() -> LabelledFrames:
    return decoded_once(find_model("digits_detector").parent / "eval" / "instances.json", range(0, 64, 2))


def decoded_once(labels: Path, kept: range) -> LabelledFrames:
    """Return some of the labelled pictures: each case below reads them in dozens of ways."""
    whole = open_labelled(labels)
    read = [whole.frames.picture(i) for i in kept]
    for picture in read:
        picture.flags.writeable = False  # what writes into its input fails here, and not in another case
    return LabelledFrames(replace(whole.frames.select(kept), read=lambda i: read[i]), whole.labels.select(kept))


def metric(recipe, model, session, data):
    task = registry.load(tasks, recipe.task).TASK(recipe, model.inputs, model.outputs, True)
    return task.score(answers(session, task, data.frames), data.labels).value


RIGHT = dict.fromkeys(LAYOUTS, 0.84) | {"yolov10": 0.39}
"""AP on these pictures when read as made; nothing suppresses boxes in the end-to-end one."""


CASES = [(name, way) for name in LAYOUTS for way in WAYS]
QUICK = {
    ("yolox", "scale"),
    ("yolox", "grid"),
    ("yolov5", "sigmoid"),
    ("yolov8", "mean and std"),
    ("ultraface", "grid"),
    ("yolov5_heads", "grid"),
}


@pytest.mark.parametrize(
    ("name", "way"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in CASES]
)
def test_a_misread_detector_is_restored(name, way):
    model, data = misread(name, way), labelled()
    session, recipe = EXECUTOR.open(model.data, ALONE), bound(name, model)
    found = find_misreading(recipe, model.inputs, model.outputs, session, data.frames, data)
    fitting = found.better if found and found.better else recipe
    assert metric(fitting, model, session, data) >= RIGHT[name] - 0.01
    assert (found is None) == (way == "colour")


CAFFE = (1.0, (104, 117, 123), 1.0)


def squeezenet(data: Path, way: str) -> Model:
    """Return the classifier, made for BGR less the mean, as another trainer or exporter would write it."""
    model = Surgery(load_model(data / "models" / "squeezenet_224.onnx"))
    if way == "logits":
        softmax = model.graph.node.pop()
        return model.outputs(answer=(softmax.input[0], (1, 1000, 1, 1)))
    if way == "layout":
        return model.interleaved()
    turned = (1.0, CAFFE[1][::-1], 1.0)
    if way == "colour":
        return model.feed(swap=True, before=turned, after=turned).done()
    if way == "scale":
        return model.feed(before=CAFFE, after=OWN).done()
    return model.feed(swap=True, before=turned, after=IMAGENET).done()


@cache
def photographs(data: Path) -> LabelledFrames:
    return decoded_once(data / "imagenet" / "val_labels.csv", range(0, 400, 10))


@pytest.mark.parametrize(
    "way",
    ["scale", "logits", *(pytest.param(one, marks=pytest.mark.slow) for one in ("colour", "mean and std", "layout"))],
)
def test_a_misread_classifier_is_restored(way, data):
    pictures = photographs(data)
    model, right = squeezenet(data, way), load_model(data / "models" / "squeezenet_224.onnx")
    session, recipe = EXECUTOR.open(model.data, ALONE), bound_to("imagenet_caffe", model)
    found = find_misreading(recipe, model.inputs, model.outputs, session, pictures.frames, pictures)
    assert (found is None) == (way in ("layout", "logits"))  # the shape tells one, the graph's last operator the other
    expected = metric(bound_to("imagenet_caffe", right), right, EXECUTOR.open(right.data, ALONE), pictures)
    assert metric(found.better if found else recipe, model, session, pictures) >= expected - 0.01


def bound_to(name: str, model: Model) -> Recipe:
    return choose_recipe(name, None, model.inputs, model.outputs, {}).recipe


def other_exporter(data: Path) -> Model:
    """Return YOLOX-nano as another exporter would write it: RGB, mean and std, logits, the grid applied."""
    model = Surgery(load_model(data / "models" / "yolox_nano_416.onnx"))
    model.feed(swap=True, before=(1.0, 0.0, 1.0), after=IMAGENET)
    boxes, scores = model.boxes((416, 416), "pixels"), model.scores(80, joined=False, logits=True)
    return model.outputs(answer=(model.node("Concat", boxes, scores, axis=2), (1, 3549, 85)))


@pytest.mark.slow
def test_a_yolox_by_another_exporter_is_refused_with_a_recipe_that_reads_it(data, tmp_path):
    model = tmp_path / "other.onnx"
    model.write_bytes(other_exporter(data).data)
    few = write_few(data / "coco" / "instances_val.json", 24, tmp_path / "few.json")
    with pytest.raises(EdgeoptError, match="recipe 'yolox' misreads this model: its AP on") as refused:
        optimize(model, target="cpu", eval=few, out=tmp_path / "o", threads=1)
    path = tmp_path / "o" / "proposed-recipe.toml"
    assert f"pass --recipe {path}" in refused.value.remedy
    assert 'boxes = "pixels", scores = "logits"' in refused.value.remedy
    found = read_recipe(path)
    assert found.preprocess.colour == "RGB"
    assert found.preprocess.mean == IMAGENET[1]
    assert found.class_names == find_recipe("yolox").class_names


HUES = np.cos(2 * np.pi * (np.arange(12) / 12 - np.arange(3)[:, None] / 3))
"""(channels, hues)"""


def classifier(gain: float) -> Model:
    """Return twelve classes by the hue; the larger the numbers it is fed, the surer it is."""
    return small_model(
        """hues (float[1,3,32,32] x) => (float[1,12] y) {
            m = GlobalAveragePool(x)
            f = Flatten(m)
            y = MatMul(f, w)
        }""",
        w=(HUES * gain).astype(np.float32),
    )


def found_without_labels(model: Model, heard: list[tuple[str, int, int]] | None = None) -> Misreading | None:
    """Read one picture of each hue as ImageNet, without labels; raw ones have 57 times the contrast."""
    colours = (127.5 + 100 * HUES.T[:, ::-1]).astype(np.uint8)  # BGR
    frames = replace(synthetic_frames((32, 32), 12), read=lambda i: np.full((32, 32, 3), colours[i], np.uint8))
    tell = (lambda what, done, of: heard.append((what, done, of))) if heard is not None else None
    session, recipe = EXECUTOR.open(model.data, SessionOptions()), bound_to("imagenet", model)
    return find_misreading(recipe, model.inputs, model.outputs, session, frames, None, tell)


def test_an_amplified_picture_casts_no_doubt_on_answers_that_are_sure():
    assert found_without_labels(classifier(gain=5.0)) is None


def test_an_amplified_picture_casts_doubt_on_answers_that_are_not():
    found = found_without_labels(classifier(gain=1.0))
    assert not found.is_proven
    assert found.better.preprocess.scale == 1.0


def untrained(gain: float) -> Model:
    """Return a thousand classes of random weights."""
    weight = np.random.default_rng(0).normal(0, gain, (3, 1000)).astype(np.float32)
    return small_model(
        """untrained (float[1,3,32,32] x) => (float[1,1000] y) {
            m = GlobalAveragePool(x) f = Flatten(m) y = MatMul(f, w)
        }""",
        w=weight,
    )


@pytest.mark.parametrize(("gain", "is_certain"), [(0.007, False), (0.05, True)])
def test_contrast_alone_refuses_no_untrained_network(gain, is_certain):
    found = found_without_labels(untrained(gain))
    assert "0.00 sure" in found.problem or "0.01 sure" in found.problem
    assert found.is_certain is is_certain


def thousand_hues(gain: float) -> Model:
    """Return the hues among a thousand classes, in the order RGB."""
    weight = np.concatenate([HUES * gain, np.full((3, 988), -1.0) * gain], axis=1).astype(np.float32)
    return small_model(
        """hues (float[1,3,32,32] x) => (float[1,1000] y) {
            m = GlobalAveragePool(x) f = Flatten(m) k = MatMul(f, w) y = Softmax(k)
        }""",
        w=weight,
    )


def labelled_hues(folder: Path) -> Path:
    """Write a picture of each hue, and a label file."""
    for i, hue in enumerate(HUES.T):
        cv2.imwrite(str(folder / f"{i}.png"), np.full((32, 32, 3), (127.5 + 100 * hue)[::-1], np.uint8))
    (folder / "labels.csv").write_text("file,class_index\n" + "".join(f"{i}.png,{i}\n" for i in range(12)))
    return folder / "labels.csv"


def test_nan_is_named_before_labels_are_doubted(tmp_path):
    save_model(classifier(gain=np.inf), tmp_path / "model.onnx")
    labels = labelled_hues(tmp_path)
    with pytest.raises(EdgeoptError, match="the original's output y holds NaN on 12 of 12 pictures"):
        quantize(tmp_path / "model.onnx", recipe="imagenet", eval=labels, calib=tmp_path, threads=1)


def test_labels_choose_among_recipes_that_fit_by_shape(tmp_path):
    save_model(thousand_hues(5.0), tmp_path / "hues.onnx")
    path, labels = str(tmp_path / "hues.onnx"), labelled_hues(tmp_path)
    with pytest.raises(EdgeoptError, match="2 recipes fit this model: imagenet, imagenet_caffe"):
        open_given(path, "cpu", None)
    choice = open_given(path, "cpu", None, labels=labels).choice
    assert choice.recipe.name == "imagenet"
    assert choice.reason.endswith("it reads the labels best")
    assert "2 recipes fit this model; on 12 labelled pictures: imagenet top1 1.0000" in str(choice.notes[-1])


def test_a_reading_that_scores_nothing_is_not_proposed(tmp_path):
    """All labels are a class that no reading gives: raw pictures make it likelier by far, and never the first."""
    model, labels = thousand_hues(gain=0.05), labelled_hues(tmp_path)
    lines = [line.split(",")[0] for line in labels.read_text().splitlines()]
    labels.write_text("".join(f"{file},999\n" for file in lines))
    recipe, labelled = bound_to("imagenet", model), open_labelled(labels)
    session = EXECUTOR.open(model.data, SessionOptions())
    assert find_misreading(recipe, model.inputs, model.outputs, session, labelled.frames, labelled) is None


def test_labels_that_do_not_tell_recipes_apart_leave_the_question_to_the_user(tmp_path):
    save_model(thousand_hues(0.0), tmp_path / "hues.onnx")
    with pytest.raises(EdgeoptError, match="12 labelled pictures do not tell them apart: imagenet top1") as refused:
        open_given(str(tmp_path / "hues.onnx"), "cpu", None, labels=labelled_hues(tmp_path))
    assert refused.value.remedy == "pass --recipe with one of imagenet, imagenet_caffe"


def test_how_far_the_readings_are_is_told():
    heard = []
    found_without_labels(classifier(gain=5.0), heard)
    assert heard[0] == ("read as the recipe says", 1, 12)
    told = [what for what, done, of in heard if done == of]
    assert told[1].startswith("try other reading 1 of ")
    assert len(heard) == 12 * len(told)


def misreading(certain: bool, proven: bool) -> Misreading:
    recipe = find_recipe("yolox")
    better = replace(recipe, preprocess=replace(recipe.preprocess, colour=Colour.RGB))
    return Misreading("its AP on 64 pictures is 0.1, that of another reading 0.3", better, certain, proven)


def test_a_recipe_that_was_recognised_is_refused_with_two_ways_on(tmp_path):
    with pytest.raises(EdgeoptError, match="recipe 'yolox' misreads this model") as refused:
        heed_misreading(misreading(False, True), Choice(find_recipe("yolox"), ""), tmp_path)
    assert '[preprocess] colour = "RGB"; or --recipe yolox to go on as it is' in refused.value.remedy
    assert read_recipe(tmp_path / "proposed-recipe.toml").preprocess.colour is Colour.RGB


def test_a_recipe_that_was_asked_for_is_warned_of(tmp_path):
    (note,) = heed_misreading(misreading(False, True), Choice(find_recipe("yolox"), "", is_given=True), tmp_path)
    assert note.kind is NoteKind.WARNING
    assert 'colour = "RGB"' in note.hint


def test_a_useless_reading_is_refused_even_where_it_was_asked_for(tmp_path):
    with pytest.raises(EdgeoptError, match="misreads"):
        heed_misreading(misreading(True, True), Choice(find_recipe("yolox"), "", is_given=True), tmp_path)


def test_what_only_sureness_says_is_told_as_a_guess(tmp_path):
    (note,) = heed_misreading(misreading(False, False), Choice(find_recipe("yolox"), ""), tmp_path)
    assert "may misread" in note.detail
    assert "--eval to be sure" in note.hint


@pytest.mark.parametrize("name", assets.model_folders())
def test_a_recipe_written_as_text_reads_as_it_was(name, tmp_path):
    recipe = find_recipe(name)
    (tmp_path / "l.txt").write_text("\n".join(recipe.class_names))
    (tmp_path / "r.toml").write_text(recipe_text(recipe, name="n", labels="l.txt" if recipe.class_names else ""))
    again = read_recipe(tmp_path / "r.toml")
    for part in ("task", "input", "preprocess", "postprocess", "check", "class_names"):
        assert getattr(again, part) == getattr(recipe, part)
