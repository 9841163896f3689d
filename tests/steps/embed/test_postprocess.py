"""An embedded decoder gives what the task gives: for every decoder and unit, with ties, NaN and nothing found."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from detector_decoders import DECODERS
from onnx import helper

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.recipes.embedded import BOXES, CLASSES, POINTS, SCORES, Embedded
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.outputs.columns import Column
from edgeopt.recipes.recipe import Boxes, Postprocess, Recipe, Scores, find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.system.declared.target import find_target
from edgeopt.tasks import make_task

SIZE, STRIDES, COUNT = (64, 96), (8, 16, 32), 5
CELLS = sum((SIZE[0] // s) * (SIZE[1] // s) for s in STRIDES)
ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))
LOW, PIXELS = (-3.0, 2.0), (0.0, 90.0)


def rows(rng: np.random.Generator, count: int, boxes: tuple[float, float], values: int) -> np.ndarray:
    """Return (1, count, values): boxes in a range, then scores in steps of 1/16, so that many are equal."""
    made = rng.uniform(*boxes, (1, count, values)).astype(np.float32)
    made[..., 4:] = rng.integers(0, 17, (1, count, values - 4)) / 16
    return made


def heads(rng: np.random.Generator, boxes: tuple[float, float], *, flat: bool) -> list[np.ndarray]:
    made = [rng.uniform(*LOW, (1, 3, SIZE[0] // s, SIZE[1] // s, 5 + COUNT)).astype(np.float32) for s in STRIDES]
    for one in made:
        one[..., :4] = rng.uniform(*boxes, (*one.shape[:-1], 4))
    return [one.transpose(0, 1, 4, 2, 3).reshape(1, -1, *one.shape[2:4]) for one in made] if flat else made[::-1]


def corners(rng: np.random.Generator, count: int, most: float) -> np.ndarray:
    low, side = rng.uniform(0, most, (1, count, 2)), rng.uniform(0, most / 2, (1, count, 2))
    return np.concatenate([low, low + side], axis=2).astype(np.float32)


def outputs_of(decoder: str, numbers: Postprocess, rng: np.random.Generator, *, flat: bool) -> list[np.ndarray]:
    unit = (0.0, 1.0) if numbers.boxes is Boxes.RELATIVE else PIXELS
    if decoder == "yolov5_heads":
        return heads(rng, unit if numbers.boxes is Boxes.PIXELS else LOW, flat=flat)
    if decoder == "yolov5" and numbers.boxes is Boxes.CELLS:
        return [rows(rng, 3 * CELLS, (0.0, 1.0), 5 + COUNT)]
    if decoder == "yolox":
        return [rows(rng, CELLS, LOW if numbers.boxes is Boxes.USUAL else unit, 5 + COUNT)]
    if decoder == "yolov5":
        return [rows(rng, CELLS, unit, 5 + COUNT)]
    if decoder == "yolov8":
        found = rows(rng, CELLS, (0.0, 4.0) if numbers.boxes is Boxes.CELLS else unit, 4 + COUNT)
        return [found.transpose(0, 2, 1).copy()]
    if decoder == "yolov8_dfl" and flat:
        planes = [(SIZE[0] // s, SIZE[1] // s) for s in STRIDES]
        return [rng.normal(0, 1, (1, n, *plane)).astype(np.float32) for plane in planes for n in (64, COUNT, 1)]
    if decoder == "yolov8_dfl":
        return [rng.normal(0, 1, (1, 64 + COUNT, CELLS)).astype(np.float32)]
    if decoder == "nanodet":
        return [rng.normal(0, 1, (1, CELLS, COUNT + 32)).astype(np.float32)]
    if decoder == "end_to_end":
        labels = rng.integers(-1, COUNT, (1, 60, 1))
        return [np.concatenate([corners(rng, 60, unit[1]), rows(rng, 60, unit, 5)[..., 4:], labels], 2).astype("f4")]
    if decoder == "rtdetr_rows":
        labels = rng.integers(0, COUNT, (1, 60, 1))
        return [np.concatenate([rows(rng, 60, (0.1, 0.9), 5), labels], 2).astype("f4")]
    if decoder == "rtdetr" and flat:
        return [rows(rng, 300, (0.0, 1.0), 4 + COUNT)]
    scores = rows(rng, 80, unit, 4 + COUNT)[..., 4:]
    if "offsets" in decoder:
        points = [rng.uniform(0, 1, (1, 3 * CELLS, 10)).astype(np.float32)] if flat else []
        scores = rng.uniform(0, 1, (1, 3 * CELLS, COUNT)).astype(np.float32)  # a softmax leaves no ties to compare
        return [rng.normal(0, 1, (1, 3 * CELLS, 4)).astype(np.float32), scores, *points]
    if decoder in ("detr", "rtdetr"):
        return [scores, rng.uniform(0, 1, (1, 80, 4)).astype(np.float32)]
    return [corners(rng, 80, 1.0 if numbers.boxes is Boxes.USUAL else unit[1]), scores]


CASES = {
    f"{decoder} {boxes} {scores}{' flat' if flat else ''}{' background' if background else ''}": (
        Postprocess(
            decoder,
            STRIDES,
            ANCHORS if "yolov5" in decoder or "offsets" in decoder else (),
            boxes,
            scores,
            background=background,
        ),
        flat,
    )
    for decoder, units, flat, background in (
        ("yolox", (Boxes.USUAL, Boxes.PIXELS, Boxes.RELATIVE), False, False),
        ("yolov8", (Boxes.USUAL, Boxes.CELLS, Boxes.RELATIVE), False, False),
        ("yolov8_dfl", (Boxes.USUAL,), False, False),
        ("yolov8_dfl", (Boxes.USUAL,), True, False),
        ("nanodet", (Boxes.USUAL,), False, False),
        ("yolov5", (Boxes.USUAL, Boxes.CELLS, Boxes.RELATIVE), False, False),
        ("yolov5_heads", (Boxes.USUAL, Boxes.PIXELS), False, False),
        ("yolov5_heads", (Boxes.USUAL,), True, False),
        ("end_to_end", (Boxes.USUAL, Boxes.RELATIVE), False, False),
        ("ssd_corners", (Boxes.USUAL, Boxes.PIXELS), False, False),
        ("ssd_corners", (Boxes.USUAL,), False, True),
        ("ssd_offsets", (Boxes.USUAL,), False, True),
        ("ssd_offsets", (Boxes.USUAL,), True, False),
        ("ssd_offsets_yx", (Boxes.USUAL,), False, True),
        ("detr", (Boxes.USUAL,), False, False),
        ("rtdetr", (Boxes.USUAL,), False, False),
        ("rtdetr", (Boxes.USUAL,), True, False),
        ("rtdetr_rows", (Boxes.USUAL, Boxes.PIXELS), False, False),
    )
    for boxes in units
    for scores in (Scores.USUAL, Scores.LOGITS)
}


def passing_through(values: list[np.ndarray], opset: int) -> Model:
    """Return a model whose outputs are its inputs."""
    names = [f"out{i}" for i in range(len(values))]
    ends = [
        [
            helper.make_tensor_value_info(prefix + name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
            for name, one in zip(names, values, strict=True)
        ]
        for prefix in ("in_", "")
    ]
    nodes = [helper.make_node("Identity", [f"in_{name}"], [name]) for name in names]
    graph = helper.make_graph(nodes, "g", *ends)
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), "through")


def run(model: Model, values: list[np.ndarray]) -> Tensors:
    session = ort.InferenceSession(model.data, providers=["CPUExecutionProvider"])
    fed = {one.name: value for one, value in zip(session.get_inputs(), values, strict=True)}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, fed), strict=True))


def bound(numbers: Postprocess, name: str = "yolox") -> Recipe:
    return replace(find_recipe(name).with_size(*SIZE), postprocess=numbers, class_names=())


def check(numbers: Postprocess, values: list[np.ndarray], opset: int = 17) -> int:
    """Compare an embedded decoder with the task's; return how many boxes there are."""
    recipe, model = bound(numbers), passing_through(values, opset)
    task = make_task(recipe, model.inputs, model.outputs, evaluating=False)
    whole = Geometry.of_input(SIZE)
    wanted = task.postprocess({one.name: value for one, value in zip(model.outputs, values, strict=True)}, whole)
    found = run(embed_postprocess(model, recipe), values)
    np.testing.assert_allclose(found[SCORES], wanted.scores, atol=1e-6)
    np.testing.assert_array_equal(found[CLASSES], wanted.classes)
    np.testing.assert_allclose(whole.to_frame(found[BOXES]), wanted.boxes, rtol=1e-4, atol=1e-3)
    assert (POINTS in found) == (wanted.points is not None) == ("offsets" in numbers.decoder and len(values) == 3)
    if wanted.points is not None:
        np.testing.assert_allclose(found[POINTS], wanted.points, rtol=1e-4, atol=1e-3)
    return len(wanted)


