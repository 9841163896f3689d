"""Average precision of many resamples of the same pictures, from one matching.

COCOeval matches boxes picture by picture, so what a resample changes is only how often each picture counts. Each
detection keeps its score and its matches; a picture drawn twice counts its detections and its truths twice. Copies of
one detection lie side by side in the order of scores, and precision rises inside a block of hits, so the envelope of
precision over recall is that of the copied pictures, but for equal scores inside one picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric

FOUND = ("detection", "instances", "keypoints")
"""Tasks whose evidence are these tables: overlaps of boxes, of masks, similarities of points."""
_RECALLS = np.linspace(0, 1, 101)
_OVERLAPS = np.linspace(0.5, 0.95, 10)
"""COCO's thresholds, in the order of a table's rows."""
_MOST_REACHED = 1 << 24
"""Resamples times truths at once: 32 MiB."""


@dataclass(frozen=True, slots=True)
class MatchTable:
    """All detections and truths of one category; D detections, best score first, T thresholds of overlap."""

    pictures: NDArray[np.intp]
    """(D,) the number of the picture of each detection."""
    hits: NDArray[np.bool_]
    """(T, D) whether a detection found a truth that counts."""
    ignored: NDArray[np.bool_]
    """(T, D) whether it counts neither way: it found a crowd."""
    truths: NDArray[np.int64]
    """(pictures,) how many truths count."""

    def at(self, row: int) -> MatchTable:
        """Return the table of one threshold of overlap."""
        return MatchTable(self.pictures, self.hits[row : row + 1], self.ignored[row : row + 1], self.truths)


def match_tables(evaluation: Any, image_ids: Sequence[int]) -> list[MatchTable]:
    """Return the tables of all categories of a COCOeval after `evaluate`, over things of all sizes.

    COCOeval judges each range of areas apart, those of small, medium and large things after the first, and here only
    the first is kept.

    Args:
        evaluation: Of any kind, its first area range being all sizes.
        image_ids: Which picture has which number.
    """
    position, most = {image: i for i, image in enumerate(image_ids)}, evaluation.params.maxDets[-1]
    result: dict[int, list[dict[str, Any]]] = {}
    for value in evaluation.evalImgs:
        if value is not None and value["aRng"] == evaluation.params.areaRng[0]:
            result.setdefault(value["category_id"], []).append(value)
    return [_table(sorted(images, key=_image), position, most) for images in result.values()]


def _image(entry: dict[str, Any]) -> int:
    return int(entry["image_id"])


def _table(images: Iterable[dict[str, Any]], position: dict[int, int], most: int) -> MatchTable:
    truths = np.zeros(len(position), np.int64)
    scores: list[NDArray[np.float64]] = []
    pictures: list[NDArray[np.intp]] = []
    matched: list[NDArray[np.bool_]] = []
    ignored: list[NDArray[np.bool_]] = []
    for image in images:
        number = position[image["image_id"]]
        truths[number] += int((np.asarray(image["gtIgnore"]) == 0).sum())
        scores.append(np.asarray(image["dtScores"][:most], np.float64))
        pictures.append(np.full(len(scores[-1]), number, np.intp))
        matched.append(np.asarray(image["dtMatches"])[:, :most] > 0)
        ignored.append(np.asarray(image["dtIgnore"])[:, :most] > 0)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    out = np.concatenate(ignored, axis=1)[:, order]
    return MatchTable(np.concatenate(pictures)[order], np.concatenate(matched, axis=1)[:, order] & ~out, out, truths)


def resampled_precision(
    tables: Sequence[MatchTable], counts: NDArray[np.int64], *, overlap: float | None = None
) -> NDArray[np.float64]:
    """Return the average precision of each resample; 0 where no truth is in it.

    Args:
        tables: Of all categories that occur.
        counts: (resamples, pictures) how often each picture was drawn.
        overlap: One of COCO's thresholds; None: the mean over all.

    Source: COCOeval.accumulate of pycocotools; precision at 101 recalls, its envelope from the right.
    """
    total, present = np.zeros(len(counts)), np.zeros(len(counts))
    row = None if overlap is None else int(np.abs(_OVERLAPS - overlap).argmin())
    drawn = np.ascontiguousarray(counts.T, np.float64)
    for table in tables if row is None else [match_table.at(row) for match_table in tables]:
        truths = counts @ table.truths
        there = np.flatnonzero(truths)
        present[there] += 1
        if not table.hits.any():
            continue
        step = max(1, _MOST_REACHED // (int(truths.max()) + 1))
        for start in range(0, len(there), step):
            few = there[start : start + step]
            total[few] += _precision(table, drawn if len(few) == len(counts) else drawn[:, few], truths[few])
    return np.divide(total, present, out=np.zeros_like(total), where=present > 0)


def average_precision(*, overlap: float | None = None) -> Metric:
    """Return the metric at one of COCO's thresholds of overlap; None: the mean over all.

    A detector that guesses may reach 0.01.
    """

    def resample(tables: Sequence[MatchTable], counts: Counts) -> NDArray[np.float64]:
        return resampled_precision(tables, counts, overlap=overlap)

    return Metric(FOUND, resample, lambda tables, pictures: 0.01)


def _precision(table: MatchTable, drawn: NDArray[np.float64], truths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (resamples,) the average precision of one category over all thresholds of overlap.

    From the last hit to the first, for all resamples and thresholds at once: the envelope is the most precision so far,
    and a hit adds it once for each recall that the hit is the first to reach. What lies between hits changes neither,
    nor does a picture that no resample holds.

    Args:
        table: With a hit.
        drawn: (pictures, resamples) how often each picture was drawn.
        truths: (resamples,) above zero.
    """
    rows, repeated = np.unique(np.concatenate([table.hits, table.ignored], axis=1), axis=0, return_counts=True)
    rows, repeated = rows[::-1], repeated[::-1]  # loose overlaps before strict ones, which have fewer hits
    hits, ignored = np.split(rows, 2, axis=1)
    places = np.flatnonzero(hits.any(axis=0) & np.asarray(drawn.any(axis=1))[table.pictures])
    if not len(places):
        return np.zeros(len(truths))
    counted = ~(ignored if ignored.any() else ignored[:1])
    until = places[-1] + 1
    detections = _copies(counted[:, :until], table.pictures[:until], drawn)
    array = _copies(hits, table.pictures, drawn)
    reached, first = _reached(truths)
    at = array.astype(np.intp) + first
    reached_now, most, area = reached[at], np.zeros_like(array), np.zeros_like(array)
    for number in range(len(places) - 1, -1, -1):
        place, previous = places[number], places[number - 1] if number else -1
        end = int(np.flatnonzero(hits[:, place])[-1]) + 1
        copies = drawn[table.pictures[place]]
        hit = copies[None] if hits[:end, place].all() else hits[:end, place, None] * copies
        np.maximum(most[:end], array[:end] / np.maximum(detections[:end], 1.0), out=most[:end])
        array[:end] -= hit
        at[:end] -= hit.astype(np.intp)
        reached_before = reached.take(at[:end])
        area[:end] += most[:end] * (reached_now[:end] - reached_before)
        reached_now[:end] = reached_before
        since = slice(previous + 1, place + 1)
        detections -= counted[:, since].astype(np.float64) @ drawn[table.pictures[since]]
    mean: NDArray[np.float64] = repeated @ area / repeated.sum() / len(_RECALLS)
    return mean


def _copies(counted: NDArray[np.bool_], pictures: NDArray[np.intp], drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows, resamples) how many copies of the detections are drawn that each row counts."""
    of_pictures = [np.bincount(pictures[row], minlength=len(drawn)) for row in counted]
    copies: NDArray[np.float64] = np.array(of_pictures, np.float64) @ drawn
    return copies


def _reached(truths: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.intp]]:
    """Return how many recalls so many hits reach, and where the numbers of each resample begin: at no hit.

    The recall of 0 is the first hit's too.

    Args:
        truths: (resamples,) above zero; resamples with as many truths share their numbers.
    """
    kinds, which = np.unique(truths, return_inverse=True)
    hits = np.arange(int(kinds[-1]) + 1)
    reached = np.zeros((len(kinds), len(hits)), np.int16)
    for row, kind in zip(reached, kinds, strict=True):
        row[1:] = np.searchsorted(_RECALLS, hits[1:] / kind, side="right")
    return reached.reshape(-1), (which.reshape(-1) * len(hits)).astype(np.intp)
