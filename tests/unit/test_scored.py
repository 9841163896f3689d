"""The paired interval of a drop: exact against copied pictures, and true to simulated populations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeopt.boxes import Detections
from edgeopt.labels import Labels
from edgeopt.match_tables import MatchTable, resampled_precision
from edgeopt.model import Model, find_model, load_model
from edgeopt.recipe import Recipe
from edgeopt.recognise import choose_recipe
from edgeopt.scored import RESAMPLES, Drop, Scored, drop_between, score, why_unsure
from edgeopt.tasks import Accuracy
from edgeopt.tasks.classification import Classes, Classification
from edgeopt.tasks.detection import Detection
from edgeopt.tensors import TensorSpec

PICTURES = 24


@pytest.fixture(scope="module")
def detection() -> Detection:
    model = load_model(find_model("digits_detector"))
    return Detection(recipe_of(model), model.inputs, model.outputs, True)


def recipe_of(model: Model) -> Recipe:
    return choose_recipe(None, find_model("digits_detector"), model.inputs, model.outputs, model.metadata).recipe


def some_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    corner = rng.uniform(0, 100, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(10, 40, (count, 2))], axis=1).astype(np.float32)


def labelled(seed: int = 0, *, crowds: bool = True) -> tuple[Labels, list[Detections]]:
    """Truths and answers of a mediocre detector: moved boxes, some missed, some invented."""
    rng = np.random.default_rng(seed)
    images, truths, answers = [], [], []
    for i in range(PICTURES):
        boxes, classes = some_boxes(rng, 4), rng.integers(0, 3, 4)
        images.append({"id": 7 * i + 1, "file_name": f"{i}.png"})
        for box, label in zip(boxes, classes, strict=True):
            left, top, right, bottom = box.tolist()
            crowd = int(crowds and rng.random() < 0.1)
            truths.append(
                {
                    "id": len(truths) + 1,
                    "image_id": 7 * i + 1,
                    "category_id": int(label) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": crowd,
                }
            )
        seen = rng.random(4) < 0.8
        made = np.concatenate([boxes[seen] + rng.normal(0, 2, (seen.sum(), 4)), some_boxes(rng, 3)]).astype(np.float32)
        found = np.concatenate([classes[seen], rng.integers(0, 3, 3)])
        answers.append(Detections(made, rng.random(len(made)).astype(np.float32), found))
    categories = [{"id": i + 1, "name": str(i)} for i in range(10)]
    coco = {"images": images, "annotations": truths, "categories": categories}
    return Labels(tuple(one["file_name"] for one in images), coco=coco, source=Path("labels.json")), answers


def copied(labels: Labels, answers: list[Detections], counts: np.ndarray) -> tuple[Labels, list[Detections]]:
    """The resample written out: a picture that was drawn twice is there twice, under two names."""
    images, truths, files, found = [], [], [], []
    for i, one in enumerate(labels.coco["images"]):
        for copy in range(counts[i]):
            number = one["id"] * 100 + copy
            images.append({"id": number, "file_name": f"{copy} {one['file_name']}"})
            mine = [truth for truth in labels.coco["annotations"] if truth["image_id"] == one["id"]]
            truths += [{**truth, "id": truth["id"] * 100 + copy, "image_id": number} for truth in mine]
            files.append(images[-1]["file_name"])
            found.append(answers[i])
    coco = {**labels.coco, "images": images, "annotations": truths}
    return Labels(tuple(files), coco=coco, source=labels.source), found


@pytest.mark.parametrize("seed", range(4))
def test_the_precision_of_a_resample_is_that_of_copied_pictures(detection: Detection, seed: int) -> None:
    labels, answers = labelled(seed)
    counts = np.random.default_rng(seed).multinomial(PICTURES, np.full(PICTURES, 1 / PICTURES), 3)
    written = [copied(labels, answers, one) for one in counts]
    expected = [detection.score(found, truth).value for truth, found in written]
    np.testing.assert_allclose(detection.score_resamples(answers, labels, counts), expected, atol=1e-12)


def test_every_picture_once_is_the_metric_itself(detection: Detection) -> None:
    labels, answers = labelled()
    once = np.ones((1, PICTURES), np.int64)
    value = detection.score(answers, labels).value
    assert 0.1 < value < 0.9
    assert detection.score_resamples(answers, labels, once)[0] == pytest.approx(value, abs=1e-12)


def test_a_detector_that_finds_nothing_and_pictures_without_truths_score_zero(detection: Detection) -> None:
    labels, answers = labelled()
    nothing = [Detections(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))] * PICTURES
    once = np.ones((2, PICTURES), np.int64)
    assert detection.score_resamples(nothing, labels, once).tolist() == [0.0, 0.0]
    table = MatchTable(np.zeros(1, np.intp), np.zeros((1, 1), bool), np.zeros((1, 1), bool), np.array([0, 2]))
    assert resampled_precision([table], np.array([[2, 0], [0, 2]])).tolist() == [0.0, 0.0]
    assert len(answers) == PICTURES


def test_the_drop_of_equal_detectors_is_nothing_for_certain(detection: Detection) -> None:
    labels, answers = labelled()
    one = score(detection, answers, labels)
    assert len(one.resampled) == RESAMPLES
    assert drop_between(one, score(detection, answers, labels)) == Drop(0.0, 0.0, 0.0)
    assert drop_between(one, Scored.from_json(one.to_json())) == Drop(0.0, 0.0, 0.0)


def test_a_detector_that_misses_more_drops_and_the_interval_says_so(detection: Detection) -> None:
    labels, answers = labelled(crowds=False)
    fewer = [Detections(one.boxes[::2], one.scores[::2], one.classes[::2]) for one in answers]
    drop = drop_between(score(detection, answers, labels), score(detection, fewer, labels))
    assert 0 < drop.low < drop.value < drop.high


def test_top1_of_a_resample_counts_pictures_as_often_as_they_were_drawn() -> None:
    recipe = recipe_of(load_model(find_model("digits_detector")))
    task = Classification(
        recipe, [TensorSpec("x", "float32", (1, 3, 8, 8))], [TensorSpec("y", "float32", (1, 9))], True
    )
    answers = [Classes(np.array([label, 8]), np.array([0.9, 0.1], np.float32)) for label in (0, 1, 2)]
    labels = Labels(("a", "b", "c"), classes=(0, 8, 2))
    counts = np.array([[1, 1, 1], [3, 0, 0], [0, 3, 0], [1, 2, 0]])
    np.testing.assert_allclose(task.score_resamples(answers, labels, counts), [2 / 3, 1, 0, 1 / 3])


class ShareRight:
    def score(self, answers, labels):
        return Accuracy("top1", float(np.mean(answers)), len(answers), {})

    def score_resamples(self, answers, labels, counts):
        return counts @ np.asarray(answers, np.float64) / counts.sum(axis=1)


@pytest.mark.parametrize(("pictures", "least"), [(64, 0.83), (200, 0.9)])
def test_the_interval_of_a_classifiers_drop_covers_the_truth(pictures: int, least: float) -> None:
    rng, held, times = np.random.default_rng(1), 0, 100
    labels = Labels(tuple(map(str, range(pictures))), classes=(0,) * pictures)
    for _ in range(times):
        before = rng.random(pictures) < 0.7
        after = np.where(rng.random(pictures) < 0.85, before, rng.random(pictures) < 0.5)  # true drop: 0.15 * 0.2
        drop = drop_between(*(score(ShareRight(), one.tolist(), labels) for one in (before, after)))
        held += drop.low <= 0.03 <= drop.high
    assert held >= least * times


def test_one_picture_has_no_interval() -> None:
    one = score(ShareRight(), [1], Labels(("a",), classes=(0,)))
    assert one.resampled == ()
    assert drop_between(one, one) is None


def test_a_drop_whose_interval_holds_the_limit_is_not_sure() -> None:
    assert why_unsure(Drop(0.002, -0.004, 0.009), 0.01, 64) == ""
    assert why_unsure(Drop(0.03, 0.02, 0.04), 0.01, 64) == ""
    told = why_unsure(Drop(0.002, -0.01, 0.015), 0.01, 64)
    assert told == (
        "64 labelled pictures are too few to be sure: the drop is +0.0020 [-0.0100, +0.0150], 0.01 is allowed"
    )
