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

FOUND = ("detection", "instances", "keypoints")
"""Tasks whose evidence are these tables: overlaps of boxes, of masks, similarities of points."""
_RECALLS = np.linspace(0, 1, 101)
_OVERLAPS = np.linspace(0.5, 0.95, 10)
"""COCO's thresholds, in the order of a table's rows."""
_MOST_NUMBERS = 1 << 21
"""Resamples times detections at once: 16 MiB an array."""


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
    """Return the tables of all categories of a COCOeval after `evaluate`, over all sizes of boxes.

    Args:
        evaluation: Of any kind, its first area range being all sizes.
        image_ids: Which picture has which number.
    """
    position, most = {image: i for i, image in enumerate(image_ids)}, evaluation.params.maxDets[-1]
    found: dict[int, list[dict[str, Any]]] = {}
    for one in evaluation.evalImgs:
        if one is not None and one["aRng"] == evaluation.params.areaRng[0]:
            found.setdefault(one["category_id"], []).append(one)
    return [_table(sorted(images, key=_image), position, most) for images in found.values()]


def _image(one: dict[str, Any]) -> int:
    return int(one["image_id"])


def _table(images: Iterable[dict[str, Any]], position: dict[int, int], most: int) -> MatchTable:
    truths = np.zeros(len(position), np.int64)
    scores: list[NDArray[np.float64]] = []
    pictures: list[NDArray[np.intp]] = []
    matched: list[NDArray[np.bool_]] = []
    ignored: list[NDArray[np.bool_]] = []
    for one in images:
        number = position[one["image_id"]]
        truths[number] += int((np.asarray(one["gtIgnore"]) == 0).sum())
        scores.append(np.asarray(one["dtScores"][:most], np.float64))
        pictures.append(np.full(len(scores[-1]), number, np.intp))
        matched.append(np.asarray(one["dtMatches"])[:, :most] > 0)
        ignored.append(np.asarray(one["dtIgnore"])[:, :most] > 0)
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
    for table in tables if row is None else [one.at(row) for one in tables]:
        truths = counts @ table.truths
        there = np.flatnonzero(truths)
        present[there] += 1
        step = max(1, _MOST_NUMBERS // max(1, len(table.pictures)))
        for start in range(0, len(there), step):
            few = there[start : start + step]
            total[few] += _precision(table, counts[few], truths[few])
    return np.divide(total, present, out=np.zeros_like(total), where=present > 0)


def _precision(table: MatchTable, counts: NDArray[np.int64], truths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (resamples,) the average precision of one category over all thresholds of overlap."""
    drawn = counts[:, table.pictures].astype(np.float64)
    every = np.cumsum(drawn, axis=1)
    found = np.zeros(len(counts))
    for hits, ignored in zip(table.hits, table.ignored, strict=True):
        places = np.flatnonzero(hits)  # the envelope changes, and recall grows, at hits only
        if len(places):
            counted = np.cumsum(np.where(ignored, 0.0, drawn), axis=1) if ignored.any() else every
            found += _area(np.cumsum(drawn[:, places], axis=1), counted[:, places], truths)
    return found / len(table.hits)


def _area(hits: NDArray[np.float64], counted: NDArray[np.float64], truths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean precision over the recalls, from running counts at each hit.

    Args:
        hits: (resamples, places) true positives so far.
        counted: (resamples, places) detections so far.
        truths: (resamples,) above zero.
    """
    precision = hits / np.maximum(counted, 1.0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    reached = np.searchsorted(_RECALLS, hits / truths[:, None], side="right")  # recalls that are reached so far
    newly = np.diff(reached, axis=1, prepend=0)
    found: NDArray[np.float64] = (envelope * newly).sum(axis=1) / len(_RECALLS)
    return found
