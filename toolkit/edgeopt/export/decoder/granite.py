"""Decoders of the Granite type: Llama's with factors on embeddings, scores of attention, sums and logits.

The factors are products of their own in the graph, so that matrices stay as their checkpoint stores them.

Source: transformers 5, `GraniteModel`, `GraniteMoeModel` and `GraniteMoeSharedModel`; Yang et al., Tensor Programs V,
2022, arXiv:2203.03466 (why there are such factors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

HYBRID: Final = "granitemoehybrid"
"""Layers of scans beside layers of attention, with experts or without: Granite 4."""
MIXTURES: Final = ("granitemoe", "granitemoeshared", HYBRID)
"""`model_type` of those that may have a mixture of experts."""
KINDS: Final = ("granite", *MIXTURES)


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors that the numbers of a decoder are multiplied by on their way."""

    embedding: float = 1.0
    residual: float = 1.0
    """Factor of a layer's attention and of its feed-forward output before they are added."""
    attention: float = 0.0
    """Products of queries and keys; 0: one over the root of how many numbers a head has."""
    logits: float = 1.0

    def scale(self, head: int) -> float:
        """Return what products of queries and keys of heads of so many numbers are multiplied by."""
        return self.attention or head**-0.5


PLAIN: Final = Factors()
"""Nothing is multiplied."""


def read_factors(values: Mapping[str, Any], kind: str) -> Factors:
    """Return the factors that a configuration tells.

    Args:
        values: Of `config.json`.
        kind: Its `model_type`.

    Raises:
        TypeError, ValueError: If one is no number above 0.
    """
    if kind not in KINDS:
        return PLAIN
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    numbers = [float(values.get(name, 1.0)) for name in names]
    if wrong := [name for name, number in zip(names, numbers, strict=True) if not 0 < number < math.inf]:
        raise ValueError(f"{wrong[0]} is not above 0")
    embedding, residual, attention, logits = numbers
    return Factors(embedding, residual, attention, 1 / logits)
