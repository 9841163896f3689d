"""Instances: masks as a plain reference computes them, scored as COCO does, told, drawn; wrong labels are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from coco_precision import plain_precision
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_masks

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Anchor, Geometry, Input, Preprocess, Resize
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe
from edgeopt.recipes.scoring.run_lengths import as_coco, mask_of, read_string, run_lengths, runs_of
from edgeopt.tasks import make_task
from edgeopt.tasks.instances.masks import Instances

SIZE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3
WHOLE = Geometry.of_input(SIZE)
PLANES = (1, 8, 16, 24)


def task(decoder: str, *shapes: tuple[int | str, ...], evaluating=True, names=(), resize=Resize.STRETCH, **numbers):
    numbers = {"strides": (8, 16, 32), **numbers} if decoder.startswith("yolo") else numbers
    feed = Preprocess(resize=resize, anchor=Anchor.CENTRE)
    recipe = Recipe(
        "mine", "instances", "", "", "", Postprocess(decoder, **numbers), Evaluation("AP"), Input("x", SIZE), feed,
        class_names=names,
    )  # fmt: skip
    outputs = [TensorSpec(f"y{i}", "float32", shape) for i, shape in enumerate(shapes)]
    return make_task(recipe, [TensorSpec("x", "float32", (1, 3, *SIZE))], outputs, evaluating=evaluating)


def head(classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and prototypes of a head of YOLO."""
    chance = np.random.default_rng(seed)
    rows = np.zeros((1, 4 + classes + 8, CELLS), np.float32)
    rows[0, :2] = chance.uniform(0, [[96], [64]], (2, CELLS))
    rows[0, 2:4] = chance.uniform(6, 50, (2, CELLS))
    rows[0, 4 : 4 + classes] = chance.uniform(0, 1, (classes, CELLS)) ** 6
    rows[0, 4 + classes :] = chance.normal(size=(8, CELLS))
    planes = np.stack([cv2.GaussianBlur(one, (5, 5), 2) for one in chance.normal(size=(8, 16, 24))])
    return rows, planes[None].astype(np.float32)


def plain_masks(coefficients, planes, boxes, geometry: Geometry) -> list[np.ndarray]:
    """Sum all prototypes, sample the sum at the middle of each pixel of the frame, cut at the box."""
    masks = []
    for row, box in zip(coefficients, boxes, strict=True):
        plane = np.einsum("c,chw->hw", row.astype(np.float64), planes)
        mask = np.zeros((geometry.height, geometry.width), bool)
        for y in range(geometry.height):
            for x in range(geometry.width):
                if not (box[0] <= x < box[2] and box[1] <= y < box[3]):
                    continue
                u = ((x + 0.5) * geometry.scale_x + geometry.offset_x) / 4 - 0.5
                v = ((y + 0.5) * geometry.scale_y + geometry.offset_y) / 4 - 0.5
                u, v = min(max(u, 0), 23), min(max(v, 0), 15)
                i, j = int(v), int(u)
                k, m = min(i + 1, 15), min(j + 1, 23)
                a, b = v - i, u - j
                above = plane[i, j] * (1 - b) + plane[i, m] * b
                below = plane[k, j] * (1 - b) + plane[k, m] * b
                mask[y, x] = above * (1 - a) + below * a > 0
        masks.append(mask)
    return masks


@pytest.mark.parametrize("shape", [(64, 96), (50, 40)])
def test_masks_of_prototypes_are_those_of_a_plain_reference(shape: tuple[int, int]) -> None:
    rows, planes = head()
    made = task("yolov8_segment", rows.shape, PLANES, resize=Resize.LETTERBOX, score_threshold=0.6, evaluating=False)
    _, geometry = made.preprocess(np.zeros((*shape, 3), np.uint8))
    found = made.postprocess({"y0": rows, "y1": planes}, geometry)
    assert len(found) > 4
    flat = rows[0].T
    where = [int(np.flatnonzero(flat[:, 4:6].max(axis=1) == score)[0]) for score in found.scores]
    wanted = plain_masks(flat[where, 6:], planes[0], found.boxes, geometry)
    differ = [np.count_nonzero(found.mask(i) != one) for i, one in enumerate(wanted)]
    assert sum(differ) <= 2, differ  # a sum next to zero, in float32
    assert sum(one.sum() for one in wanted) > 200


