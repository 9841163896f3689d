from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from edgeopt.quantization.paired_scores import (
    ScoreDifference,
    average_precision,
    paired_difference,
    share_right,
)


def scene(pictures: int, noise: float, seed: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Boxes of three classes, some crowded, and what a detector with noise makes of them."""
    chance = np.random.default_rng(seed)
    truths: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image in range(1, pictures + 1):
        for _ in range(int(chance.integers(0, 6))):
            box = [*chance.uniform(0, 200, 2).tolist(), *chance.uniform(8, 120, 2).tolist()]
            kind, crowd = int(chance.integers(1, 4)), int(chance.random() < 0.1)
            area = box[2] * box[3]
            truths.append(
                {
                    "id": len(truths) + 1,
                    "image_id": image,
                    "category_id": kind,
                    "bbox": box,
                    "iscrowd": crowd,
                    "area": area,
                }
            )
            if chance.random() < 0.8:
                moved = [one + noise * chance.normal() for one in box[:2]] + box[2:]
                found.append(
                    {"image_id": image, "category_id": kind, "bbox": moved, "score": round(float(chance.random()), 2)}
                )
        found.append(
            {"image_id": image, "category_id": 1, "bbox": [5, 5, 30, 30], "score": round(float(chance.random()), 2)}
        )
    data = {
        "images": [{"id": image, "file_name": f"{image}.jpg"} for image in range(1, pictures + 1)],
        "categories": [{"id": kind, "name": str(kind)} for kind in (1, 2, 3)],
        "annotations": truths,
    }
    return data, found


def reference(truth: dict[str, Any], results: list[dict[str, Any]], ids: list[int]) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {"info": {}, **truth}
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results), "bbox")
        evaluation.params.imgIds = ids
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def repeated(truth: dict[str, Any], results: list[dict[str, Any]], drawn: list[int]) -> tuple[Any, Any, list[int]]:
    """The same pictures under new numbers, as often as they were drawn."""
    boxes, found = [], []
    for new, image in enumerate(drawn, 1):
        for one in truth["annotations"]:
            if one["image_id"] == image:
                boxes.append({**one, "image_id": new, "id": len(boxes) + 1})
        found += [{**one, "image_id": new} for one in results if one["image_id"] == image]
    images = [{"id": new, "file_name": f"{new}.jpg"} for new in range(1, len(drawn) + 1)]
    return {**truth, "images": images, "annotations": boxes}, found, [one["id"] for one in images]


@pytest.mark.parametrize("noise", [0.0, 4.0, 20.0])
def test_average_precision_on_all_pictures_is_that_of_pycocotools(noise: float) -> None:
    truth, results = scene(24, noise)
    ids = [one["id"] for one in truth["images"]]
    metric = average_precision(truth, results, ids)
    assert metric(np.arange(24)) == pytest.approx(reference(truth, results, ids), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_of_drawn_pictures_is_that_of_pycocotools_on_copies(seed: int) -> None:
    truth, results = scene(16, 6.0, seed)
    ids = [one["id"] for one in truth["images"]]
    drawn = np.sort(np.random.default_rng(seed).integers(16, size=16))
    copies = repeated(truth, results, [ids[i] for i in drawn])
    assert average_precision(truth, results, ids)(drawn) == pytest.approx(reference(*copies), abs=1e-9)


def test_a_model_that_finds_nothing_has_no_precision() -> None:
    truth, _results = scene(4, 0.0)
    assert average_precision(truth, [], [1, 2, 3, 4])(np.arange(4)) == 0.0


def test_a_model_compared_with_itself_differs_by_nothing() -> None:
    metric = share_right([1, 2, 3, 4], [1, 2, 0, 0])
    assert paired_difference(metric, metric, 4) == ScoreDifference(0.0, 0.0, 0.0, 4)


def test_the_interval_of_top1_is_that_of_the_normal_approximation() -> None:
    chance = np.random.default_rng(1)
    truth = np.zeros(1000, int)
    one, other = (chance.random(1000) < 0.3).astype(int), (chance.random(1000) < 0.35).astype(int)
    found = paired_difference(share_right(other, truth), share_right(one, truth), 1000, resamples=2000)
    deltas = (other == 0).astype(float) - (one == 0)
    half = 1.96 * deltas.std() / 1000**0.5
    assert found.value == pytest.approx(deltas.mean())
    assert (found.low, found.high) == pytest.approx((deltas.mean() - half, deltas.mean() + half), abs=0.1 * half)


def test_a_drop_is_kept_broken_or_undecided() -> None:
    assert ScoreDifference(-0.001, -0.008, 0.005, 100).keeps(0.01)
    assert ScoreDifference(-0.03, -0.05, -0.02, 100).breaks(0.01)
    unsure = ScoreDifference(-0.01, -0.03, 0.01, 100)
    assert not unsure.keeps(0.01)
    assert not unsure.breaks(0.01)
    assert str(unsure) == "-0.0100 [-0.0300, +0.0100] on 100 pictures"


def test_one_picture_has_no_interval() -> None:
    metric = share_right([1], [1])
    with pytest.raises(ValueError, match="1 pictures have no interval"):
        paired_difference(metric, metric, 1)
