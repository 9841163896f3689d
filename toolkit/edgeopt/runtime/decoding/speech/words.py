"""When each word of a window is said: by where the decoder looks in the sound while it writes the word's tokens.

Some heads of attention (`alignment_heads`) look at the sound of the next token. Their weights, normed over tokens and
smoothed, are a matrix of tokens and times; the path through it that gathers most weight gives each token its time.

Source: openai/whisper, `timing.py`; `_extract_token_timestamps` of Hugging Face transformers; Sakoe and Chiba, 1978
(dynamic time warping).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
_BY_LETTER = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages that put no spaces between words: each character is told by itself."""
_BEFORE, _BEHIND = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word behind them, and to that before them."""
STEP_S = 0.02
"""Between two times that a model writes, and between two rows of what its encoder gives."""
_UNKNOWN = "\ufffd"
_LEAST = 1e-9
_DIAGONAL, _DOWN, _RIGHT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class SpeechWord:
    """One word, and when it is said."""

    text: str
    """The word, with the marks beside it and the space before it."""
    start_s: float
    """Beginning in seconds of the sound."""
    end_s: float

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"word": self.text.strip(), "start_s": round(self.start_s, 3), "end_s": round(self.end_s, 3)}


def token_times(weights: Numbers, width: int) -> NDArray[np.float64]:
    """Return when each token begins, in seconds from the begin of its window.

    Args:
        weights: (heads, tokens, times) of attention; the row of a token is that of the run which chose it.
        width: Times over which a median smooths.
    """
    deviation = weights.std(axis=-2, keepdims=True)
    normed = (weights - weights.mean(axis=-2, keepdims=True)) / np.maximum(deviation, np.float32(_LEAST))
    matrix = _smoothed(normed, width).mean(axis=0)
    tokens, times = _warped(-matrix.astype(np.float64))
    is_first = np.diff(tokens, prepend=-1).astype(bool)
    return np.asarray(times[is_first] * STEP_S, np.float64)


def _smoothed(weights: Numbers, width: int) -> Numbers:
    """Return the median of so many neighbours at each time; the edges are mirrored."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (half, half)), mode="reflect")
    neighbours = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=-1)
    return np.asarray(np.median(neighbours, axis=-1), np.float32)


def _warped(costs: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens and the times along the cheapest path from the first of both to the last.

    All cells of a diagonal hang on the two diagonals before it alone, so that they are computed at once.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    trace = np.full((rows + 1, columns + 1), _RIGHT, np.int8)
    total[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        is_both, is_down = (both < down) & (both < right), (down < both) & (down < right)
        steps = np.where(is_both, _DIAGONAL, np.where(is_down, _DOWN, _RIGHT))
        total[i, j] = costs[i - 1, j - 1] + np.choose(steps, [both, down, right]).astype(np.float64)
        trace[i, j] = steps
    trace[0, :], trace[:, 0] = _RIGHT, _DOWN
    token, time = rows, columns
    path = list[tuple[int, int]]()
    while token > 0 or time > 0:
        path.append((token - 1, time - 1))
        step = int(trace[token, time])
        token, time = token - (step != _RIGHT), time - (step != _DOWN)
    tokens, times = np.array(path[::-1], np.int64).T
    return tokens, times


def words_of(
    tokens: Sequence[int], times: Sequence[float], decode: Callable[[Sequence[int]], str], language: str
) -> list[SpeechWord]:
    """Return the words of a text.

    Args:
        tokens: Of the text, without those of times.
        times: When each of them begins, and when the last one ends.
        decode: Returns the text of tokens.
        language: Its code.
    """
    parts = list[tuple[str, int]]()  # text, and how many tokens it is of
    begin = 0
    for end in range(1, len(tokens) + 1):  # a character may be of several tokens
        text = decode(tokens[begin:end])
        if _UNKNOWN not in text or end == len(tokens):
            parts.append((text, end - begin))
            begin = end
    words = list[tuple[str, int]]()
    for text, count in parts:
        is_new = language in _BY_LETTER or text.startswith(" ") or text.strip() in _marks() or not words
        if is_new:
            words.append((text, count))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + count)
    made, place = list[SpeechWord](), 0
    for text, count in _with_marks(words):
        made.append(SpeechWord(text, float(times[place]), float(times[place + count])))
        place += count
    return [word for word in made if word.text.strip()]


def _marks() -> frozenset[str]:
    return frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def _with_marks(words: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return words joined with the marks that belong to them."""
    joined = list[tuple[str, int]]()
    for text, count in reversed(words):
        mark = text.strip()
        if joined and text.startswith(" ") and mark and mark in _BEFORE:
            joined[-1] = (text + joined[-1][0], count + joined[-1][1])
        else:
            joined.append((text, count))
    result = list[tuple[str, int]]()
    for text, count in reversed(joined):
        if result and text and text in _BEHIND and not result[-1][0].endswith(" "):
            result[-1] = (result[-1][0] + text, result[-1][1] + count)
        else:
            result.append((text, count))
    return result