def test_end_to_end_rows_give_the_same_masks_in_any_order_of_outputs() -> None:
    rows, planes = head()
    kept = task("yolov8_segment", rows.shape, PLANES, score_threshold=0.6, evaluating=False)
    wanted = kept.postprocess({"y0": rows, "y1": planes}, WHOLE)
    flat = rows[0].T
    where = [int(np.flatnonzero(flat[:, 4:6].max(axis=1) == score)[0]) for score in wanted.scores]
    whole = np.full((1, 20, 14), -1, np.float32)
    for i, row in enumerate(where):
        x, y, w, h = flat[row, :4]
        whole[0, i] = [x - w / 2, y - h / 2, x + w / 2, y + h / 2, wanted.scores[i], wanted.classes[i], *flat[row, 6:]]
    made = task("end_to_end_segment", PLANES, whole.shape, score_threshold=0.6, evaluating=False)
    found = made.postprocess({"y0": planes, "y1": whole}, WHOLE)
    assert len(found) == len(wanted)
    assert all((found.mask(i) == wanted.mask(i)).all() for i in range(len(found)))


def test_whole_masks_and_masks_of_boxes() -> None:
    """Mask R-CNN as torchvision pastes it, and as it is before: 28 x 28 of each box."""
    chance = np.random.default_rng(0)
    boxes = np.array([[8, 8, 40, 40], [50, 10, 90, 60]], np.float32)
    small = np.stack([cv2.GaussianBlur(one, (9, 9), 4) for one in chance.uniform(0, 1, (2, 28, 28))])[:, None]
    small = (small - 0.5) * 4 + 0.5
    pasted = np.zeros((2, 1, *SIZE), np.float32)
    for i, (left, top, right, bottom) in enumerate(boxes.astype(int)):
        size = (right - left, bottom - top)
        pasted[i, 0, top:bottom, left:right] = cv2.resize(small[i, 0].astype(np.float32), size)
    others = {"y1": np.array([1, 3]), "y2": np.array([0.9, 0.8], np.float32)}
    found = []
    for masks in (small.astype(np.float32), pasted):
        made = task("instances", ("n", 4), ("n",), ("n",), ("n", *masks.shape[1:]), background=True)
        found.append(made.postprocess({"y0": boxes, **others, "y3": masks}, WHOLE))
    assert found[0].classes.tolist() == [0, 2]
    for i in range(2):
        assert (found[1].mask(i) == (pasted[i, 0] > 0.5)).all()
        assert np.mean(found[0].mask(i) != found[1].mask(i)) < 0.01
        assert found[0].mask(i).sum() > 100


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), height=st.integers(1, 9), width=st.integers(1, 9))
def test_runs_are_those_of_coco_wherever_a_cutout_lies(seed: int, height: int, width: int) -> None:
    chance = np.random.default_rng(seed)
    rows, columns = int(chance.integers(1, height + 1)), int(chance.integers(1, width + 1))
    left, top = int(chance.integers(0, width - columns + 1)), int(chance.integers(0, height - rows + 1))
    mask = np.zeros((height, width), bool)
    cutout = chance.uniform(size=(rows, columns)) < chance.uniform(0, 1.2)
    mask[top : top + rows, left : left + columns] = cutout
    runs = runs_of(cutout, (left, top), mask.shape)
    assert runs.sum() == mask.size
    assert (runs[1:] > 0).all()
    assert (mask_of(runs, mask.shape) == mask).all()
    packed = coco_masks.frPyObjects(as_coco(runs, mask.shape), height, width)
    assert (coco_masks.decode(packed) == mask).all()
    assert read_string(packed["counts"].decode()) == runs.tolist()


@pytest.mark.parametrize("text", ["~~~~", "\x00", "o" * 40, "é"])
def test_a_string_that_is_no_run_lengths_is_seen(text: str) -> None:
    assert read_string(text) is None


def things(folder: Path, count: int = 6) -> tuple[Path, list[list[np.ndarray]]]:
    """Write COCO JSON of circles and rectangles, as polygons and as both kinds of run lengths."""
    chance, entries, truth = np.random.default_rng(1), [], []
    for i in range(count):
        masks = []
        for k in range(int(chance.integers(1, 4))):
            mask = np.zeros((50, 70), np.uint8)
            corner = chance.integers(2, 20, 2) + np.array([20, 5]) * k
            polygon = corner + np.array([[0, 0], [14, 0], [14, 12], [0, 12]])
            cv2.fillPoly(mask, [polygon], 1)
            flat = [float(v) for v in polygon.ravel()]
            packed = coco_masks.merge(coco_masks.frPyObjects([flat], 50, 70))
            mask = coco_masks.decode(packed).astype(bool)
            outline = [[flat], run_lengths(mask), {**packed, "counts": packed["counts"].decode()}][(i + k) % 3]
            box = [float(v) for v in (*corner, 14, 12)]
            entries.append({"image_id": i, "category_id": 7, "bbox": box, "segmentation": outline})
            masks.append(mask)
        truth.append(masks)
    images = [{"id": i, "file_name": f"{i}.png", "width": 70, "height": 50} for i in range(count)]
    coco = {"images": images, "annotations": entries, "categories": [{"id": 7, "name": "thing"}]}
    (folder / "things.json").write_text(json.dumps(coco))
    return folder / "things.json", truth


