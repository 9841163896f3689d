"""What a student of a model learns of its outputs, as data: which numbers are scores, and which say where.

A task knows how its decoders read outputs; what trains knows torch. Between them go these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Scale(StrEnum):
    """What scores are before they are probabilities."""

    SIGMOID = "sigmoid"
    """A logit each."""
    SOFTMAX = "softmax"
    """Logits that exclude one another."""
    EACH = "each"
    """Probabilities, one by one."""
    SHARES = "shares"
    """Probabilities that sum to 1."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Some numbers of each place of an output; all its other axes, but that of the batch, count places."""

    output: str
    axis: int = -1
    """Along which the numbers of one place lie."""
    first: int = 0
    end: int | None = None
    """The first that is no more of them; negative: from the end; None: all."""
    blocks: int = 1
    """Equal parts of the axis, such as anchors, each a place with numbers of its own."""


@dataclass(frozen=True, slots=True)
class LearnedHead:
    """Numbers that belong together place by place."""

    scores: Columns
    scale: Scale
    """Of scores and objectness."""
    background: int | None = None
    """Which of the scores says that nothing is there."""
    objectness: Columns | None = None
    """One number that multiplies the scores."""
    boxes: Columns | None = None
    """Numbers that say where; they count by the place's best score."""
    unit: float = 1.0
    """What a difference of 1 of them counts."""
    bins: int = 1
    """Logits whose softmax gives, as the mean of 0, 1, ... bins - 1, each of the numbers."""


@runtime_checkable
class Taught(Protocol):
    """A task that says what a student of the model learns of its outputs."""

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """None: all numbers of all outputs count alike."""
        ...


def heads_of(task: object) -> Sequence[LearnedHead]:
    """Return what a task says; none where it says nothing."""
    return task.heads if isinstance(task, Taught) else ()
