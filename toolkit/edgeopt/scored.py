"""Accuracy with what is needed to compare two of them on the same pictures. It runs no frame and changes no model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.benchmarking.binomial import student_quantile
from edgeopt.labels import Labels
from edgeopt.tasks import Accuracy, Task

_GROUPS = 10
"""Each costs one more scoring; with ten the interval is 8 % wider than with twenty."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A metric on labelled pictures, and the same metric with each tenth of the pictures left out."""

    accuracy: Accuracy
    left_out: tuple[float, ...]
    labels: str
    """File name of the labels."""
    pictures_sha256: str
    """Of the labels and the pictures' names, in order: equal ones may be compared."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `Scored.from_json` reads them back."""
        return asdict(replace(self, accuracy=replace(self.accuracy, others=dict(self.accuracy.others))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scored:
        """Return what `to_json` gave.

        Raises:
            KeyError, TypeError: If it is something else.
        """
        told = dict(values)
        return cls(**told | {"accuracy": Accuracy(**told["accuracy"]), "left_out": tuple(told["left_out"])})


@dataclass(frozen=True, slots=True)
class Drop:
    """Metric lost against another model on the same pictures, in the metric's unit."""

    value: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval over pictures."""

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def score(task: Task, answers: Sequence[Any], labels: Labels) -> Scored:
    """Return the metric, and the metrics with groups of pictures left out.

    Args:
        task: Made with `evaluating`.
        answers: One a picture.
        labels: Of the same pictures.
    """
    count = len(answers)
    groups = min(_GROUPS, count)
    left_out = []
    for group in range(groups if count > 1 else 0):
        kept = [i for i in range(count) if i % groups != group]
        left_out.append(task.score([answers[i] for i in kept], labels.select(kept)).value)
    return Scored(task.score(answers, labels), tuple(left_out), labels.source.name, _identity(labels))


def _identity(labels: Labels) -> str:
    digest = hashlib.sha256("\n".join(labels.files).encode())
    if Path(labels.source).is_file():
        digest.update(Path(labels.source).read_bytes())
    return digest.hexdigest()


def drop_between(baseline: Scored, variant: Scored) -> Drop | None:
    """Return what the variant lost, paired by picture; None if the two were not scored on the same pictures.

    Source: the delete-a-group jackknife of the difference, Kott 2001; Student's t with groups - 1 degrees.
    """
    same = (baseline.pictures_sha256, baseline.accuracy.metric, len(baseline.left_out))
    if same != (variant.pictures_sha256, variant.accuracy.metric, len(variant.left_out)) or not variant.left_out:
        return None
    value = baseline.accuracy.value - variant.accuracy.value
    drops = np.subtract(baseline.left_out, variant.left_out)
    groups = len(drops)
    spread = math.sqrt((groups - 1) / groups * float(((drops - drops.mean()) ** 2).sum()))
    reach = student_quantile(0.975, groups - 1) * spread
    return Drop(value, value - reach, value + reach)
