"""Poses: decoded as a plain reference does, scored as COCO does, told, drawn, and refused where labels do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from coco_precision import plain_precision

from edgeopt.errors import EdgeoptError, InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Anchor, Geometry, Input, Preprocess, Resize
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.recipe import Centres, Evaluation, Postprocess, Recipe, Scores, find_recipe
from edgeopt.recipes.scoring.keypoints import COCO_NAMES, Keypoints, likeness
from edgeopt.tasks import make_task
from edgeopt.tasks.keypoints.poses import Poses

SIZE = (64, 96)
CELLS = 8 * 12 + 4 * 6 + 2 * 3
COCO = Keypoints()
WHOLE = Geometry.of_input(SIZE)


def task(decoder: str, *shapes: tuple[int | str, ...], evaluating=True, names=(), keypoints=COCO, **numbers):
    numbers = {"strides": (8, 16, 32), **numbers} if decoder.startswith("yolo") else numbers
    recipe = Recipe(
        "mine", "keypoints", "", "", "", Postprocess(decoder, **numbers), Evaluation("AP"), Input("x", SIZE),
        keypoints=keypoints, class_names=names,
    )  # fmt: skip
    outputs = [TensorSpec(f"y{i}", "float32", shape) for i, shape in enumerate(shapes)]
    return make_task(recipe, [TensorSpec("x", "float32", (1, 3, *SIZE))], outputs, evaluating=evaluating)


def rows(classes: int, points: int, values: int, seed: int = 0) -> np.ndarray:
    """Return what a head of YOLO gives: few boxes that are sure, many that are not."""
    chance = np.random.default_rng(seed)
    found = np.zeros((4 + classes + points * values, CELLS), np.float32)
    found[:2] = chance.uniform(10, 60, (2, CELLS))
    found[2:4] = chance.uniform(8, 40, (2, CELLS))
    found[4 : 4 + classes] = chance.uniform(0, 1, (classes, CELLS)) ** 6
    found[4 + classes :] = chance.uniform(0, 64, (points * values, CELLS))
    if values == 3:
        found[4 + classes + 2 :: 3] = chance.uniform(0, 1, (points, CELLS))
    return found


def overlap(a, b) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(high, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize(("classes", "points", "values"), [(1, 17, 3), (3, 4, 2)])
def test_a_yolo_head_is_read_row_by_row(classes: int, points: int, values: int) -> None:
    raw = rows(classes, points, values)
    keypoints = Keypoints(count=points, values=values)
    made = task("yolov8_pose", (1, *raw.shape), keypoints=keypoints, score_threshold=0.5, evaluating=False)
    found = made.postprocess({"y0": raw[None]}, WHOLE)
    kept: list[tuple[np.ndarray, int, float, np.ndarray]] = []
    for column in sorted(raw.T, key=lambda one: -one[4 : 4 + classes].max()):
        x, y, w, h = column[:4]
        label, score = int(column[4 : 4 + classes].argmax()), float(column[4 : 4 + classes].max())
        box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
        if score > 0.5 and all(label != other or overlap(box, old) <= 0.45 for old, other, *_ in kept):
            places = column[4 + classes :].reshape(points, values)
            sure = places if values == 3 else np.column_stack([places, np.ones(points)])
            kept.append((box, label, score, sure))
    assert len(found) == len(kept) >= 5
    for i, (box, label, score, sure) in enumerate(kept):
        np.testing.assert_allclose(found.boxes[i], box.clip(0, [96, 64, 96, 64]), atol=1e-3)
        np.testing.assert_allclose(found.points[i], sure, atol=1e-3)
        assert (int(found.classes[i]), pytest.approx(float(found.scores[i]))) == (label, score)


def test_end_to_end_rows_are_not_suppressed() -> None:
    chance = np.random.default_rng(0)
    raw = np.zeros((1, 30, 57), np.float32)
    raw[0, :, :4] = [10, 10, 40, 50]
    raw[0, :20, 4] = np.linspace(0.9, 0.1, 20)
    raw[0, :, 6:] = chance.uniform(0, 60, (30, 51))
    found = task("end_to_end_pose", (1, 30, 57), score_threshold=0.3, evaluating=False).postprocess({"y0": raw}, WHOLE)
    assert len(found) == 15
    np.testing.assert_allclose(found.points[3], raw[0, 3, 6:].reshape(17, 3))


@pytest.mark.parametrize("centres", [Centres.USUAL, Centres.MIDDLE])
def test_a_map_gives_its_highest_place_moved_a_quarter_of_a_cell(centres: Centres) -> None:
    """As `get_final_preds` of HRNet, point by point."""
    maps = np.random.default_rng(1).uniform(0.1, 0.9, (9, 16, 24)).astype(np.float32)
    maps[0, 0, 5] = maps[1, 15, 23] = 1.0
    found = task("heatmaps", (1, 9, 16, 24), centres=centres).postprocess({"y0": maps[None]}, WHOLE)
    shift = 0.5 if centres is Centres.MIDDLE else 0.0
    for i, one in enumerate(maps):
        y, x = (int(v) for v in np.unravel_index(one.argmax(), one.shape))
        px, py = float(x), float(y)
        if 1 <= x < 23 and 1 <= y < 15:
            px += 0.25 * np.sign(one[y, x + 1] - one[y, x - 1])
            py += 0.25 * np.sign(one[y + 1, x] - one[y - 1, x])
        np.testing.assert_allclose(found.points[0, i], [(px + shift) * 4, (py + shift) * 4, one[y, x]], rtol=1e-5)
    assert float(found.scores[0]) == pytest.approx(maps.max(axis=(1, 2)).mean())


def test_columns_and_lines() -> None:
    wide, high = np.zeros((1, 2, 192), np.float32), np.zeros((1, 2, 128), np.float32)
    wide[0, [0, 1], [30, 100]], high[0, [0, 1], [64, 7]] = [0.8, 0.4], [0.6, 0.9]
    found = task("simcc", wide.shape, high.shape).postprocess({"y0": wide, "y1": high}, WHOLE)
    np.testing.assert_allclose(found.points[0], [[15, 32, 0.6], [50, 3.5, 0.4]], rtol=1e-6)


def test_a_whole_keypoint_network() -> None:
    shapes = (2, 4), (2,), (2,), (2, 17, 3), (2, 17)
    raw = [np.random.default_rng(i).uniform(0, 60, shape).astype(np.float32) for i, shape in enumerate(shapes)]
    raw[1], raw[2] = np.array([1, 0]), np.array([0.9, 0.8], np.float32)
    specs = [TensorSpec(f"y{i}", "int64" if i == 1 else "float32", ("n", *one[1:])) for i, one in enumerate(shapes)]
    recipe = replace(find_recipe("torchvision_keypoints"), input=Input("x", SIZE))
    with pytest.raises(UnsupportedError, match="reads boxes n x 4"):
        make_task(recipe, [TensorSpec("x", "float32", (1, 3, *SIZE))], specs[:3], evaluating=True)
    made = make_task(recipe, [TensorSpec("x", "float32", (1, 3, *SIZE))], specs[:4], evaluating=True)
    found = made.postprocess({f"y{i}": one for i, one in enumerate(raw)}, WHOLE)
    assert len(found) == 1
    np.testing.assert_allclose(found.points[0], raw[3][0])


def test_points_come_back_to_the_frame() -> None:
    recipe = find_recipe("hrnet")
    recipe = replace(
        recipe, input=Input("x", SIZE), preprocess=Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE)
    )
    specs = [TensorSpec("x", "float32", (1, 3, *SIZE))], [TensorSpec("y", "float32", (1, 3, *SIZE))]
    made = make_task(recipe, *specs, evaluating=True)
    frame = np.zeros((200, 120, 3), np.uint8)
    places = [(20, 30), (90, 170), (60, 100)]
    maps = []
    for x, y in places:
        frame[:] = 0
        cv2.circle(frame, (x, y), 6, (255, 255, 255), cv2.FILLED)
        tensor, geometry = made.preprocess(frame)
        maps.append(cv2.GaussianBlur(tensor["x"][0, 0] / 255, (5, 5), 1))
    found = made.postprocess({"y": np.array(maps)[None]}, geometry)
    assert np.abs(found.points[0, :, :2] - places).max() < 3.5


def labelled(folder: Path, poses: list[list[list[tuple[float, float, int]]]], points: int = 3) -> Path:
    """Write COCO keypoints: poses, each of points, picture by picture."""
    entries = []
    for i, many in enumerate(poses):
        for one in many:
            array = np.array(one)
            low, high = array[:, :2].min(axis=0), array[:, :2].max(axis=0)
            box = [*low.tolist(), *(high - low).tolist()]
            flat = [value for point in one for value in point]
            area = float((high - low).prod() * 0.6)
            entries.append({"image_id": i, "category_id": 4, "bbox": box, "keypoints": flat, "area": area})
    coco = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(len(poses))],
        "annotations": entries,
        "categories": [{"id": 4, "name": "stick", "keypoints": [f"p{i}" for i in range(points)]}],
    }
    (folder / "sticks.json").write_text(json.dumps(coco))
    return folder / "sticks.json"


def precision_of(truths, answers, sigmas) -> float:
    """Return COCO's AP, with the likeness of poses counted point by point."""

    def likeness(i: int, k: int, j: int) -> float:
        array = np.array(truths[i][j], float)
        low, high = array[:, :2].min(axis=0), array[:, :2].max(axis=0)
        area, counts = float((high - low).prod() * 0.6), array[:, 2] > 0
        far = np.square(answers[i].points[k, :, :2] - array[:, :2]).sum(axis=1)
        return np.exp(-far / (2 * (2 * sigmas) ** 2 * area))[counts].mean()

    total = sum(any(v for *_, v in one) for many in truths for one in many)
    return plain_precision(truths, [answer.scores.tolist() for answer in answers], likeness, total)


