"""How answers are scored, one file each; the file name is what a recipe writes under `metric`.

Each ends in `METRIC`. More is better, and 1 is the most. A metric sees no picture and no label: a task turns its
answers into evidence, one row a picture, which the metrics of that task read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError
from edgeopt.recipes import metrics
from edgeopt.system.declared import registry

Evidence = Any
"""Detection: the tables of matched boxes; classification: `Ranks`; segmentation: `ClassAreas`; token classification:
`SpanCounts`; with a reference: (outputs, samples, 2) shares."""
Counts = NDArray[np.int64]
"""(resamples, pictures) how often each picture counts; no row is empty."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number for the answers to all pictures."""

    tasks: tuple[str, ...]
    """Tasks whose evidence it reads; empty: all."""
    resample: Callable[[Evidence, Counts], NDArray[np.float64]]
    """(evidence, counts) -> (resamples,) the metric of each resample."""
    by_chance: Callable[[Evidence, int], float] | None = None
    """(evidence, pictures) -> the score that a guess may reach; None: it reads no labels."""
    is_share: bool = False
    """Whether it is the share of samples that are right, each alone: a sample whose answer stays loses nothing."""

    @property
    def reads_labels(self) -> bool:
        """Whether it scores against labels, and not against another model's answers."""
        return self.by_chance is not None

    def score(self, evidence: Evidence, pictures: int) -> float:
        """Return the metric where each picture counts once."""
        return float(self.resample(evidence, np.ones((1, pictures), np.int64))[0])


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where a classifier listed the true classes."""

    places: NDArray[np.int64]
    """(pictures,) place of the true class, from 0; a class that is not listed comes last."""
    classes: int
    """How many classes the model has."""


@dataclass(frozen=True, slots=True)
class NamedClasses(Ranks):
    """Where the true classes were listed, and which class is true and came first."""

    true: NDArray[np.int64]
    """(samples,) index of the true class."""
    first: NDArray[np.int64]
    """(samples,) index of the class that was listed first; -1: none was."""


def find_metric(name: str) -> Metric:
    """Return the metric of this name.

    Raises:
        NotFoundError: If there is none.
    """
    metric: Metric = registry.load(metrics, name).METRIC
    return metric


def metrics_of(task: str) -> tuple[str, ...]:
    """Return the names of all metrics that a task knows."""
    return tuple(name for name in registry.names(metrics) if not (of := find_metric(name).tasks) or task in of)


def metrics_on_labels() -> tuple[str, ...]:
    """Return the names of all metrics that are scored against labels."""
    return tuple(name for name in registry.names(metrics) if find_metric(name).reads_labels)


def require_metric_of(task: str, name: str) -> Metric:
    """Return the metric of this name.

    Raises:
        NotFoundError: If it does not exist, or belongs to another task; those that fit are named.
    """
    if name in registry.names(metrics):
        metric = find_metric(name)  # the others stay unread: some are written with OpenCV
        if not metric.tasks or task in metric.tasks:
            return metric
    raise NotFoundError(f"metric of task {task}", name, metrics_of(task))


def make_top(count: int, tasks: tuple[str, ...] = ("classification",)) -> Metric:
    """Return the share of pictures whose class is among so many first answers.

    By chance it is that of a guess, and two standard errors of it on so many pictures.
    """

    def share(evidence: Ranks, counts: Counts) -> NDArray[np.float64]:
        array: NDArray[np.float64] = counts @ (evidence.places < count).astype(np.float64) / counts.sum(axis=1)
        return array

    def by_chance(evidence: Ranks, pictures: int) -> float:
        guess = min(count / evidence.classes, 1.0)
        return min(guess + 2 * float(np.sqrt(guess * (1 - guess) / max(pictures, 1))), 1.0)

    return Metric(tasks, share, by_chance, is_share=True)