def suppressed(
    decoder: str, unit: float, *, batch: bool, counts: bool, columns: tuple[Column, ...]
) -> list[np.ndarray]:
    """Return what a graph gives that suppresses boxes itself; some rows are none."""
    rng = np.random.default_rng(5)
    boxes, scores = corners(rng, 60, unit)[0], (rng.integers(0, 17, 60) / 16).astype(np.float32)
    labels = rng.integers(-1, COUNT, 60)
    if decoder == "columns":
        centred = [(boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2, *(boxes[:, 2:] - boxes[:, :2]).T]
        known = dict(zip(CORNERS, boxes.T, strict=True)) | dict(zip(CENTRED, centred, strict=True))
        known |= {Column.SCORE: scores, Column.CLASS: labels, Column.BATCH: rng.integers(0, 2, 60)}
        made = np.stack([known.get(one, scores) for one in columns], 1).astype(np.float32)
        return [made[None, None] if batch else made]
    outputs = [boxes, labels, scores]
    if decoder == "scored_boxes":
        outputs = [labels, np.concatenate([boxes, scores[:, None]], 1)]
    outputs = [one[None] for one in outputs] if batch else outputs
    return [*outputs, np.array([[41]], np.int32)] if counts else outputs


CORNERS = (Column.LEFT, Column.TOP, Column.RIGHT, Column.BOTTOM)
CENTRED = (Column.X, Column.Y, Column.WIDTH, Column.HEIGHT)
SUPPRESSED = {
    f"{i} {decoder} {unit}": (
        Postprocess(decoder, (), (), unit, columns=columns, background=background),
        suppressed(decoder, 1.0 if is_relative else 90.0, batch=batch, counts=counts, columns=columns),
    )
    for i, (decoder, unit, is_relative, batch, counts, background, columns) in enumerate(
        (
            ("columns", Boxes.USUAL, False, False, False, False, (Column.BATCH, *CORNERS, Column.CLASS, Column.SCORE)),
            ("columns", Boxes.USUAL, False, True, False, True, (*CORNERS, Column.SCORE, Column.CLASS)),
            ("columns", Boxes.RELATIVE, True, False, False, False, (Column.OTHER, Column.SCORE, *CENTRED)),
            ("detections", Boxes.USUAL, False, False, False, True, ()),
            ("detections", Boxes.USUAL, False, True, True, False, ()),
            ("detections", Boxes.RELATIVE, True, True, False, True, ()),
            ("detections_yx", Boxes.USUAL, True, True, True, True, ()),
            ("scored_boxes", Boxes.USUAL, False, True, False, False, ()),
            ("scored_boxes", Boxes.USUAL, False, False, False, True, ()),
        )
    )
}


@pytest.mark.parametrize("case", SUPPRESSED)
@pytest.mark.parametrize("threshold", [0.3, 0.999])
def test_boxes_that_are_suppressed_already_are_embedded_as_the_task_reads_them(case, threshold):
    numbers, values = SUPPRESSED[case]
    count = check(replace(numbers, score_threshold=threshold), values)
    assert 3 < count < 50 if threshold < 0.9 else count < 10


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threshold", [0.3, 0.999])
def test_an_embedded_decoder_gives_the_tasks_boxes(case, threshold):
    numbers, flat = CASES[case]
    values = outputs_of(numbers.decoder, numbers, np.random.default_rng(7), flat=flat)
    count = check(replace(numbers, score_threshold=threshold), values)
    assert count > 0 or threshold > 0.9


NOT_EMBEDDED = {"dbnet", "dbnet_upright"}
"""Standard ONNX finds no regions."""


def test_every_decoder_is_compared_or_refused():
    compared = {numbers.decoder for numbers, _ in CASES.values()} | {
        numbers.decoder for numbers, _ in SUPPRESSED.values()
    }
    assert compared | NOT_EMBEDDED == DECODERS.keys()


@pytest.mark.parametrize("decoder", sorted(NOT_EMBEDDED))
def test_a_decoder_that_is_not_embedded_is_refused_by_name(decoder):
    with pytest.raises(UnsupportedError, match=rf"decoder = '{decoder}' is not embedded"):
        embed_postprocess(passing_through([np.zeros((1, 1, 3, 3), np.float32)], 17), bound(Postprocess(decoder)))


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_it_is_written_in_the_models_opset(opset):
    numbers, _ = CASES["yolox usual usual"]
    model = passing_through(outputs_of("yolox", numbers, np.random.default_rng(1), flat=False), opset)
    made = embed_postprocess(model, bound(numbers))
    assert made.opset == opset
    assert check(numbers, outputs_of("yolox", numbers, np.random.default_rng(1), flat=False), opset)


HEADS = Path(__file__).parents[2] / "heads"


@pytest.mark.parametrize("inside", [(Embedded.POSTPROCESS,), tuple(Embedded)])
@pytest.mark.parametrize("name", ["v8_pose", "yolo26_pose", "v8_segment", "yolo26_segment"])
def test_points_and_masks_are_those_of_the_task(name: str, inside: tuple[Embedded, ...]) -> None:
    """Graphs by the families' own exporters; with the frame embedded its resize is fed to both alike."""
    model = Model(onnx.load_model_from_string(gzip.decompress((HEADS / f"{name}.onnx.gz").read_bytes())), name)
    recipe = choose_recipe(None, None, model.inputs, model.outputs, model.metadata).recipe
    recipe = replace(recipe, postprocess=replace(recipe.postprocess, score_threshold=0.25, max_detections=100))
    height, width = recipe.input.size
    noise = np.random.default_rng(1).integers(0, 256, (height, width - 16, 3), dtype=np.uint8)
    frame = noise.repeat(2, axis=0).repeat(2, axis=1)  # it is halved, and padded on its sides
    whole = Embedded.PREPROCESS in inside
    fed = embed_preprocess(model, recipe) if whole else model
    answers = []
    for one, parts in ((fed, inside[:-1] if whole else ()), (embed_postprocess(fed, recipe), inside)):
        task = make_task(recipe.with_embedded(*parts), one.inputs, one.outputs, evaluating=False)
        session = ort.InferenceSession(one.data, providers=["CPUExecutionProvider"])
        inputs, geometry = task.preprocess(frame)
        made = session.run(None, dict(inputs))
        outputs = dict(zip([output.name for output in session.get_outputs()], made, strict=True))
        answers.append(task.postprocess(outputs, geometry))
    wanted, found = answers
    assert len(found) == len(wanted) >= 3
    np.testing.assert_array_equal(found.classes, wanted.classes)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
    np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-4, atol=0.02)
    if "segment" not in name:
        np.testing.assert_allclose(found.points, wanted.points, rtol=1e-4, atol=0.02)
        return
    masks = [np.stack([one.mask(i) for i in range(len(one))]) for one in answers]
    area = sum(int(one.sum()) for one in masks) / 2
    assert area > 300
    # of the frame pixel by pixel; of the input's pixels the outline moves when it is led into the frame
    assert np.count_nonzero(masks[0] != masks[1]) <= (0.002 if whole else 0.15) * area