def test_scored_as_coco_does(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    sigmas = (0.05, 0.1, 0.2)
    truths, answers = [], []
    for _ in range(8):
        many, rows_ = [], []
        for k in range(int(chance.integers(1, 4))):
            places = chance.uniform(0, 60, (3, 2)) + 80 * k
            many.append(
                [(float(x), float(y), int(chance.integers(0, 3)) if i else 2) for i, (x, y) in enumerate(places)]
            )
            for noise in (chance.uniform(0, 8), 30.0):
                moved = places + chance.normal(0, noise, (3, 2))
                rows_.append(np.column_stack([moved, np.ones(3)]))
        truths.append(many)
        scores = np.sort(chance.permutation(len(rows_)).astype(np.float32) / 10 + 0.05)[::-1].copy()
        chance.shuffle(rows_)
        points = np.array(rows_, np.float32)
        answers.append(Poses(points, np.zeros((len(rows_), 4), np.float32), scores, np.zeros(len(rows_), np.int64)))
    labels = read_labels(labelled(tmp_path, truths))
    made = task("heatmaps", (1, 3, 16, 24), keypoints=Keypoints(sigmas=sigmas))
    found = made.score(answers, labels)
    assert 0.05 < found.value < 0.95
    assert found.value == pytest.approx(precision_of(truths, answers, np.array(sigmas)), abs=1e-6)
    assert made.score_resamples(answers, labels, np.ones((1, 8), np.int64))[0] == pytest.approx(found.value)
    assert found.others["AP50"] > found.value > found.others["AP75"] - 0.2
    assert made.score([replace(one, points=one.points[:0], boxes=one.boxes[:0], scores=one.scores[:0],
                               classes=one.classes[:0]) for one in answers], labels).value == 0.0  # fmt: skip


def test_likeness_is_that_of_pycocotools() -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    chance = np.random.default_rng(0)
    truth, found = (chance.uniform(0, 100, (4, 17, 3)).astype(np.float32) for _ in range(2))
    found[:2, :, :2] = truth[:2, :, :2] + chance.normal(0, 4, (2, 17, 2))
    truth[..., 2] = chance.integers(0, 3, (4, 17))
    known = COCO()
    image = {"id": 1, "file_name": "a"}
    known.dataset = {"info": {}, "images": [image], "categories": [{"id": 1}], "annotations": [
        {"id": i + 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 100, 100], "area": 5000.0, "iscrowd": 0,
         "keypoints": one.reshape(-1).tolist(), "num_keypoints": int((one[:, 2] > 0).sum())}
        for i, one in enumerate(truth)]}  # fmt: skip
    known.createIndex()
    told = [{"image_id": 1, "category_id": 1, "score": 1 - i / 9, "keypoints": one.reshape(-1).astype(float).tolist()}
            for i, one in enumerate(found)]  # fmt: skip
    evaluation = COCOeval(known, known.loadRes(told), "keypoints")
    evaluation.params.imgIds = [1]
    evaluation._prepare()
    wanted = evaluation.computeOks(1, 1)
    counts = (truth[..., 2] > 0).astype(np.float64)
    got = likeness(found, truth, np.full(4, 5000.0), Keypoints().spreads(17), counts)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"keypoints": [1, 2, 2]}, "3 numbers, not 3 for each of the model's 3 points"),
        ({"keypoints": [1, 2, 7] * 3}, "is 0, 1 or 2"),
        ({"keypoints": "abc"}, "no list of numbers"),
        ({"keypoints": None}, "holds no keypoints"),
    ],
)
def test_wrong_keypoints_are_refused_and_do_not_trouble_a_detector(tmp_path: Path, change, told: str) -> None:
    path = labelled(tmp_path, [[[(1, 2, 2), (30, 4, 2), (20, 60, 1)]]])
    values = json.loads(path.read_text())
    values["annotations"][0].update(change)
    path.write_text(json.dumps(values))
    labels = read_labels(path)
    pose = Poses(np.ones((1, 3, 3), np.float32), np.ones((1, 4), np.float32), np.ones(1, np.float32), np.zeros(1, int))
    with pytest.raises(InvalidFileError, match=told):
        task("heatmaps", (1, 3, 16, 24)).score([pose], labels)