def answer_of(masks: list[np.ndarray], scores: list[float]) -> Instances:
    boxes = np.zeros((len(masks), 4), np.float32)
    runs = tuple(np.array(run_lengths(one)["counts"], np.int64) for one in masks)
    return Instances(boxes, np.array(scores, np.float32), np.zeros(len(masks), np.int64), runs, (50, 70))


def precision_of(truths: list[list[np.ndarray]], answers: list[Instances]) -> float:
    """Return COCO's AP, with the overlap of masks counted pixel by pixel."""

    def overlap(i: int, k: int, j: int) -> float:
        mine, mask = answers[i].mask(k), truths[i][j]
        return (mine & mask).sum() / (mine | mask).sum()

    return plain_precision(truths, [answer.scores.tolist() for answer in answers], overlap, sum(map(len, truths)))


def test_scored_as_coco_does(tmp_path: Path) -> None:
    path, truth = things(tmp_path)
    chance = np.random.default_rng(2)
    answers = []
    for masks in truth:
        moved = [np.roll(one, chance.integers(-3, 4, 2), (0, 1)) for one in masks]
        wrong = [np.roll(one, 25, 1) for one in masks[:1]]
        scores = (chance.permutation(len(moved) + 1) + 1) / 10
        answers.append(answer_of([*moved, *wrong], scores.tolist()))
    made = task("instances", ("n", 4), ("n",), ("n",), ("n", 1, 64, 96))
    labels = read_labels(path)
    found = made.score(answers, labels)
    assert 0.1 < found.value < 0.95
    assert found.value == pytest.approx(precision_of(truth, answers), abs=1e-6)
    assert made.score([answer_of(one, [0.9] * len(one)) for one in truth], labels).value == pytest.approx(1.0)
    assert made.score_resamples(answers, labels, np.ones((1, 6), np.int64))[0] == pytest.approx(found.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"segmentation": [[1, 2, 3]]}, "not three points"),
        ({"segmentation": [[1, 2, 3, 4, 5, 1e9]]}, "outside the picture"),
        ({"segmentation": {"size": [50, 70], "counts": [3]}}, "add up to 3, not 3500"),
        ({"segmentation": {"size": [50, 70], "counts": [-3500]}}, "no run lengths"),
        ({"segmentation": {"size": [50, 70], "counts": "~~"}}, "no run lengths"),
        ({"segmentation": {"size": [5, 7], "counts": [35]}}, "the picture has"),
        ({"segmentation": []}, "no outline"),
        ({"segmentation": 7}, "no outline"),
    ],
)
def test_wrong_outlines_are_refused_and_do_not_trouble_a_detector(tmp_path: Path, change, told: str) -> None:
    path, truth = things(tmp_path)
    values = json.loads(path.read_text())
    values["annotations"][0].update(change)
    path.write_text(json.dumps(values))
    labels = read_labels(path)
    made = task("instances", ("n", 4), ("n",), ("n",), ("n", 1, 64, 96))
    with pytest.raises(InvalidFileError, match=told):
        made.score([answer_of(one, [0.9] * len(one)) for one in truth], labels)


def test_labels_without_outlines_or_of_other_sizes_are_refused(tmp_path: Path) -> None:
    path, truth = things(tmp_path)
    answers = [answer_of(one, [0.9] * len(one)) for one in truth]
    made = task("instances", ("n", 4), ("n",), ("n",), ("n", 1, 64, 96))
    values = json.loads(path.read_text())
    values["images"][2]["width"] = 71
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidFileError, match=r"image 2.png is 71x50, its picture 70x50"):
        made.score(answers, read_labels(path))
    for one in values["annotations"]:
        del one["segmentation"]
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidFileError, match="holds no outlines"):
        made.score(answers, read_labels(path))


