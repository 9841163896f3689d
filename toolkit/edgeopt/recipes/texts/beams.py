"""How many answers a search keeps beside each other, and when it ends.

Source: Hugging Face transformers, `num_beams`, `length_penalty` and `early_stopping` of `GenerationConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_BEAMS = 64


class BeamStop(StrEnum):
    """When a search with several beams ends."""

    FULL = "full"
    """As many answers are over as there are beams (`early_stopping` is true)."""
    UNLIKELY = "unlikely"
    """The best open answer is worse than the worst one that is over (`early_stopping` is false)."""
    NEVER = "never"
    """No open answer could become better, however long it grew (`early_stopping` is `never`)."""


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """A search for the likeliest answer.

    Raises:
        ValueError: If the number of beams is out of range.
    """

    count: int = 1
    """Answers that are kept beside each other; 1: the likeliest token comes."""
    length_penalty: float = 1.0
    """Power of the length by which the sum of logarithms is divided: above 0, longer answers gain."""
    stops: BeamStop = BeamStop.UNLIKELY

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_BEAMS:
            raise ValueError(f"num_beams is {self.count}, not 1 to {MOST_BEAMS}")