def test_agreement_and_loss_fall_with_what_is_lost() -> None:
    raw = rows(1, 17, 3)[None]
    made = task("yolov8_pose", raw.shape)
    answers = [made.postprocess({"y0": raw}, WHOLE)]
    assert (made.agreement(answers, answers), made.loss([{"y0": raw}], [{"y0": raw}])) == (1.0, 0.0)
    previous, agreed = 0.0, 1.0
    for noise in (0.3, 1.0, 4.0):
        near = raw.copy()
        near[:, 5:] += noise * np.random.default_rng(1).normal(size=near[:, 5:].shape)
        lost = made.loss([{"y0": near}], [{"y0": raw}])
        agreement = made.agreement([made.postprocess({"y0": near}, WHOLE)], answers)
        assert lost > previous
        assert agreement < agreed
        previous, agreed = lost, agreement
    assert made.loss([{"y0": raw * np.float32(np.nan)}], [{"y0": raw}]) == np.inf


def test_nan_is_nothing() -> None:
    made = task("heatmaps", (1, 3, 16, 24))
    answer = made.postprocess({"y0": np.full((1, 3, 16, 24), np.nan, np.float32)}, WHOLE)
    assert (made.count(answer), made.as_text(answer), made.as_json(answer)) == (0, "nothing", {"poses": []})


