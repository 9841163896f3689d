"""Answers of several forms of one language model in turns, so that what slows the machine slows all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.runtime.decoding.language_model import LanguageModel

LEAST_ROUNDS, MOST_ROUNDS = 8, 40
PARTS = ("answer", "TTFT", "TPOT")
"""The whole answer of the lengths asked for; its first token; each one after it."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Times of one form, one row a round."""

    times_ns: NDArray[np.float64]
    """(rounds, 3) of an answer: the whole, TTFT, TPOT."""

    def median_ms(self, part: str) -> float:
        """Return the median of one of `PARTS`."""
        return float(np.median(self.times_ns[:, PARTS.index(part)])) / 1e6


def measure_in_turns(
    models: Mapping[str, LanguageModel],
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    seconds: float,
    tell: Callable[[int, int], None],
) -> dict[str, Turns]:
    """Return the times of each model; in every other round they take their turns backwards.

    Args:
        models: By name; the original may be there twice, to tell what a ratio of two equal models looks like.
        prompts: Tokens; one a round, the same for all.
        asked: Of each answer.
        seconds: At least so long, and at least 8 rounds; at most 40.
        tell: Hears how many tenths of a second of how many are over.
    """
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    number, began_s = -1, monotonic()  # one round warms up
    while number < LEAST_ROUNDS or (monotonic() - began_s < seconds and number < MOST_ROUNDS):
        for name in list(models)[:: -1 if number % 2 else 1]:
            model = models[name]
            model.forget()
            with model.generate(prompts[number % len(prompts)], asked) as answer:
                for _ in answer:
                    pass
            times = answer.account.token_at_ns
            if number >= 0:
                rows[name].append((times[-1], times[0], (times[-1] - times[0]) / max(len(times) - 1, 1)))
        number += 1
        began_s = monotonic() if number == 0 else began_s
        tell(min(int(10 * (monotonic() - began_s)), int(10 * seconds)), int(10 * seconds))
    return {name: Turns(np.array(found)) for name, found in rows.items()}


def ratio_between(original: Turns, other: Turns, part: str, null: Ratio | None = None) -> Ratio:
    """Return how many times as fast another form is in one of `PARTS`, over the rounds."""
    place = PARTS.index(part)
    times = [one.times_ns[:, place] for one in (original, other)]
    logs = np.log(np.maximum(times[0], 1) / np.maximum(times[1], 1))
    return ratio_of_rounds(logs, pairs=len(logs), null=null)
