"""The metrics as parts: each scores more as better, and a recipe names one that fits its task."""

from __future__ import annotations

import re

import numpy as np
import pytest

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.measurement.accuracy.evaluate import require_metric
from edgeopt.recipes import metrics
from edgeopt.recipes.metrics import NamedClasses, Ranks, find_metric, metrics_of
from edgeopt.recipes.recipe import find_recipe, read_recipe
from edgeopt.recipes.scoring.average_precision import MatchTable
from edgeopt.recipes.scoring.class_areas import ClassAreas
from edgeopt.recipes.scoring.entities import SpanCounts
from edgeopt.recipes.scoring.retrieval import Retrieval
from edgeopt.recipes.scoring.sound_spans import SoundSpans
from edgeopt.recipes.scoring.spelling import spelling_of
from edgeopt.system.declared import registry


def boxes(hits: int) -> list[MatchTable]:
    """One box in each of ten pictures; the first ones are found, at all overlaps."""
    found = np.tile(np.arange(10) < hits, (10, 1))
    return [MatchTable(np.arange(10), found, np.zeros((10, 10), bool), np.ones(10, np.int64))]


def evidence(name: str, good: int):
    """Ten pictures of which some are answered well."""
    if "detection" in find_metric(name).tasks and find_metric(name).reads_labels:
        return boxes(good)
    if "segmentation" in find_metric(name).tasks:
        right, wrong = [[9, 0], [9, 0], [9, 0]], [[0, 0], [0, 9], [9, 0]]
        return ClassAreas(*np.array([right if i < good else wrong for i in range(10)]).transpose(1, 0, 2))
    if "embedding" in find_metric(name).tasks and find_metric(name).reads_labels:
        return Retrieval(np.arange(10) < good, 0.1)
    if "ocr" in find_metric(name).tasks:
        return spelling_of(["ab" if i < good else "xyz" for i in range(10)], ["ab"] * 10)
    if "voice_activity" in find_metric(name).tasks:
        says = np.array([[0.9, 0.1] if i < good else [0.1, 0.9] for i in range(10)])
        return SoundSpans(says, np.tile([True, False], (10, 1)), 0.5)
    if "token_classification" in find_metric(name).tasks:
        every = np.ones(10, np.int64)
        return SpanCounts((np.arange(10) < good).astype(np.int64), every, every)
    if name == "macro_F1":
        places = np.where(np.arange(10) < good, 0, 99)
        return NamedClasses(places, 100, np.zeros(10, np.int64), np.where(places == 0, 0, -1))
    if find_metric(name).reads_labels:
        return Ranks(np.where(np.arange(10) < good, 0, 99), 100)
    return np.stack([np.arange(10) < good, np.ones(10)], axis=1)[None].astype(np.float64)


@pytest.mark.parametrize("name", registry.names(metrics))
def test_more_right_answers_score_more_and_all_right_ones_score_one(name: str) -> None:
    metric = find_metric(name)
    values = [metric.score(evidence(name, good), 10) for good in (0, 4, 7, 10)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("name", registry.names(metrics))
def test_a_resample_counts_each_picture_as_often_as_it_was_drawn(name: str) -> None:
    counts = np.array([[10, *[0] * 9], [0] * 9 + [10], [1] * 10], np.int64)
    found = find_metric(name).resample(evidence(name, 5), counts)
    assert found[:2].tolist() == [pytest.approx(1.0), 0.0]
    assert found[2] == find_metric(name).score(evidence(name, 5), 10)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("detection", ("AP", "AP50", "AP75", "agreement")),
        ("classification", ("agreement", "top1", "top5")),
        ("embedding", ("agreement", "cosine", "recall1")),
        ("image", ("agreement", "psnr", "ssim")),
        ("instances", ("AP", "AP50", "AP75", "agreement")),
        ("keypoints", ("AP", "AP50", "AP75", "agreement")),
        ("segmentation", ("agreement", "mIoU", "pixel_accuracy")),
        ("tensors", ("agreement", "cosine")),
        ("text_classification", ("agreement", "macro_F1", "top1")),
        ("token_classification", ("agreement", "entity_F1")),
        ("voice_activity", ("agreement", "auc", "f1")),
    ],
)
def test_each_task_knows_its_metrics(task: str, expected: tuple[str, ...]) -> None:
    assert metrics_of(task) == expected


@pytest.mark.parametrize(
    ("recipe", "metric", "told"),
    [
        ("yolox", "banana", "AP, AP50, AP75, agreement"),
        ("yolox", "top1", "AP, AP50, AP75, agreement"),
        ("imagenet", "AP", "agreement, top1, top5"),
        ("tensors", "AP50", "agreement, cosine"),
    ],
)
def test_a_metric_of_another_task_is_refused_with_those_that_fit(tmp_path, recipe, metric, told) -> None:
    text = (find_recipe(recipe).folder / "recipe.toml").read_text("utf-8")
    text = re.sub(r"(?m)^(labels|model) = .*\n", "", text)
    (tmp_path / "own.toml").write_text(re.sub(r'metric = "\w+"', f'metric = "{metric}"', text), "utf-8")
    with pytest.raises(InvalidFileError, match=f"own.toml: no metric of task .* named '{metric}'") as refused:
        read_recipe(tmp_path / "own.toml")
    assert told in refused.value.remedy


def test_labels_are_refused_where_the_metric_reads_none() -> None:
    require_metric(find_recipe("yolox"), "labels.json")
    with pytest.raises(UnsupportedError, match="compares outputs only") as refused:
        require_metric(find_recipe("tensors"), "labels.json")
    assert "leave --eval out" in refused.value.remedy