@pytest.mark.parametrize(("decoder", "shape"), [("yolov8_pose", (1, 56, CELLS)), ("end_to_end_pose", (1, 30, 57))])
def test_a_frame_without_a_thing_has_no_pose(decoder: str, shape: tuple[int, ...]) -> None:
    made = task(decoder, shape)
    answer = made.postprocess({"y0": np.zeros(shape, np.float32)}, WHOLE)
    assert (len(answer), answer.points.shape) == (0, (0, 17, 3))
    assert (made.agreement([answer], [answer]), made.sureness([answer]).tolist()) == (1.0, [0.0])
    made.draw(np.zeros((*SIZE, 3), np.uint8), answer)


def test_told_and_drawn() -> None:
    raw = rows(1, 17, 3)[None]
    made = task("yolov8_pose", raw.shape, names=("person",), score_threshold=0.5, evaluating=False)
    answer = made.postprocess({"y0": raw}, WHOLE)
    told = made.as_json(answer)["poses"]
    assert [one["name"] for one in told[0]["keypoints"]] == list(COCO_NAMES)
    json.dumps(told, allow_nan=False)
    assert len(told) == made.count(answer) > 3
    assert made.as_text(answer).startswith("person 1.00 at ")
    assert "of 17 points)" in made.as_text(answer)
    frame = np.zeros((*SIZE, 3), np.uint8)
    drawn = made.draw(frame, answer)
    assert drawn.shape == (320, 480, 3)
    assert drawn.any()
    assert not frame.any()


@pytest.mark.parametrize(
    ("decoder", "shapes", "told"),
    [
        ("yolov8_pose", [(1, 40, CELLS)], "51"),
        ("yolov8_pose", [(1, 56, 99)], "one box for each"),
        ("end_to_end_pose", [(1, 300, 56)], "1 x poses x 57"),
        ("heatmaps", [(1, 17)], "a map a point"),
        ("simcc", [(1, 17, 9)], "rows of columns"),
    ],
)
def test_what_does_not_fit_is_refused(decoder: str, shapes, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        task(decoder, *shapes)


def test_no_such_decoder_and_other_classes() -> None:
    with pytest.raises(NotFoundError, match="decoder of task keypoints"):
        task("yolov8", (1, 56, CELLS))
    with pytest.raises(UnsupportedError, match="has 1 classes, recipe 'mine' names 2"):
        task("yolov8_pose", (1, 56, CELLS), names=("a", "b"))


@pytest.mark.parametrize("table", [{"values": 1}, {"count": 3, "names": ("a",)}, {"skeleton": ((1, 2, 3),)}])
def test_a_table_that_contradicts_itself_is_refused(table) -> None:
    with pytest.raises(ValueError, match=r"points|pair|sure"):
        Keypoints(**table)


def test_logits_become_probabilities() -> None:
    maps = np.full((1, 1, 16, 24), -9, np.float32)
    maps[0, 0, 3, 4] = 2
    found = task("heatmaps", maps.shape, scores=Scores.LOGITS).postprocess({"y0": maps}, WHOLE)
    assert float(found.points[0, 0, 2]) == pytest.approx(1 / (1 + np.exp(-2)))


def test_the_error_is_one_line() -> None:
    with pytest.raises(EdgeoptError) as refused:
        task("heatmaps", (1, 17))
    assert "\n" not in refused.value.problem