@pytest.mark.parametrize("decoder", ["poses", "instances", "dbnet"])
def test_an_answer_that_is_not_embedded_is_refused_before_anything_runs(decoder: str) -> None:
    recipe = {"poses": "torchvision_keypoints", "instances": "torchvision_instances", "dbnet": "dbnet"}[decoder]
    options = Options(steps=("default", "embed-postprocess"))
    with pytest.raises(UnsupportedError, match=rf"embed-postprocess: .* decoder = '{decoder}' is not embedded"):
        make_plan(find_recipe(recipe), find_target("cpu"), options, 1)


def test_a_low_limit_keeps_the_best_boxes():
    numbers, _ = CASES["yolov8 usual usual"]
    values = outputs_of("yolov8", numbers, np.random.default_rng(3), flat=False)
    assert check(replace(numbers, max_detections=3), values) == 3


def test_boxes_that_are_nan_or_infinite_are_left_out():
    numbers, _ = CASES["yolov5 usual usual"]
    values = outputs_of("yolov5", numbers, np.random.default_rng(3), flat=False)
    values[0][0, ::2, 0] = np.nan
    values[0][0, 1::4, 2] = np.inf
    assert check(numbers, values)


@pytest.mark.parametrize("decoder", ["logits", "probabilities"])
@pytest.mark.parametrize("background", [False, True])
def test_an_embedded_classifier_gives_the_tasks_classes(decoder, background):
    recipe = find_recipe("imagenet").with_size(8, 8)
    recipe = replace(recipe, postprocess=replace(recipe.postprocess, decoder=decoder, background=background))
    values = [np.random.default_rng(0).normal(0, 3, (1, 40, 1, 1)).astype(np.float32)]
    model = passing_through(values, 17)
    wanted = make_task(recipe, model.inputs, model.outputs, evaluating=False).postprocess({"out0": values[0]}, None)
    found = run(embed_postprocess(model, recipe), values)
    np.testing.assert_array_equal(found[CLASSES], wanted.indices)
    np.testing.assert_allclose(found[SCORES], wanted.scores, rtol=1e-5)
    values[0][0, 3] = np.nan
    assert len(run(embed_postprocess(model, recipe), values)[CLASSES]) == 0


def test_outputs_that_are_the_answer_are_refused_by_the_recipes_setting():
    recipe = find_recipe("tensors").with_size(8, 8)
    with pytest.raises(UnsupportedError, match=r"decoder = 'none'"):
        embed_postprocess(passing_through([np.zeros((1, 3), np.float32)], 17), recipe)


def test_a_decoder_that_is_not_known_is_refused_by_name():
    numbers = Postprocess("centernet")
    with pytest.raises(UnsupportedError, match=r"decoder = 'centernet'"):
        embed_postprocess(passing_through([np.zeros((1, 3, 3), np.float32)], 17), bound(numbers))