def test_agreement_and_loss_fall_with_what_is_lost() -> None:
    rows, planes = head()
    made = task("yolov8_segment", rows.shape, PLANES)
    raw = {"y0": rows, "y1": planes}
    answers = [made.postprocess(raw, WHOLE)]
    assert (made.agreement(answers, answers), made.loss([raw], [raw])) == (pytest.approx(1.0), 0.0)
    previous, agreed = 0.0, 1.0
    for noise in (0.1, 0.4, 1.5):
        near = {"y0": rows, "y1": planes + noise * np.random.default_rng(1).normal(size=PLANES).astype(np.float32) / 4}
        lost, agreement = made.loss([near], [raw]), made.agreement([made.postprocess(near, WHOLE)], answers)
        assert lost > previous
        assert agreement < agreed
        previous, agreed = lost, agreement
    assert made.loss([{"y0": rows, "y1": planes * np.float32(np.nan)}], [raw]) == np.inf


def test_nan_is_nothing_and_an_empty_box_has_an_empty_mask() -> None:
    rows, planes = head()
    made = task("yolov8_segment", rows.shape, PLANES)
    answer = made.postprocess({"y0": rows * np.float32(np.nan), "y1": planes}, WHOLE)
    assert (made.count(answer), made.as_text(answer), made.as_json(answer)) == (0, "nothing", {"instances": []})
    rows[0, 2:4] = 0
    answer = made.postprocess({"y0": rows, "y1": planes * np.float32(np.nan)}, WHOLE)
    assert made.count(answer)
    assert not any(answer.mask(i).any() for i in range(len(answer)))


@pytest.mark.parametrize("decoder", ["yolov8_segment", "end_to_end_segment"])
def test_a_frame_without_a_thing_has_no_mask(decoder: str) -> None:
    shape = (1, 14, CELLS) if decoder == "yolov8_segment" else (1, 30, 14)
    made = task(decoder, shape, PLANES)
    answer = made.postprocess({"y0": np.zeros(shape, np.float32), "y1": np.zeros(PLANES, np.float32)}, WHOLE)
    assert (len(answer), answer.runs) == (0, ())
    assert (made.agreement([answer], [answer]), made.sureness([answer]).tolist()) == (1.0, [0.0])
    made.draw(np.zeros((*SIZE, 3), np.uint8), answer)


def test_told_and_drawn() -> None:
    rows, planes = head()
    made = task("yolov8_segment", rows.shape, PLANES, names=("cup", "plate"), score_threshold=0.5, evaluating=False)
    answer = made.postprocess({"y0": rows, "y1": planes}, WHOLE)
    told = made.as_json(answer)["instances"]
    json.dumps(told, allow_nan=False)
    assert len(told) == len(answer) > 4
    assert {one["class"] for one in told} == {"cup", "plate"}
    mask = coco_masks.decode(coco_masks.frPyObjects(told[0]["rle"], *SIZE))
    assert (mask == answer.mask(0)).all()
    assert f"({answer.mask(0).mean():.1%} of the frame)" in made.as_text(answer)
    drawn = made.draw(np.zeros((*SIZE, 3), np.uint8), answer)
    assert drawn.shape == (320, 480, 3)
    assert drawn.any()


@pytest.mark.parametrize(
    ("decoder", "shapes", "told"),
    [
        ("yolov8_segment", [(1, 14, CELLS)], "coefficients"),
        ("yolov8_segment", [(1, 12, CELLS), PLANES], "coefficients"),
        ("yolov8_segment", [(1, 14, 99), PLANES], "one box for each"),
        ("end_to_end_segment", [(1, 300, 15), PLANES], "6 \\+ coefficients"),
        ("instances", [(5, 4), (5,), (5,)], "masks n x 1"),
    ],
)
def test_what_does_not_fit_is_refused(decoder: str, shapes, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        task(decoder, *shapes)


def test_no_such_decoder_and_other_classes() -> None:
    with pytest.raises(NotFoundError, match="decoder of task instances"):
        task("yolov8", (1, 14, CELLS))
    with pytest.raises(UnsupportedError, match="has 2 classes, recipe 'mine' names 1"):
        task("yolov8_segment", (1, 14, CELLS), PLANES, names=("a",))


def test_frames_of_two_sizes_are_compared_by_their_boxes() -> None:
    small, made = answer_of([np.ones((50, 70), bool)], [0.9]), task("instances", ("n", 4), ("n",), ("n",), ("n", 9, 9))
    other = replace(small, size=(51, 70), boxes=small.boxes + 9)
    assert made.sureness([small, other]).shape == (2,)
