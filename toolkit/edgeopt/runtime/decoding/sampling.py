"""Which token comes next: the likeliest, or one drawn from the likeliest.

Source: Keskar et al., 2019, arXiv:1909.05858 (repetition penalty); Holtzman et al., 2020, arXiv:1904.09751 (top-p);
Nguyen et al., 2024, arXiv:2407.01082 (min-p); OpenAI API reference (frequency and presence penalty, logit bias).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    min_p: float = 0.0
    """Only tokens that are at least so likely, as a share of the likeliest one's probability; 0: all."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time that the answer has it."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of a token that the answer has."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, by their numbers."""

    def __post_init__(self) -> None:
        limits = {"temperature": (0, 100), "top_k": (0, 1 << 20), "top_p": (0, 1), "repetition_penalty": (0.01, 100)}
        limits |= {"min_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, not {low} to {high}")
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}, and must be a whole number")
        for token, bias in self.logit_bias.items():
            is_token = isinstance(token, Integral) and not isinstance(token, bool) and token >= 0
            if not is_token or not -100 <= bias <= 100:
                raise ValueError(f"logit_bias has {token!r}: {bias}, and takes numbers of tokens with -100 to 100")

    @property
    def looks_at_answer(self) -> bool:
        """Whether what the answer has already changes what comes next."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


class Chooser:
    """Chooses tokens of one text. The same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        """Begin a text."""
        self._sampling = sampling

    @cached_property
    def _chance(self) -> np.random.Generator:
        """The generator of drawn tokens; NumPy imports it when it is first asked for, and the likeliest needs none."""
        return np.random.default_rng(self._sampling.seed)

    def choose(self, logits: NDArray[np.float32], seen: Collection[int], answer: Sequence[int] = ()) -> int:
        """Return the next token.

        Args:
            logits: (vocabulary,); what is NaN is never chosen.
            seen: The tokens before it.
            answer: Those of them that the answer has.
        """
        sampling = self._sampling
        if sampling.logit_bias or (sampling.looks_at_answer and answer):
            logits = self._moved(logits, answer)
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
        kept = min(kept, int(np.count_nonzero(shares >= sampling.min_p * shares[0])))
        kept = min(kept, int(np.count_nonzero(shares)))  # what may not follow is never drawn, however sums are rounded
        shares = shares[:kept] / shares[:kept].sum()
        drawn = int(np.searchsorted(np.cumsum(shares), self._chance.random(), side="right"))
        return int(order[min(drawn, len(shares) - 1)])

    def _moved(self, logits: NDArray[np.float32], answer: Sequence[int]) -> NDArray[np.float32]:
        """Return logits with biases and penalties."""
        sampling, moved = self._sampling, logits.copy()
        if answer and sampling.looks_at_answer:
            tokens, counts = np.unique(np.asarray(answer, np.int64), return_counts=True)
            moved[tokens] -= sampling.frequency_penalty * counts.astype(np.float32) + sampling.presence_penalty
        for token, bias in sampling.logit_bias.items():
            if token < len(moved):
                moved[token] += bias
        return moved
