"""Answers that are another model's with classes exchanged are seen without labels; other differences are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.check.accuracy import exchanged_classes
from edgeopt.recipes.recipe import find_recipe
from edgeopt.tasks import make_task
from edgeopt.tasks.classification import Classes
from edgeopt.tasks.detection.boxes import Detections

RNG = np.random.default_rng(0)
IMAGENET = find_recipe("imagenet").with_size(224, 224)
CLASSIFIER = make_task(
    IMAGENET,
    [TensorSpec("x", "float32", (1, 3, 224, 224))],
    [TensorSpec("y", "float32", (1, 1000))],
    evaluating=True,
)
DETECTOR = make_task(
    find_recipe("digits_detector").with_size(160, 160),
    [TensorSpec("images", "float32", (1, 3, 160, 160))],
    [TensorSpec("output", "float32", (1, 525, 15))],
    evaluating=True,
)


def classes(*best: int) -> list[Classes]:
    return [Classes(np.array([one, 900]), np.array([0.8, 0.1], np.float32)) for one in best]


def things(count: int) -> Detections:
    corner = RNG.random((count, 2)) * 100
    boxes = np.concatenate([corner, corner + 20 + RNG.random((count, 2)) * 30], axis=1)
    return Detections(boxes.astype(np.float32), RNG.random(count).astype(np.float32), RNG.integers(0, 10, count))


def test_classes_that_changed_places_are_named():
    before, after = classes(*[1, 2, 3] * 4), classes(*[2, 1, 3] * 4)
    assert exchanged_classes(CLASSIFIER, after, before) == {1: 2, 2: 1}
    assert exchanged_classes(CLASSIFIER, before, before) == {}


def test_a_few_other_answers_are_no_exchange():
    before = classes(*range(20), *range(20))
    assert exchanged_classes(CLASSIFIER, classes(*range(2, 22), *range(20)), before) == {}
    once = classes(50, *range(1, 20), *range(20))
    assert exchanged_classes(CLASSIFIER, once, before) == {}


def test_things_are_paired_by_their_place_and_noise_is_no_exchange():
    before = [things(6) for _ in range(20)]
    order = np.array([1, 0, *range(2, 10)])
    moved = [replace(one, classes=order[one.classes]) for one in before]
    assert exchanged_classes(DETECTOR, moved, before) == {0: 1, 1: 0}
    noisy = [replace(one, scores=np.clip(one.scores + np.float32(0.04), 0, 1)) for one in before]
    assert exchanged_classes(DETECTOR, noisy, before) == {}
    assert exchanged_classes(DETECTOR, [things(6) for _ in range(20)], before) == {}
