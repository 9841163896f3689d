"""Which token comes next: the likeliest, or one drawn from the likeliest.

Source: Keskar et al., 2019, arXiv:1909.05858 (repetition penalty); Holtzman et al., 2020, arXiv:1904.09751 (top-p).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; a temperature of 0 draws nothing: the likeliest token comes."""

    temperature: float = 0.0
    """What logits are divided by."""
    top_k: int = 0
    """Only so many of the likeliest; 0: all."""
    top_p: float = 1.0
    """Only the likeliest that together reach this probability; the first always counts."""
    repetition_penalty: float = 1.0
    """What the logits of tokens that were there already are divided by, or multiplied where they are negative."""
    seed: int = 0
    """Seed of what is drawn: the same one draws the same tokens."""

    def __post_init__(self) -> None:
        limits = {"temperature": (0, 100), "top_k": (0, 1 << 20), "top_p": (0, 1), "repetition_penalty": (0.01, 100)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, not {low} to {high}")
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}, and must be a whole number")


class Chooser:
    """Chooses tokens of one text. The same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        """Begin a text."""
        self._sampling, self._chance = sampling, np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32], seen: Collection[int]) -> int:
        """Return the next token.

        Args:
            logits: (vocabulary,); what is NaN is never chosen.
            seen: The tokens before it.
        """
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0 and seen:
            logits = logits.copy()
            index = np.fromiter(set(seen), np.int64)
            known = logits[index]
            logits[index] = np.where(
                known > 0, known / sampling.repetition_penalty, known * sampling.repetition_penalty
            )
        if sampling.temperature == 0.0:
            best = int(logits.argmax())  # the first NaN, where there is one
            is_nan = math.isnan(logits[best])  # of one number, numpy's takes ten times as long
            return int(np.nan_to_num(logits, nan=-np.inf).argmax()) if is_nan else best
        known = np.nan_to_num(logits, nan=-np.inf).astype(np.float64)
        scaled = known - known.max()  # before it is divided: a temperature near nothing overflows no other than these
        with np.errstate(over="ignore"):
            scaled /= sampling.temperature
        order = np.argsort(-scaled, kind="stable")[: sampling.top_k or len(scaled)]
        shares = np.exp(scaled[order] - scaled[order[0]])
        shares /= shares.sum()
        kept = int(np.searchsorted(np.cumsum(shares), sampling.top_p)) + 1
        shares = shares[:kept] / shares[:kept].sum()
        drawn = int(np.searchsorted(np.cumsum(shares), self._chance.random(), side="right"))
        return int(order[min(drawn, len(shares) - 1)])
