"""How well a language model predicts a text, and how often it would choose another token than the original."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.accuracy.bootstrap import drop_of_means
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.system.processes.time_limit import require_time

WINDOW_TOKENS = 256
MOST_WINDOWS = 48
_LEAST_LONG = 8
"""Windows that are longer than that: each tells more, and fewer than 6 give their mean no interval."""


class Predicts(Protocol):
    """A language model, of whatever engine."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token of a text that begins with the first of them.

        A model whose prompts give none has fewer rows: those behind the last tokens; the first is the prompt's.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextScore:
    """A model on windows of a text, side by side."""

    losses: tuple[float, ...]
    """Losses of each window: the mean of -log(probability of the next token), in nats."""
    likeliest: tuple[NDArray[np.int64], ...]
    """Likeliest of each window: the token that greedy decoding would choose behind each of its tokens; behind the last
    ones where the model predicts the end of a window alone."""
    nats: tuple[NDArray[np.float64], ...] = ()
    """The loss of each token that is predicted; empty where it is not known by token."""

    def joined(self, more: TextScore) -> TextScore:
        """Return these windows and more of them."""
        return TextScore((*self.losses, *more.losses), (*self.likeliest, *more.likeliest), (*self.nats, *more.nats))

    def first(self, count: int) -> TextScore:
        """Return the first windows."""
        return TextScore(self.losses[:count], self.likeliest[:count], self.nats[:count])

    def is_of_same(self, other: TextScore) -> bool:
        """Whether both predict the same tokens of each window, as far as it is known."""
        pairs = zip(self.likeliest, other.likeliest, strict=False)
        return all(len(mine) == len(theirs) for mine, theirs in pairs)

    def ends_like(self, other: TextScore) -> TextScore:
        """Return the same windows, no more of the end of each than another model predicts.

        Raises:
            ValueError: If the losses are not known by token, or there are other windows.
        """
        if self.is_of_same(other):
            return self
        counts = [min(len(a), len(b)) for a, b in zip(self.likeliest, other.likeliest, strict=True)]
        likeliest = tuple(array[-count:] for array, count in zip(self.likeliest, counts, strict=True))
        nats = tuple(array[1 - count :] for array, count in zip(self.nats, counts, strict=True))
        return TextScore(tuple(float(array.mean()) for array in nats), likeliest, nats)

    @property
    def perplexity(self) -> float:
        """Exp of the mean loss."""
        return float(np.exp(np.mean(self.losses)))


@dataclass(frozen=True, slots=True)
class Rise:
    """How much the perplexity grew against another model, as a share: 0.02 is 2 % more; or a rate, in its own unit."""

    value: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval over windows, paired."""

    def __str__(self) -> str:
        return f"{self.value:+.1%} [{self.low:+.1%}, {self.high:+.1%}]"

    def word(self, allowed: float) -> Word:
        """Return what is proven, each bound wrong in 2.5 % of cases at most.

        Args:
            allowed: By which it may rise.
        """
        if self.high <= allowed:
            return Word.KEPT
        return Word.LOST if self.low > allowed else Word.NOT_DECIDED

    def windows_to_decide(self, windows: int, allowed: float, power: int = 2) -> int:
        """Return about how many windows would prove that it is kept; 0: none would, it is not clearly allowed.

        Args:
            windows: That were judged.
            allowed: By which it may rise.
            power: The bound shrinks with this root of their number.
        """
        if not self.value < allowed:
            return 0
        return math.ceil(windows * ((self.high - self.value) / (allowed - self.value)) ** power)


def windows_of(tokens: Sequence[int], context: int, length: int = WINDOW_TOKENS) -> list[list[int]]:
    """Return up to 48 windows of some tokens, or of the context where that is shorter, evenly spread over a text.

    Longer windows are fewer: all have no more tokens together than 48 of 256, but they are 8 at least.
    """
    length = min(length, context, len(tokens))
    starts = range(0, len(tokens) - length + 1, max(length, 1))
    most = MOST_WINDOWS if length <= WINDOW_TOKENS else max(MOST_WINDOWS * WINDOW_TOKENS // length, _LEAST_LONG)
    kept = np.linspace(0, len(starts) - 1, min(most, len(starts))).round().astype(int)
    return [list(tokens[starts[i] : starts[i] + length]) for i in kept]


def score_text(model: Predicts, windows: Sequence[Sequence[int]]) -> TextScore:
    """Return how well a model predicts each window, which it sees from its first token on, or the end of each.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    score = TextScore((), ())
    for window in windows:
        require_time()
        logits = model.logits(window)
        score = score.joined(score_rows(logits, window[len(window) - len(logits) + 1 :]))
    return score


def score_rows(logits: NDArray[np.float32], tokens: Sequence[int]) -> TextScore:
    """Return how well logits predict tokens.

    Args:
        logits: (rows, vocabulary), the first ones behind which the tokens stand; a last row may predict nothing.
        tokens: That come behind the first rows.
    """
    nats, likeliest = losses_of(logits, tokens)
    return TextScore((float(nats.mean()),), (likeliest,), (nats,))


def losses_of(logits: NDArray[np.float32], tokens: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the loss of each token, and the likeliest behind each row."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    shares = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return -shares[np.arange(len(tokens)), np.asarray(tokens, np.int64)], rows.argmax(axis=-1)


def rise_between(original: TextScore, other: TextScore) -> Rise:
    """Return how much more perplexed another model is, on what both predict; infinite where it predicts no number."""
    original, other = original.ends_like(other), other.ends_like(original)
    before, after = np.array(original.losses), np.array(other.losses)
    if not np.isfinite(after).all():
        return Rise(float("inf"), float("inf"), float("inf"))
    drop = drop_of_means(after, before)  # what the loss falls by from the other to the original
    return Rise(*(float(np.expm1(number)) for number in (drop.value, drop.low, drop.high)))


def on_the_same(scores: Mapping[str, TextScore]) -> dict[str, TextScore]:
    """Return the scores of several models on what all of them predict."""
    least = min(scores.values(), key=lambda score: sum(map(len, score.likeliest)), default=None)
    return {} if least is None else {label: score.ends_like(least) for label, score in scores.items()}


def agreement_between(original: TextScore, other: TextScore) -> float:
    """Return the share of tokens behind which both would choose the same."""
    original, other = original.ends_like(other), other.ends_like(original)
    same = [a == b for a, b in zip(original.likeliest, other.likeliest, strict=True)]
    return float(np.concatenate(same).mean())
