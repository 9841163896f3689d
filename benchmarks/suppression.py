"""Class-wise non-maximum suppression, edgeopt against vectorised NumPy and one OpenCV call a class, in turns.

    python benchmarks/suppression.py

Prints how many times as long each way takes as edgeopt's, with the 95 % interval, and checks that all agree.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.tasks.detection.suppression import suppress

IOU = 0.45


def matrix_way(boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.int64]) -> list[int]:
    """All overlaps at once, classes kept apart by an offset."""
    order = np.argsort(-scores, kind="stable")
    moved = boxes[order] + (classes[order] * 4096.0)[:, None]
    low, high = np.maximum(moved[:, None, :2], moved[None, :, :2]), np.minimum(moved[:, None, 2:], moved[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    area = np.prod(moved[:, 2:] - moved[:, :2], axis=1)
    over = np.triu(shared / (area[:, None] + area - shared) > IOU, 1)
    kept = np.ones(len(order), bool)
    for row in np.flatnonzero(over.any(axis=1)):
        if kept[row]:
            kept &= ~over[row]
    return [int(i) for i in order[kept]]


def class_by_class(boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.int64]) -> list[int]:
    """One `cv2.dnn.NMSBoxes` for each class."""
    kept: list[int] = []
    sizes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        found = cv2.dnn.NMSBoxes(sizes[rows], scores[rows], 0.0, IOU)
        kept += rows[np.asarray(found).reshape(-1)].tolist()
    return sorted(kept, key=lambda i: -scores[i])


def measure(count: int) -> None:
    rng = np.random.default_rng(count)
    corner = rng.uniform(0, 400, (count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(10, 120, (count, 2))], axis=1).astype(np.float32)
    scores = rng.permutation(np.linspace(0.01, 0.99, count)).astype(np.float32)
    classes = rng.integers(0, 20, count)
    ways: dict[str, Callable[[], list[int]]] = {
        "edgeopt": lambda: suppress(boxes, scores, classes, IOU, count).tolist(),
        "NumPy matrix": lambda: matrix_way(boxes, scores, classes),
        "OpenCV, one class a call": lambda: class_by_class(boxes, scores, classes),
    }
    for way, run in ways.items():
        if run() != ways["edgeopt"]():
            raise SystemExit(f"{way} keeps other boxes")
    runs = {way: (lambda _, run=run: run()) for way, run in ways.items()}
    for way, ratio in compare_calls(runs, baseline="edgeopt", seconds=4).items():
        print(f"{count:>5} boxes  {way:<26} {ratio} edgeopt's speed")


if __name__ == "__main__":
    for boxes_in_frame in (30, 300, 1000):
        measure(boxes_in_frame)
