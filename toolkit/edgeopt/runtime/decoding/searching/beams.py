"""Search for the likeliest answer with several beams: open answers that grow beside each other.

Each beam has a cache of its own by reference: a decoder is copied, and its arrays are shared until it runs on, so that
reordering the beams moves no memory. Which beams go on and which answer wins follows `_beam_search` of Hugging Face
transformers 5, ties too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.texts.beams import BeamOptions, BeamStop

_OUT = np.float32(-1e9)
"""Added to the score of what may not win."""


class ForkingDecoder(Protocol):
    """A decoder whose text can go on in several ways."""

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token."""
        ...

    def fork(self) -> Self:
        """Return another decoder with the same text, which goes its own way."""
        ...


@dataclass(frozen=True, slots=True)
class BeamAnswer:
    """An answer that a search found, or one that is open."""

    tokens: tuple[int, ...] = ()
    """Its tokens, the end too where it came to one."""
    score: float = float(_OUT)
    """The sum of its logarithms; of an answer that is over, divided by its length."""
    logprobs: tuple[float, ...] = ()
    """Logarithm of the probability of each token among those that were allowed in its place."""
    is_over: bool = False


Scoring = Callable[[NDArray[np.float32], Sequence[int]], NDArray[np.float32]]
"""Takes (vocabulary,) logits and the answer before; returns logarithms, minus infinity for what may not come."""


class BeamSearch:
    """One search; iterate `step` until `is_over`."""

    def __init__(
        self, options: BeamOptions, end: Sequence[int], most: int, scoring: Scoring, decoder: ForkingDecoder
    ) -> None:
        """Begin behind the first tokens, which the decoder holds.

        Args:
            options: How many beams, and when the search ends.
            end: Tokens that end an answer.
            most: Tokens that an answer may have.
            scoring: Turns logits into scores.
            decoder: Its cache holds all before the answer.
        """
        self._options, self._end, self._most, self._scoring = options, frozenset(end), most, scoring
        self._kept = max(2, 1 + len(self._end)) * options.count
        scores = [0.0, *[float(_OUT)] * (options.count - 1)]  # all beams begin alike: only the first one counts
        self._open = [BeamAnswer(score=score) for score in scores]
        self._decoders = [decoder] * options.count
        self._over = [BeamAnswer() for _ in range(options.count)]
        self._can_improve = True
        self.is_over = False
        self.length = 0
        """Tokens of each open answer."""

    @property
    def best(self) -> BeamAnswer:
        """The best answer that is over; before there is one, the best open one."""
        return self._over[0] if self._over[0].is_over else self._open[0]

    def step(self, logits: NDArray[np.float32]) -> None:
        """Take the next token of each beam.

        Args:
            logits: (beams, vocabulary) behind each, or (1, vocabulary) where all are alike.
        """
        count, options = self._options.count, self._options
        scored = [self._scoring(row, beam.tokens) for row, beam in zip(_rows(logits, count), self._open, strict=True)]
        sums = np.stack([scores + np.float32(beam.score) for scores, beam in zip(scored, self._open, strict=True)])
        size = sums.shape[1]
        order = _largest(sums.reshape(-1), self._kept)
        self.length += 1
        top = [self._grown(int(place) // size, int(place) % size, scored, float(sums.flat[place])) for place in order]
        parents = [int(place) // size for place in order]
        running = np.asarray([beam.score for beam in top], np.float32) + _OUT * np.asarray(
            [beam.is_over for beam in top]
        )
        going = np.argsort(-running, kind="stable")[:count]
        self._take_over(top)
        self._open = [
            BeamAnswer(top[i].tokens, float(running[i]), top[i].logprobs) for i in (int(place) for place in going)
        ]
        self._decoders = [self._decoders[parents[int(place)]] for place in going]
        may_grow = options.stops is BeamStop.NEVER and options.length_penalty > 0  # longer answers gain
        length = self._most if may_grow else self.length
        reachable = self._open[0].score / length**options.length_penalty
        worst = min(beam.score for beam in self._over)
        self._can_improve &= any(reachable > (worst if beam.is_over else float(_OUT)) for beam in self._over)
        is_full = all(beam.is_over for beam in self._over) and options.stops is BeamStop.FULL
        self.is_over = not self._can_improve or is_full or all(beam.is_over for beam in top)

    def run(self) -> NDArray[np.float32]:
        """Run the last token of each beam; return (beams, vocabulary) logits behind it."""
        decoders = [decoder.fork() for decoder in self._decoders]
        rows = [decoder.run(beam.tokens[-1:])[-1] for decoder, beam in zip(decoders, self._open, strict=True)]
        self._decoders = decoders
        return np.stack(rows)

    def _grown(self, parent: int, token: int, scored: Sequence[NDArray[np.float32]], score: float) -> BeamAnswer:
        before, scores = self._open[parent], scored[parent]
        logprob = _logprob(scores, token)
        is_over = token in self._end or self.length >= self._most
        return BeamAnswer((*before.tokens, token), score, (*before.logprobs, logprob), is_over)

    def _take_over(self, top: Sequence[BeamAnswer]) -> None:
        """Keep the best answers that are over, those of before and those that ended now."""
        count, options = self._options.count, self._options
        is_full = all(beam.is_over for beam in self._over) and options.stops is BeamStop.FULL
        ended = list[BeamAnswer]()
        for rank, beam in enumerate(top):
            is_ended = beam.is_over and rank < count
            out = _OUT * np.float32(is_full + (not self._can_improve) + (not is_ended))
            score = np.float32(beam.score) / np.float32(self.length**options.length_penalty) + out
            ended.append(BeamAnswer(beam.tokens, float(score), beam.logprobs, is_ended))
        merged = [*self._over, *ended]
        order = np.argsort(-np.asarray([beam.score for beam in merged], np.float32), kind="stable")[:count]
        self._over = [merged[int(place)] for place in order]


def _rows(logits: NDArray[np.float32], count: int) -> Sequence[NDArray[np.float32]]:
    return list(logits) if len(logits) == count else [logits[0]] * count


def _largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the places of the largest scores in their order; of equal ones the first."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    places = np.sort(np.argpartition(-scores, count)[:count])
    return np.asarray(places[np.argsort(-scores[places], kind="stable")], np.int64)


def _logprob(scores: NDArray[np.float32], token: int) -> float:
    """Return the logarithm of a token's probability among those that are allowed."""
    highest = scores.max()
    if highest == -np.inf or scores[token] == -np.inf:
        return float("-inf")
    return float(scores[token] - highest - np.log(np.exp(scores - highest).sum()))
