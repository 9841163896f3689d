"""The difference of a metric between two models on the same labelled pictures, with its interval. It runs no model.

Pictures are drawn again with replacement, the same ones for both models, and the metric is computed anew for each
draw: what is hard for both cancels out. Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
chapters 8 (pairs) and 13 (percentile interval).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Metric: TypeAlias = Callable[[NDArray[np.intp]], float]
"""The metric on the pictures of these positions; one that is drawn twice counts twice."""

RESAMPLES = 500
"""The ends of the interval then lie within a tenth of its width."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """Metric of the candidate minus metric of the baseline."""

    value: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval."""
    pictures: int

    def keeps(self, max_drop: float) -> bool:
        """Whether a larger drop than allowed is excluded."""
        return self.low >= -max_drop

    def breaks(self, max_drop: float) -> bool:
        """Whether the drop is proven to be larger than allowed."""
        return self.high < -max_drop

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}] on {self.pictures} pictures"


def paired_difference(
    candidate: Metric, baseline: Metric, pictures: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> ScoreDifference:
    """Return how far two models lie apart.

    Args:
        candidate: Metric of the one.
        baseline: Metric of the other, on the same pictures in the same order.
        pictures: How many there are, 2 or more.
        resamples: Draws.
        seed: Of the draws.

    Raises:
        ValueError: If there are fewer than two pictures.
    """
    if pictures < 2:
        raise ValueError(f"{pictures} pictures have no interval; two or more are needed")
    chance = np.random.default_rng(seed)
    everything = np.arange(pictures)
    value = candidate(everything) - baseline(everything)
    drawn = [np.sort(chance.integers(pictures, size=pictures)) for _ in range(resamples)]
    differences = [candidate(one) - baseline(one) for one in drawn]
    low, high = np.quantile(differences, [0.025, 0.975])
    return ScoreDifference(value, float(low), float(high), pictures)


def share_right(answers: Sequence[int], truth: Sequence[int]) -> Metric:
    """Return top-1 as a metric.

    Args:
        answers: The class found in each picture.
        truth: The class that is there.
    """
    right = np.asarray(answers) == np.asarray(truth)
    return lambda pictures: float(right[pictures].mean())


@dataclass(frozen=True, slots=True)
class _Class:
    """The boxes of one class, best score first."""

    picture: NDArray[np.intp]
    true: NDArray[np.bool_]
    """(IoU thresholds, boxes): matched; with `false` neither where the box is to be ignored."""
    false: NDArray[np.bool_]
    truths: NDArray[np.intp]
    """Boxes to be found in each picture."""


def average_precision(
    truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]], image_ids: Sequence[int]
) -> Metric:
    """Return AP (IoU 0.50 to 0.95, 101 points) as a metric; boxes are matched once, by pycocotools.

    Args:
        truth: A COCO data set of boxes.
        results: Boxes found, in COCO's result format.
        image_ids: The pictures, in the order that the metric counts them.

    Source: pycocotools, COCOeval.accumulate, area `all`, 100 detections.
    """
    evaluation = _matched(truth, results, image_ids)
    params = evaluation.params
    position = {image: i for i, image in enumerate(image_ids)}
    by_class: dict[int, list[Mapping[str, Any]]] = {}
    for one in evaluation.evalImgs:
        if one is not None and tuple(one["aRng"]) == tuple(params.areaRng[0]):
            by_class.setdefault(one["category_id"], []).append(one)
    classes = [_class_of(found, position, len(params.iouThrs)) for found in by_class.values()]
    recalls = np.asarray(params.recThrs)
    return lambda pictures: _mean_precision(classes, np.bincount(pictures, minlength=len(position)), recalls)


def _matched(truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]], image_ids: Sequence[int]) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    boxes = [{"iscrowd": 0, "area": one["bbox"][2] * one["bbox"][3], **one} for one in truth["annotations"]]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools reports by print
        known = COCO()
        known.dataset = {"info": {}, **truth, "annotations": boxes}
        known.createIndex()
        found = known.loadRes([dict(one) for one in results]) if results else COCO()
        evaluation = COCOeval(known, found, "bbox")
        evaluation.params.imgIds = list(image_ids)
        evaluation.params.catIds = sorted(known.getCatIds())
        evaluation.evaluate()
    return evaluation


def _class_of(found: list[Mapping[str, Any]], position: Mapping[int, int], thresholds: int) -> _Class:
    most = 100
    scores = np.concatenate([np.asarray(one["dtScores"], np.float64)[:most] for one in found])
    order = np.argsort(-scores, kind="mergesort")
    counts = [min(len(one["dtScores"]), most) for one in found]
    picture = np.repeat([position[one["image_id"]] for one in found], counts)[order].astype(np.intp)
    matches = np.concatenate([np.reshape(one["dtMatches"], (thresholds, -1))[:, :most] for one in found], axis=1)
    ignored = np.concatenate([np.reshape(one["dtIgnore"], (thresholds, -1))[:, :most] for one in found], axis=1)
    matched, counted = matches[:, order] != 0, ignored[:, order] == 0
    truths = np.zeros(len(position), np.intp)
    for one in found:
        truths[position[one["image_id"]]] += int((np.asarray(one["gtIgnore"]) == 0).sum())
    return _Class(picture, matched & counted, ~matched & counted, truths)


def _mean_precision(classes: Sequence[_Class], times: NDArray[np.intp], recalls: NDArray[np.float64]) -> float:
    """Return the mean over classes that occur in the drawn pictures; `times` says how often each was drawn."""
    found = [_precision(one, times, recalls) for one in classes if (one.truths * times).sum() > 0]
    return float(np.mean(found)) if found else 0.0


def _precision(one: _Class, times: NDArray[np.intp], recalls: NDArray[np.float64]) -> float:
    drawn = np.repeat(np.arange(len(one.picture)), times[one.picture])
    if len(drawn) == 0:
        return 0.0
    true, false = (np.cumsum(each[:, drawn], axis=1, dtype=np.float64) for each in (one.true, one.false))
    recall = true / (one.truths * times).sum()
    precision = true / np.maximum(true + false, np.spacing(1))
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    places = [np.searchsorted(row, recalls, side="left") for row in recall]
    padded = np.pad(envelope, ((0, 0), (0, 1)))
    return float(np.mean([row[place] for row, place in zip(padded, places, strict=True)]))
