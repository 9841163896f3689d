"""Which tokens may come next in an answer to speech: never those that are suppressed, and times only in order.

Source: Radford et al., 2022, arXiv:2212.04356; `ApplyTimestampRules` of openai/whisper, and
`WhisperTimeStampLogitsProcessor` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


def log_softmax(logits: NDArray[np.float32]) -> Scores:
    """Return (..., vocabulary) logarithms of probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float32)


class TokenRules:
    """The rules of one model."""

    def __init__(
        self,
        never: Sequence[int],
        not_first: Sequence[int],
        *,
        first_time: int | None = None,
        end: int = 0,
        last_start: int | None = None,
    ) -> None:
        """Take what is suppressed, and where times lie.

        Args:
            never: Tokens that are never chosen.
            not_first: Those that are not chosen first.
            first_time: The token of the time 0, behind which all others are; None: no times are written.
            end: The token that ends an answer; the tokens of text are those before it.
            last_start: The first time is no later than so many steps; None: anywhere.
        """
        self._never, self._not_first = (np.asarray(tokens, np.int64) for tokens in (never, not_first))
        self._first_time, self._end, self._last_start = first_time, end, last_start

    def allowed(self, scores: Scores, answer: Sequence[int]) -> Scores:
        """Return (vocabulary,) scores of what may follow an answer; all else is minus infinity.

        Args:
            scores: Logits, or logarithms of probabilities: the rules are the same.
            answer: Its tokens so far.
        """
        scores = scores.copy()
        if not answer:
            scores[self._not_first] = -np.inf
        scores[self._never] = -np.inf
        if self._first_time is not None:
            self._keep_times(scores, answer, self._first_time)
        return scores

    def _keep_times(self, scores: Scores, answer: Sequence[int], first: int) -> None:
        scores[first - 1] = -np.inf  # the token that says that no times are written
        is_time = bool(answer) and answer[-1] >= first
        was_time = len(answer) < 2 or answer[-2] >= first
        if is_time and was_time:  # the pair is whole: text follows
            scores[first:] = -np.inf
        elif is_time:  # a segment is over: its pair or the end follows
            scores[: self._end] = -np.inf
        last = next((token for token in reversed(answer) if token >= first), None)
        if last is not None:  # times never go back, and only the second of a pair stays
            scores[first : last if is_time and not was_time else last + 1] = -np.inf
        if not answer:
            scores[:first] = -np.inf
            if self._last_start is not None:
                scores[first + self._last_start + 1 :] = -np.inf
        if _log_sum(scores[first:]) > scores[:first].max():  # all times together are likelier than any text
            scores[:first] = -np.inf


def _log_sum(scores: Scores) -> float:
    highest = float(scores.max())
    if highest == -np.inf:
        return highest
    return highest + float(np.log(np.exp(scores.astype(np.float64) - highest).sum()))
