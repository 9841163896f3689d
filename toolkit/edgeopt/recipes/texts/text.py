"""The table `[text]` of a recipe: how what a model says of tokens becomes an answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pooling(StrEnum):
    """How vectors of tokens become one."""

    USUAL = "usual"
    """The model's own output of one vector where it has one, else the mean."""
    MEAN = "mean"
    """The mean of the tokens that are there."""
    FIRST = "first"
    """Vector of the first token, such as [CLS]."""
    MODEL = "model"
    """The model's own output of one vector, such as `pooler_output`."""


@dataclass(frozen=True, slots=True)
class Text:
    """How a model of texts is read."""

    pooling: Pooling = Pooling.USUAL
    """Embedding: how vectors of tokens become one."""
